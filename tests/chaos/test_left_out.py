"""Nothing that is saved could be left out: without any one part a run goes on to something else, or is refused."""

import contextlib
import os
import threading
from dataclasses import replace

import pytest
import torch
from tests.chaos.kill_scenarios import ADAPTIVE_KL, LORA, OF_PAIRS, StopAfter, inline, often_the_same
from tests.chaos.killed_runs import DETACHED, SUPERVISED
from tests.chaos.left_out_runs import SECONDS, Gate, NotesSent, Story, emptied, paths_in, put
from tests.leases.honest_makers import fulfil, plan, prompt, with_item

from proa import Callback
from proa.actors.waiting import LeaseFailedError, StepInterrupted, WaitTimeoutError
from proa.data.facts import SampleFacts, TrajectoryFacts
from proa.leases.book import LeaseBook
from proa.leases.plan import FilteredGroup
from proa.recipes import dapo, dr_grpo, grpo, ppo, reward_model, sft
from proa.roles.buffer import DetachedReplayBuffer
from proa.roles.source import PushedExperience


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# -- the runs ------------------------------------------------------------------------------------------


class At(Callback):
    """Does something when a step is done, and something when a step's checkpoint is there."""

    def __init__(self, done=None, saved=None):
        self.done, self.saved = done or {}, saved or {}

    def on_step_end(self, state, step_idx, batch, metrics):
        self.done.get(state.global_step, lambda: None)()

    def on_checkpoint(self, state, row):
        self.saved.get(row.step, lambda: None)()


def a_ppo_run(folder):
    """Three episodes of two batches, two epochs of each. After 3 steps all of the next episode's leases have come;
    after 7 the last episode's are open, and a maker has the first of them."""
    gate = Gate(leases=16)

    def digits(completions):
        gate.pass_through()
        return [float(sum(map(str.isdigit, completion))) for completion in completions]

    def all_have_come():
        assert gate.opened.is_set() or gate.reached.wait(SECONDS)

    settings = DETACHED | {
        "total_steps": 5, "update_steps": 2, "train_epochs": 2, "algorithm": {"params": ADAPTIVE_KL},
        "critic": {"kind": "separate", "learning_rate": 1e-2}, "reward": inline(digits),
    }  # fmt: skip
    listeners = [At({3: all_have_come}, {7: gate.opened.set}), lambda: NotesSent(gate)]
    story = Story(folder, ppo, settings, (3, 5, 7, 10), lambda: listeners)
    gate.opened.set()
    return story


def a_run_without_rewards(folder):
    """The rewards of the first step fail; those of all others are the same, so that nothing can be learned."""
    broken = threading.Event()
    broken.set()

    def nothing(completions):
        return [None if broken.is_set() else 1.0 for _ in completions]

    settings = DETACHED | {"total_steps": 8, "max_staleness": 0, "reward": inline(nothing), "eval": []}
    return Story(folder, dapo, settings, (2,), lambda: [At(saved={1: broken.clear})])


def a_run_beyond_numbers(folder):
    """Its gradients are so large that their norm is infinite: every step is skipped, until there are too many."""
    algorithm = {"params": {"entropy_coefficient": 1e30}}
    return Story(folder, dr_grpo, DETACHED | {"total_steps": 14, "algorithm": algorithm, "eval": []}, (2,))


def a_run_with_a_journal(folder):
    def not_always_a_number(completions):
        return [None if "5" in completion else float("1" in completion) for completion in completions]

    return Story(folder, grpo, DETACHED | {"total_steps": 3, "reward": inline(not_always_a_number)}, (2,))


def a_run_with_left_over_groups(folder):
    settings = DETACHED | {"reward": inline(often_the_same), "lease_prompts": 2, "total_steps": 3}
    return Story(folder, dapo, settings, (1,))


def a_run_that_stops(folder):
    settings = DETACHED | {"total_steps": 3, "update_steps": 2, "train_epochs": 2}
    return Story(folder, grpo, settings, (3,), lambda: [StopAfter(3)])


def an_sft_run(folder):
    return Story(folder, sft, SUPERVISED, (4, 6))


def an_sft_run_that_stops(folder):
    return Story(folder, sft, SUPERVISED, (4,), lambda: [StopAfter(4)])


def a_reward_model(folder):
    return Story(folder, reward_model, SUPERVISED | OF_PAIRS | {"lora": LORA}, (2,))


