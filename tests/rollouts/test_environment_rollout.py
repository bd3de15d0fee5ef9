"""Trajectories: what is trained is what was sampled, endings are true, and nobody's slowness changes a bit."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.made_up import MadeUpEngine
from tests.rollouts.talking import (
    CHATML,
    END,
    ENDS,
    FORGETS_THOUGHTS,
    InProcess,
    Repeats,
    byte_model,
    byte_tokenizer,
)

from proa.data.facts import TrajectoryFacts
from proa.data.lease import Prompt
from proa.data.sampling import Completion, Sampling
from proa.engines import build_engine
from proa.environments import Start, Step
from proa.environments.failures import EnvironmentFailed, WorkerLostError
from proa.rewards import InlineRewards
from proa.rollouts import Progress, SingleTurn, VersionedEngine, environment_rollout
from proa.rollouts.conversation import Conversations
from proa.rollouts.environment_rollout import EnvironmentRollout, Limits, turn_seed
from proa.rollouts.sample import Sample, Turn

PROMPT = Prompt(3, (), [{"role": "user", "content": "2+2?"}], {"answer": "4"})
SAMPLING = Sampling(group_size=2, max_new_tokens=8)


def engine_of(kind="native", ends=(END,)):
    model = byte_model()
    engine = VersionedEngine(build_engine(kind, model, end_ids=ends))
    engine.load(model.state_dict(), 0)
    return engine


def rollout(environments, *, template=CHATML, ends=(END,), sampling=SAMPLING, limits=None, **more):
    words = Conversations(byte_tokenizer(template), ends)
    limits = limits or Limits(max_turns=6, max_tokens=400)
    return EnvironmentRollout(words, sampling, environments, limits=limits, **more)


def run(engine, environments, prompts=(PROMPT,), seeds=((1, 2),), **more):
    return rollout(environments, **more).run(engine, prompts, seeds, Progress("a test"))


def said(sample):
    """All that was sampled, with its bits."""
    return [(turn.prompt, turn.completion.tokens.tolist(), turn.completion.log_probs.tolist()) for turn in sample.turns]


# -- what is trained ---------------------------------------------------------------------------------


def test_a_single_turn_is_what_it_is_without_an_environment_bit_for_bit():
    tokenizer = byte_tokenizer()
    tokens = Conversations(tokenizer, (END,)).prompt(PROMPT.text)
    engine = engine_of()
    plain = SingleTurn(tokenizer, SAMPLING).run(engine, [replace(PROMPT, tokens=tokens)], [(1, 2)], Progress("a test"))
    made = run(engine, InProcess(lambda: Repeats(0)))
    assert [said(sample) for sample in made] == [said(sample) for sample in plain]
    rows = [row for sample in made for row in sample.rows(SAMPLING)]
    for row, expected in zip(rows, (row for sample in plain for row in sample.rows(SAMPLING)), strict=True):
        assert torch.equal(row.sequences, expected.sequences)
        assert torch.equal(row.action_mask, expected.action_mask)


class Scripted(MadeUpEngine):
    """Says given things, whatever it is asked."""

    context_length = 100_000

    def __init__(self, *replies):
        super().__init__()
        self.replies, self.asked = list(replies), []

    def submit(self, request):
        self.asked.append(request)
        super().submit(request)

    def tokens(self, request):
        return self.replies.pop(0)


def scripted(*texts, ends=True):
    tokenizer = byte_tokenizer()
    replies = [
        ((*tokenizer.encode(text, add_special_tokens=False), END), "stop") if ends else
        (tuple(tokenizer.encode(text, add_special_tokens=False)), "length")
        for text in texts
    ]  # fmt: skip
    return VersionedEngine(Scripted(*replies))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.text(max_size=6), st.booleans(), st.sampled_from(["user", "tool"])), min_size=1, max_size=5),
    st.sampled_from([CHATML, FORGETS_THOUGHTS, None]),
)
def test_what_is_trained_is_exactly_what_was_sampled_each_token_once(turns, template):
    """Whatever the template does to what was said before."""
    texts = [
        f"<think>{text}</think>{place}" if thinks else f"{text}{place}" for place, (text, thinks, _) in enumerate(turns)
    ]
    engine = scripted(*texts)
    engine.load({}, 0)
    roles = [role for _, _, role in turns]

    class Answers(Repeats):
        def step(self, message):
            role = roles.pop(0)
            return Step([{"role": role, "content": "on"}], done=not roles)

    [sample] = run(engine, InProcess(Answers), seeds=((1,),), template=template, limits=Limits(9, 90_000))
    tokenizer = byte_tokenizer()
    expected = [[*tokenizer.encode(text, add_special_tokens=False), END] for text in texts]
    trained = [
        token for row in sample.rows(SAMPLING) for token in row.sequences[row.prompt_length :][row.action_mask].tolist()
    ]
    assert trained == [token for turn in expected for token in turn]
    for turn, request in zip(sample.turns, engine.engine.asked, strict=True):
        assert turn.prompt[-len(request.tokens) :] == request.tokens
    forks, thought = 0, False
    for _, thinks, role in turns[:-1]:
        thought = thought or thinks
        if template is FORGETS_THOUGHTS and role == "user" and thought:
            forks, thought = forks + 1, False
    assert len(sample.rows(SAMPLING)) == 1 + forks


def test_turns_of_two_conversations_join_the_row_that_they_continue_and_know_their_place_in_time():
    """An agent may talk to the model about two things at once."""

    def turn(prompt, said):
        return Turn(prompt, Completion(torch.tensor(said), torch.zeros(len(said)), "stop"), 3, "")

    turns = (turn((1,), [2, 3]), turn((7, 8), [9]), turn((1, 2, 3, 4), [5]))
    sample = Sample(PROMPT, 0, 1, turns, facts=TrajectoryFacts("finished"))
    other, ended_in = sample.rows(SAMPLING)
    assert (other.sequences.tolist(), other.turns.tolist()) == ([7, 8, 9], [1])
    assert ended_in.sequences.tolist() == [1, 2, 3, 4, 5]
    assert ended_in.action_mask.tolist() == [True, True, False, True]
    assert ended_in.turns[ended_in.action_mask].tolist() == [0, 0, 2]
    assert ended_in.facts.trajectory is sample.facts


SOME = st.lists(st.integers(1, 3), max_size=3)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(-1, 5), SOME, SOME, st.integers(1, 3)), min_size=1, max_size=7))
def test_whatever_an_agent_asks_each_sampled_token_is_in_one_row_after_all_that_it_was_sampled_after(asked):
    """A turn goes on from any earlier one, from the middle of it, or from nothing; several may ask the same."""
    turns, scores = [], iter(range(1, 100))
    for place, (before, more, rest, count) in enumerate(asked):
        base = turns[before].tokens if 0 <= before < place else ()
        prompt = (*base[: len(base) - len(rest)], *more, 1) if rest and before % 2 else (*base, *more, 1)
        log_probs = torch.tensor([-float(next(scores)) for _ in range(count)])  # which say whose token it is
        turns.append(Turn(prompt, Completion(torch.full((count,), 1 + place % 3), log_probs, "stop"), place, ""))
    sample = Sample(PROMPT, 0, 1, tuple(turns), facts=TrajectoryFacts("finished", turns=len(turns)))
    found = {}
    for row in sample.rows(SAMPLING):
        tokens = row.sequences.tolist()
        for at in row.action_mask.nonzero().flatten().tolist():
            end = row.prompt_length + at
            score = float(row.action_log_probs[at])
            assert score not in found
            found[score] = (tuple(tokens[:end]), tokens[end], int(row.versions[at]))
    expected = {
        score: (turn.tokens[: len(turn.prompt) + place], turn.tokens[len(turn.prompt) + place], turn.version)
        for turn in turns
        for place, score in enumerate(turn.completion.log_probs.tolist())
    }
    assert found == expected
    assert [row.facts.trajectory is not None for row in sample.rows(SAMPLING)].count(True) == 1


def test_what_the_environment_said_is_in_the_row_masked_and_of_no_version():
    engine = scripted("4", "6")
    engine.load({}, 7)
    [sample] = run(engine, InProcess(lambda: Repeats(1)), seeds=((1,),))
    [row] = sample.rows(SAMPLING)
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(row.sequences[row.prompt_length :]) == (
        "4<|im_end|>\n<|im_start|>user\nheard: 4<|im_end|>\n<|im_start|>assistant\n6<|im_end|>"
    )
    assert tokenizer.decode(row.sequences[row.prompt_length :][row.action_mask]) == "4<|im_end|>6<|im_end|>"
    assert set(row.versions[row.action_mask].tolist()) == {7}
    assert set(row.versions[~row.action_mask].tolist()) == {-1}
    assert row.facts.trajectory.environment_tokens == int((~row.action_mask).sum())


def test_rewards_of_turns_are_at_their_last_tokens_and_add_up():
    engine = scripted("4", "6", "8")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(lambda: Repeats(2, rewards=[0.25, None, 1.0])), seeds=((1,),))
    [row] = sample.rows(SAMPLING)
    assert row.turn_rewards[row.turn_rewards != 0].tolist() == [0.25, 1.0]
    assert float(row.reward) == 1.25
    assert row.turn_rewards[-1] == 1.0


# -- the engine --------------------------------------------------------------------------------------


class Dawdles(Repeats):
    """Takes its time, another each time."""

    random = random.Random(0)

    async def step(self, message):
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(self.random.random() / 200)
        return super().step(message)


PROMPTS = tuple(Prompt(place, (), [{"role": "user", "content": f"{place}+{place}?"}], {}) for place in range(3))
SEEDS = ((1, 2), (3, 4), (5, 6))
LONGER = Limits(max_turns=4, max_tokens=400)


def test_nobodys_slowness_changes_a_bit_nor_what_else_is_decoded():
    stops = Sampling(group_size=2, max_new_tokens=40, stop=tuple("aeiou "))

    def make(environment, **among):
        made = run(engine_of(), InProcess(environment), sampling=stops, limits=LONGER, **among)
        return {sample.uid: said(sample) for sample in made}

    alone = {}
    for prompt, seeds in zip(PROMPTS, SEEDS, strict=True):
        alone |= make(lambda: Repeats(3), prompts=(prompt,), seeds=(seeds,))
    assert make(lambda: Dawdles(3), prompts=PROMPTS, seeds=SEEDS) == alone
    assert max(map(len, alone.values())) > 1


def test_turns_go_on_from_the_cache_and_have_the_log_probs_of_the_whole_text():
    engine, model = engine_of(ends=ENDS), byte_model()
    made = run(
        engine, InProcess(lambda: Repeats(3)), PROMPTS, SEEDS, template=None, ends=ENDS, sampling=Sampling(2, 60),
        limits=LONGER,
    )  # fmt: skip
    assert max(len(sample.turns) for sample in made) > 2
    for sample in made:
        for row in sample.rows(SAMPLING):
            with torch.no_grad():
                logits = model(row.sequences[None], use_cache=False).logits[0, row.prompt_length - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, row.sequences[row.prompt_length :, None])[:, 0]
            mask = row.action_mask
            torch.testing.assert_close(row.action_log_probs[mask], expected[mask], atol=1.2e-4, rtol=0)
    for version in (1, 2, 3):  # nothing is kept that would need the old weights
        engine.load(model.state_dict(), version)


def test_an_engine_that_is_not_independent_gives_all_trajectories_their_turns_together():
    def make(environment):
        made = run(
            engine_of("hf", ENDS), InProcess(environment), PROMPTS, SEEDS, template=None, ends=ENDS,
            sampling=Sampling(2, 30), limits=LONGER,
        )  # fmt: skip
        return [said(sample) for sample in made]

    assert make(lambda: Dawdles(3)) == make(lambda: Repeats(3))


def test_those_of_a_prompt_ask_for_their_first_turns_together_and_wait_for_none_that_cannot_begin():
    begun, seen = [], []

    class BeginsLate(Repeats):
        async def reset(self, row, *, seed):
            await asyncio.sleep(0.02 * len(begun))
            begun.append(row["prompt"][0]["content"])
            if len(begun) == 2:
                raise EnvironmentFailed("no room")
            return super().reset(row, seed=seed)

    class Watched(Scripted):
        def submit(self, request):
            seen.append(len(begun))
            super().submit(request)

    replies = [((7, END), "stop")] * 3
    engine = VersionedEngine(Watched(*replies))
    engine.load({}, 0)
    made = run(engine, InProcess(lambda: BeginsLate(0, rewards=[1])), seeds=((1, 2, 3, 4),))
    assert [ending for ending, _ in endings(made)].count("finished") == 3
    assert seen == [4, 4, 4]


# -- endings -----------------------------------------------------------------------------------------


def endings(samples):
    return [(sample.facts.ending, sample.score.value) for sample in samples]


def test_it_ends_when_the_environment_says_so_or_turns_or_tokens_run_out():
    engine = scripted("a", "b", "c")
    engine.load({}, 0)
    assert endings(run(engine, InProcess(lambda: Repeats(1, rewards=[1, 2])), seeds=((1,),))) == [("finished", 3.0)]
    engine = scripted("a", "b", "c")
    engine.load({}, 0)
    few = run(engine, InProcess(lambda: Repeats(9, rewards=[0.5])), seeds=((1,),), limits=Limits(2, 400))
    assert endings(few) == [("max_turns", 0.5)]
    engine = scripted("abc", ends=False)
    engine.load({}, 0)
    assert endings(run(engine, InProcess(lambda: Repeats(9)), seeds=((1,),))) == [("token_limit", 0.0)]
    engine = scripted("a", "b", "c")
    engine.load({}, 0)
    short = run(engine, InProcess(lambda: Repeats(9)), seeds=((1,),), limits=Limits(9, 60))
    assert endings(short) == [("token_limit", 0.0)]
    assert len(short[0].turns[-1].tokens) <= 60


def test_an_environment_that_rewards_the_whole_does_so_though_the_policy_ran_out_of_turns():
    class Whole(Repeats):
        final = 0.75

    engine = scripted("a", "b")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(lambda: Whole(9)), seeds=((1,),), limits=Limits(2, 400))
    assert endings([sample]) == [("max_turns", 0.75)]
    assert [turn.reward for turn in sample.turns] == [None, 0.75]


def test_a_trajectory_that_its_environment_ended_without_a_reward_has_none():
    engine = scripted("a")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(lambda: Repeats(0)), seeds=((1,),))
    [row] = sample.rows(SAMPLING)
    assert row.reward is None
    assert "ended it without a reward" in row.facts.reward_error


def test_a_first_prompt_that_is_too_long_is_said_and_not_rewarded():
    engine = scripted()
    engine.load({}, 0)
    [sample] = run(engine, InProcess(lambda: Repeats(0)), seeds=((1,),), limits=Limits(9, 10))
    [row] = sample.rows(SAMPLING)
    assert (row.action_length, row.reward) == (0, None)
    assert "first prompt has 23 tokens, and the limit is 10" in row.facts.reward_error


class Fails(Repeats):
    def step(self, message):
        raise EnvironmentFailed("the tool 'search' did not answer within 5 s")


def test_an_environment_that_cannot_answer_costs_its_own_trajectory_alone_and_no_reward_of_0():
    ours = iter([Fails(), Repeats(0, rewards=[1.0])])
    engine = scripted("a", "b")
    engine.load({}, 0)
    environments = InProcess(lambda: next(ours))
    made = run(engine, environments)
    assert endings(made) == [("tool_failed", None), ("finished", 1.0)]
    [row] = made[0].rows(SAMPLING)
    assert (row.facts.reward_failure, row.facts.reward_error) == (
        "tool_failed", "the tool 'search' did not answer within 5 s",
    )  # fmt: skip
    assert environments.closed == 2


class HasNoRoom(Repeats):
    def reset(self, row, *, seed):
        raise EnvironmentFailed("no room")


def test_an_environment_that_could_not_begin_is_not_asked_again_where_the_run_is_repeated():
    engine = scripted()
    engine.load({}, 0)
    [sample] = run(engine, InProcess(HasNoRoom, deterministic=False), seeds=((1,),))
    assert sample.facts.answers == ({"failed": "no room"},)
    environments = InProcess(Repeats, deterministic=False)
    [again] = run(engine, environments, seeds=((1,),), recorded={sample.uid: sample.facts.answers})
    assert (again.facts, again.error, environments.begun) == (sample.facts, sample.error, [])


class NeverAnswers(Repeats):
    async def step(self, message):
        await asyncio.get_running_loop().create_future()


def test_a_trajectory_has_a_deadline_and_what_was_said_until_then_is_known():
    engine = scripted("a")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(NeverAnswers), seeds=((1,),), limits=Limits(9, 400, seconds=0.2))
    assert endings([sample]) == [("timed_out", None)]
    assert "more than 0.2 s (environment.trajectory_timeout)" in sample.error
    assert sample.text == "a"


def test_a_trajectory_whose_worker_is_lost_begins_again_and_becomes_the_same():
    lost = []

    class Lost(Repeats):
        def step(self, message):
            if len(lost) < 2:
                lost.append(message)
                raise WorkerLostError("the worker was killed", len(lost) == 2)
            return super().step(message)

    options = {"template": None, "ends": ENDS, "sampling": Sampling(2, 60)}
    expected = run(engine_of(ends=ENDS), InProcess(lambda: Repeats(1, rewards=[1, 1])), **options)
    environments = InProcess(lambda: Lost(1, rewards=[1, 1]))
    again = run(engine_of(ends=ENDS), environments, **options)
    assert [said(sample) for sample in again] == [said(sample) for sample in expected]
    assert [alone for _, _, alone in environments.begun].count(True) == 1
    assert len(environments.begun) == environments.closed == 4


def test_waiting_for_a_worker_of_its_own_does_not_count_towards_its_deadline(monkeypatch):
    deadlines, seen = [], []

    class Lost(Repeats):
        def reset(self, row, *, seed):
            seen.append(deadlines[-1].when() is not None)
            return super().reset(row, seed=seed)

        def step(self, message):
            if len(seen) == 1:
                raise WorkerLostError("the worker was killed", was_calling=True)
            seen.append(deadlines[-1].when() is not None)
            return super().step(message)

    def timeout(seconds, make=asyncio.timeout):
        deadlines.append(make(seconds))
        return deadlines[-1]

    monkeypatch.setattr(environment_rollout.asyncio, "timeout", timeout)
    engine = scripted(*"aaa")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(lambda: Lost(0, rewards=[1])), seeds=((1,),))
    assert sample.facts.ending == "finished"
    assert seen == [True, False, True]


def test_a_worker_that_is_lost_again_and_again_ends_the_trajectory():
    class Kills(Repeats):
        def step(self, message):
            raise WorkerLostError("its worker died (exit code 1)", True)

    engine = scripted(*"aaa")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(Kills), seeds=((1,),))
    assert sample.facts.ending == "tool_failed"
    assert sample.error == "its worker died (exit code 1) (tried 3 times)"


def test_a_grader_that_raises_is_an_ending_of_its_own():
    def grader(completions):
        raise ValueError("no such answer")

    engine = scripted("a")
    engine.load({}, 0)
    [sample] = run(engine, InProcess(lambda: Repeats(0)), seeds=((1,),), scorer=InlineRewards(grader))
    [row] = sample.rows(SAMPLING)
    assert (row.reward, row.facts.trajectory.ending, row.facts.reward_failure) == (
        None,
        "grader_failed",
        "grader_failed",
    )
    assert "no such answer" in row.facts.reward_error


def test_graders_read_all_messages_after_the_prompt_and_what_the_environment_gave_is_added():
    heard = []

    def grader(prompts, completions, answer):
        heard.extend(completions)
        return [0.5 * len(answer)] * len(completions)

    engine = scripted("4", "5")
    engine.load({}, 0)
    environments = InProcess(lambda: Repeats(1, rewards=[0.25, 1]))
    [sample] = run(engine, environments, seeds=((1,),), scorer=InlineRewards(grader))
    assert [message["role"] for message in heard[0]] == ["assistant", "user", "assistant"]
    assert (sample.score.value, sample.score.parts) == (1.75, {"grader": 0.5, "environment": 1.25})


def test_a_mistake_in_the_environments_messages_ends_the_run_and_says_so():
    class Strange(Repeats):
        def reset(self, row, *, seed):
            return Start([{"role": "user", "content": "x"}])

        def step(self, message):
            return Step([{"role": "user", "content": [{"type": "image"}]}])

    engine = scripted("a")
    engine.load({}, 0)
    with pytest.raises(Exception, match="list of parts, which the tokenizer's chat template does not support"):
        run(engine, InProcess(Strange), seeds=((1,),))


def test_seeds_of_turns_differ_and_those_of_environments_are_their_groups():
    assert len({turn_seed(5, turn) for turn in range(100)}) == 100
    engine = scripted("a", "b", "c", "d")
    engine.load({}, 0)
    environments = InProcess(lambda: Repeats(0, rewards=[1]))
    run(engine, environments, prompts=PROMPTS[:2], seeds=SEEDS[:2])
    assert [row["prompt"][0]["content"] for row, _, _ in environments.begun] == ["0+0?", "0+0?", "1+1?", "1+1?"]
    seeds = [seed for _, seed, _ in environments.begun]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