STORIES = {
    "ppo": a_ppo_run,
    "no_rewards": a_run_without_rewards,
    "beyond_numbers": a_run_beyond_numbers,
    "journal": a_run_with_a_journal,
    "left_over": a_run_with_left_over_groups,
    "stops": a_run_that_stops,
    "sft": an_sft_run,
    "sft_stops": an_sft_run_that_stops,
    "reward_model": a_reward_model,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Each story, told once."""
    stories = {}

    def tell(name):
        if name not in stories:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(os, "fsync", lambda descriptor: None)
                stories[name] = STORIES[name](tmp_path_factory.mktemp(name))
        return stories[name]

    return tell


# -- the parts -----------------------------------------------------------------------------------------

STREAMS = ("python", "numpy", "torch")
IN_VAIN = ("ppo", 7, "trainer.source.versions", torch.zeros_like)
"""A maker waits for weights that are gone; it is replaced when it has had its lease for half of `wait_timeout`."""
CONTROLS = [
    # story, step, part; what stands there instead is what a run begins with, unless it is said
    ("ppo", 7, "trainer.loop.policy_version"),
    *(("ppo", 7, f"trainer.place.{name}") for name in ("episode", "epoch", "done")),
    ("ppo", 7, "trainer.batches"),
    ("ppo", 10, "trainer.after.evaluated_at"),
    *(("ppo", 7, f"trainer.optimizers.1.{name}") for name in ("steps", "parameters", "moments")),
    ("ppo", 7, "trainer.optimizers.0.moments"),
    ("ppo", 7, "trainer.critic"),
    ("ppo", 7, "trainer.kl_reward_coefficient", 0.05),
    ("ppo", 7, "trainer.used_coefficient", 0.05),
    ("ppo", 3, "trainer.source.arrived"),
    IN_VAIN,
    ("ppo", 7, "trainer.source.handed_out"),
    ("left_over", 1, "trainer.source.groups"),
    ("ppo", 7, "run.record.evals.jsonl"),
    ("journal", 2, "run.record.journal.jsonl"),
    ("ppo", 7, "run.start_digest"),
    ("no_rewards", 2, "trainer.empty_in_a_row"),
    ("beyond_numbers", 2, "trainer.optimizers.0.skipped_in_a_row"),
    *(("sft", 4, f"trainer.loop.{name}") for name in ("step", "epoch", "global_step", "num_epochs", "num_steps")),
    ("sft", 4, "trainer.loop.metrics"),
    ("sft", 4, "trainer.within_epoch"),
    ("sft", 6, "trainer.after.evaluated_at"),
    ("sft", 6, "trainer.trained_steps.trained"),
    *(("sft", 4, f"optimizer.{name}") for name in ("steps", "parameters", "moments")),
    ("sft", 4, "run.callbacks"),
    *(("sft", 4, f"run.random.{stream}") for stream in STREAMS),
    ("sft", 4, "run.record.metrics.jsonl"),
    *(("sft_stops", 4, f"trainer.loop.{name}") for name in ("should_stop", "stop_reason", "stopped_by")),
    ("reward_model", 2, "trained", lambda trained: {name: torch.zeros_like(one) for name, one in trained.items()}),
]  # fmt: skip
"""In `trainer.source` only what needs a run to be noticed; all of it is left out below, from a lease book."""

CONTROLS_OF_ANOTHER_LOOP = [
    # what a supervised run has too, left out of a detached one
    *(("ppo", 7, f"trainer.loop.{name}") for name in ("global_step", "metrics")),
    *(("ppo", 7, f"trainer.optimizers.0.{name}") for name in ("steps", "parameters")),
    ("ppo", 7, "run.callbacks"),
    *(("ppo", 7, f"run.random.{stream}") for stream in STREAMS),
    ("ppo", 7, "run.record.metrics.jsonl"),
    *(("stops", 3, f"trainer.loop.{name}") for name in ("should_stop", "stop_reason", "stopped_by")),
]  # fmt: skip

VERSIONS = ("ppo", 7, "weights.versions")

INFORMATIONAL = {
    "run.config": "what the run was made with, compared with what it is to go on with: tests/resume/test_inputs.py",
    "run.inputs": "the data and the models it was made with, compared likewise",
    "trainer.trained_steps.alike_in_a_row": "when a warning is given; nothing is decided by it",
    "trainer.trained_steps.moved": "whether a warning is given at the end; nothing is decided by it",
    "trainer.trained_steps.first_skip": "words about the first step that was skipped; nothing is decided by them",
    "trainer.first_reward_error": "words about the first reward that failed; nothing is decided by them",
    "run.threads": "says with how many threads it was computed; what the run goes on with is its configuration's",
    "run.libraries": "says by which versions it was computed",
    "run.random.cuda": "of a device that is not here; streams are set where as many devices are",
    "trainer.loop.logged": "what hooks logged last, for the console; the rows have it, and nothing is decided by it",
    "trainer.loop.output_dir": "where the run lay; it may have been moved",
    "trainer.loop.rank": "each trainer is the one it is",
    "trainer.loop.world_size": "is how many trainers there are now",
    "trainer.loop.resumed_from": "of the time before, if it went on then too",
    "trainer.optimizers.0.skipped_steps": "a count for whoever looks; nothing is decided by it",
    "trainer.optimizers.1.skipped_steps": "a count for whoever looks; nothing is decided by it",
    "optimizer.skipped_steps": "a count for whoever looks; nothing is decided by it",
}
ELSEWHERE = {
    **dict.fromkeys(
        ("optimizer.masters", "trainer.optimizers.0.masters", "trainer.optimizers.1.masters"),
        "a model in float32 has none; tests/run/test_precision.py resumes those that do",
    ),
    **dict.fromkeys(
        ("trainer.memory.planned", "trainer.memory.token_budget"),
        "changes when memory is short; tests/learning/test_step_memory.py resumes such a run",
    ),
    "trainer.source": "left out part by part below",
    "trainer.loop.max_steps": "is what the configuration says now: a resumed run may train longer",
    "trainer.loop.step": "of a detached run follows from its place; the state of a complete run has it",
    "trainer.loop.epoch": "of a detached run follows from its place; the state of a complete run has it",
    "trainer.loop.episode": "follows from its place; the state of a complete run has it",
    "trainer.loop.policy_version": "a supervised run has none",
    "trainer.optimizers.1.skipped_in_a_row": "as that of the first optimizer",
    "optimizer.skipped_in_a_row": "as that of a detached run's optimizer",
    "run.record": "the length of each file; that each is cut back to it is shown with `truncate_record`",
}


@pytest.mark.parametrize("name", STORIES)
def test_with_all_of_its_parts_it_goes_on_as_if_nothing_had_been(name, told, monkeypatch):
    story = told(name)
    for step in story.steps:
        outcome = story.go_on(step, monkeypatch)
        assert [key for key in story.outcome if outcome.get(key) != story.outcome[key]] == [], step


def without(control, told, monkeypatch, **settings):
    """What comes of a run from a checkpoint without a part, and what would have come of it."""
    name, step, part, *other = control
    story, replaced = told(name), []

    def leave_out(tree):
        def instead(saved):
            given = other[0] if other else emptied
            now = given(saved) if callable(given) else given
            replaced.append((saved, now))
            return now

        put(tree, part, instead)

    outcome = story.go_on(step, monkeypatch, leave_out, **settings)
    assert replaced, "the checkpoint has no such part"
    assert any(str(saved) != str(now) for saved, now in replaced), "it was that already"
    return outcome, story.outcome


def in_words(control):
    return f"{control[0]} {control[1]} {control[2]}"


@pytest.mark.parametrize("control", CONTROLS, ids=in_words)
def test_it_is_noticed_when_one_part_is_left_out(control, told, monkeypatch):
    outcome, whole = without(control, told, monkeypatch, **{"wait_timeout": 1.0} if control is IN_VAIN else {})
    assert [key for key in whole if outcome.get(key) != whole[key]] != []


@pytest.mark.prove
@pytest.mark.parametrize("control", CONTROLS_OF_ANOTHER_LOOP, ids=in_words)
def test_it_is_noticed_in_a_detached_run_too(control, told, monkeypatch):
    outcome, whole = without(control, told, monkeypatch)
    assert [key for key in whole if outcome.get(key) != whole[key]] != []


def test_without_the_versions_of_the_weights_a_maker_waits_for_one_in_vain(told, monkeypatch):
    outcome, _ = without(VERSIONS, told, monkeypatch, wait_timeout=0.5)
    # Who gives up first, the trainer that waits or the supervisor, depends on how busy the machine is.
    assert "weights of version" in outcome["error"] or "has had lease" in outcome["error"]


def test_every_part_of_a_checkpoint_is_left_out_somewhere_or_only_tells_of_something(told):
    known = (
        {control[2] for control in (*CONTROLS, *CONTROLS_OF_ANOTHER_LOOP, VERSIONS)}
        | INFORMATIONAL.keys()
        | ELSEWHERE.keys()
    )
    for name in STORIES:
        story = told(name)
        for step in story.steps:
            assert set(paths_in(story.tree(step))) - known == set(), (name, step)


def test_the_state_of_a_complete_run_is_what_it_was_when_it_ended(tmp_path):
    for recipe, settings in ((grpo, DETACHED | {"update_steps": 2, "train_epochs": 2}), (sft, SUPERVISED)):
        settings = settings | {"output_dir": tmp_path, "name": recipe.__name__}
        whole, again = recipe(**settings), recipe(**settings, resume="auto")
        changed = {key for key, value in whole.to_dict().items() if again.to_dict()[key] != value}
        assert (changed, again.resumed_from) == ({"resumed_from"}, f"step_{whole.global_step}")
        assert (again.epoch, again.step, again.global_step) == (whole.epoch, whole.step, whole.global_step)


# -- the lease book ------------------------------------------------------------------------------------

PLAN = {"prompts_per_step": 4, "lease_prompts": 1, "update_steps": 1, "total_steps": 10, "max_staleness": 1}


def a_book_in_order():
    """Between two steps: leases have come, one is with a maker, groups were filtered and one is left over."""
    book = LeaseBook(plan(**PLAN | {"lease_prompts": 2, "update_steps": 2}), prompt, filter_group=drop_the_third)
    for step in range(3):
        book.start_episode(step // 2)
        for _ in range(3):
            book.deliver(fulfil(book.next_lease("m")), "m")
        book.settle(book.take_step())
    book.next_lease("m")
    return book, 3


def a_windowed_book():
    """Slow makers have held leases back for long: one is too stale by now, one can still be trained on."""
    book = LeaseBook(plan(**PLAN | {"schedule": "windowed"}), prompt)
    for step, slow in enumerate((0, 9, None)):
        book.start_episode(step)
        for lease in leases_there_are(book):
            if lease.id != slow:
                book.deliver(fulfil(lease), "m")
        book.settle(book.take_step())
    return book, 3


def an_interrupted_book():
    """In the middle of a step that used up what it may ask for on top; the next leases leave it short."""
    few = {"total_steps": 2, "max_staleness": 0, "max_refill": 1, "schedule": "windowed"}
    book = LeaseBook(plan(**PLAN | few), prompt, filter_group=drop_the_first_six)
    book.start_episode(0)

    def work():
        for place in range(6):
            lease = book.next_lease("m", seconds=60.0)
            spent = {
                "made_by": "m",
                "seconds": {"generate": 1.0},
                "spans": (("generate", 1.0, 1.0),),
                "logged": {"x": 2.0},
            }
            book.deliver(replace(unlike(fulfil(lease), place), **spent), "m")
        with book.room as room:
            assert room._condition.wait_for(lambda: not book._arrived, 60.0)
        book.interrupt()

    maker = threading.Thread(target=work)
    maker.start()
    with pytest.raises(StepInterrupted):
        book.take_step()
    maker.join()
    return book, 0


def unlike(delivery, place):
    """Its first reward failed; or, every other time, all rewards are the same, and completions were cut off. All had an
    environment."""
    turns = TrajectoryFacts(
        "finished", turns=2, tool_calls=3, tool_errors=1, environment_tokens=5, environment_seconds=0.5
    )
    reason = "length" if place % 2 else "stop"
    facts = SampleFacts(finish_reason=reason, reward_logged={"y": float(place)}, trajectory=turns)
    items = [replace(item, facts=facts, reward=torch.tensor(1.0)) for item in delivery.items]
    delivery = replace(delivery, items=tuple(items))
    return delivery if place % 2 else with_item(delivery, 0, reward=None)


def drop_the_first_six(group):
    return FilteredGroup((), {"unlucky": group}) if int(group[0].group_id) < 6 else FilteredGroup(group, {})


def leases_there_are(book):
    with contextlib.suppress(WaitTimeoutError):
        while True:
            yield book.next_lease("m", seconds=0.0)


def drop_the_third(group):
    return FilteredGroup((), {"unlucky": group}) if group[0].group_id == "2" else FilteredGroup(group, {})


def rest_of(book, first, again):
    """All that a book does from there: batches, versions, what it says of them, where every sample is at the end."""
    over, batches = threading.Event(), []

    def work():
        with contextlib.suppress(LeaseFailedError):  # its version is gone; whoever waits for it says so
            while not over.is_set():
                with contextlib.suppress(WaitTimeoutError):
                    again.deliver(fulfil(again.next_lease("m", seconds=0.01)), "m")

    maker = threading.Thread(target=work)
    maker.start()
    try:
        for step in range(first, book.plan.total_steps):
            again.start_episode(step // book.plan.update_steps)
            items = again.take_step()
            again.settle(items)
            said = (again.made, again.logged, again.take_journal(), again.take_spans())
            batches.append((said, [(item.uid, item.versions.tolist()) for item in items]))
    finally:
        over.set()
        maker.join()
    again.close("over")
    return batches, again.ledger.as_dict(), again.ledger.closes


BOOK_PARTS = [
    "episode", "steps_taken", "admitted", "version_ids", "versions", "next", "consumed_ahead", "handed_out", "in_vain",
    "arrived", "groups",
    *(f"ledger.{count}" for count in ("leased", "trained", "buffered", "in_flight", "dropped")),
    *(f"ledger.tokens.{count}" for count in ("made", "buffered", "trained", "dropped")),
    "refilled", "journal", "spans",
    *(f"making.{part}" for part in ("seconds", "tokens", "makers", "samples", "without_reward", "values")),
    *(f"making.{part}" for part in ("ended", "truncated", "groups", "groups_without_variance", "reward_values")),
    *(f"making.trajectories.{part}" for part in ("count", "endings", "turns", "tool_calls", "tool_errors")),
    *(f"making.trajectories.{part}" for part in ("sampled_tokens", "environment_tokens", "environment_seconds")),
]  # fmt: skip


@pytest.mark.parametrize("part", BOOK_PARTS)
def test_without_any_part_a_lease_book_does_something_else(part):
    seen = []
    for make in (a_book_in_order, a_windowed_book, an_interrupted_book):
        book, first = make()
        kinds = {f"making.seconds.{kind}" for kind in ("generate", "score", "load", "switch", "wait")}
        dropped = {f"ledger.dropped.{reason}" for reason in ("unlucky", "stale")}
        assert set(paths_in(book.state_dict())) <= {
            *BOOK_PARTS, *dropped, *kinds, "making.values.x", "making.reward_values.y",
            "making.trajectories.endings.finished",
        }  # fmt: skip
        outcomes = []
        for change in (lambda saved: saved, emptied):
            again = LeaseBook(book.plan, prompt, filter_group=book._filter_group, wait_timeout=0.5)
            state = book.state_dict()
            put(state, part, change)
            try:
                again.load_state_dict(state)
                outcomes.append(rest_of(book, first, again))
            except (IndexError, KeyError, ValueError, WaitTimeoutError) as error:
                outcomes.append(error)
        seen.append(outcomes[0] != outcomes[1])
        assert isinstance(outcomes[0], tuple)
        assert outcomes[0][-1], "its ledger closes"
    assert any(seen)


def test_without_any_part_a_buffer_of_pushed_experience_does_something_else():
    def source():
        return PushedExperience(DetachedReplayBuffer(2, wait_timeout=0.05))

    book = LeaseBook(plan(), prompt)
    book.start_episode(0)
    first = source()
    first.extend(fulfil(book.next_lease("m")).items)
    first.settle(first.take_step("t"))
    saved = first.state_dict()
    whole, without_items, without_ledger = source(), source(), source()
    whole.load_state_dict(saved)
    without_items.load_state_dict(saved | {"items": source().state_dict()["items"]})
    without_ledger.load_state_dict(saved | {"ledger": source().ledger.as_dict()})
    assert [item.uid for item in whole.take_step("t")] == ["1/0", "1/1"]
    assert whole.ledger.as_dict() == first.ledger.as_dict() != without_ledger.ledger.as_dict()
    with pytest.raises(WaitTimeoutError):
        without_items.take_step("t")
