"""Things go wrong: each has a clear outcome within its deadline, and the ledger closes."""

import threading
import time

import pytest
from tests.runtime.small_run import SmallRun, failing_once, hanging_once

from proa import MakerCallback
from proa.errors import NothingToTrainOnError
from proa.rewards import InlineRewards, RewardWorkers
from proa.runtime.supervisor import Limits, RunFailedError


def raising(maker):
    def step():
        raise RuntimeError("no such kernel")

    maker.engine.step = step


def test_a_lease_that_every_maker_fails_on_ends_the_run_with_the_cause(caplog):
    run = SmallRun()
    with pytest.raises(RunFailedError, match="failed on lease .*: no such kernel") as raised:
        run.run(2, disturb=raising)
    assert "no such kernel" in str(raised.value.__cause__)
    assert run.book.ledger.closes


def test_lost_and_recreated_makers_are_announced(caplog):
    run = SmallRun()
    events = []
    run.manager.on("maker.lost")(lambda maker, reason: events.append(("lost", maker)))
    run.manager.on("maker.recreated")(lambda maker, reason: events.append(("recreated", maker)))

    def explode():
        raise RuntimeError("once")

    run.run(1, disturb=failing_once(2, explode))
    assert events == [("lost", "maker_0"), ("recreated", "maker_0+1")]


def test_a_run_without_progress_names_everyone_who_waits_once():
    run = SmallRun()

    def fit(*_):
        with run.book.room as room:
            while len(room._waits) < 2:  # the makers; nothing is admitted
                room._condition.wait(0.01)
            room.wait_until(lambda: False, owner="the trainer", reason="a lease", timeout=0.0)

    run.trainer.fit = fit
    with pytest.raises(RunFailedError, match="no progress: the trainer has waited") as raised:
        run.run(2)
    assert [str(raised.value).count(f"maker_{number} has waited") for number in range(2)] == [1, 1]


def test_makers_that_all_hang_end_the_run_with_who_waited_for_whom(caplog, monkeypatch):
    monkeypatch.setattr("proa.runtime.local.GOODBYE_SECONDS", 0.1)  # nobody who hangs says it
    run = SmallRun(wait_timeout=0.3)
    all_hang, over = threading.Barrier(3), threading.Event()

    def hang(*_):
        all_hang.wait(60.0)
        over.wait(60.0)

    def take_step(*args):
        all_hang.wait(60.0)  # only now may the trainer lose its patience
        return take(*args)

    take, run.trainer.source.take_step = run.trainer.source.take_step, take_step
    try:
        with pytest.raises(RunFailedError, match=r"the trainer has waited .* for lease 0, which maker_\d has"):
            run.run(2, disturb=lambda maker: setattr(maker.engine, "step", hang))
    finally:
        over.set()
    assert run.book.ledger.closes


def test_a_maker_that_delivers_garbage_is_replaced_and_the_garbage_refused(caplog):
    run, lost = SmallRun(total_steps=2), []
    run.manager.on("maker.lost")(lambda maker, reason: lost.append(maker))

    def short(maker):
        experience = maker._experience
        if maker.name == "maker_0":
            maker._experience = lambda samples: experience(samples)[:-1]

    assert run.run(1, disturb=short) == SmallRun(total_steps=2).run()
    assert lost == ["maker_0"]


def test_damaged_weights_are_never_loaded(caplog):
    run = SmallRun()
    run.store._versions[0].tensors["lm_head.weight"].view(-1)[0] += 1.0
    with pytest.raises(RunFailedError, match="version 0 were damaged"):
        run.run(1)


def test_a_failing_maker_callback_ends_the_run_naming_it(caplog):
    class Broken(MakerCallback):
        def on_make_experience_start(self):
            raise ValueError("my bug")

    run = SmallRun()
    callback = Broken()

    def add(maker):
        maker.manager.add(callback)

    with pytest.raises(RunFailedError, match="my bug") as raised:
        run.run(1, disturb=add)
    assert "in callback Broken.on_make_experience_start" in raised.value.__cause__.__notes__[0]


def test_maker_hooks_fire_in_the_documented_order():
    heard = []

    class Listener(MakerCallback):
        thread_safe = True

    for hook in MakerCallback.hooks:
        setattr(Listener, hook, lambda self, *_, hook=hook: heard.append(hook.removeprefix("on_")))
    run = SmallRun(total_steps=1)
    listener = Listener()
    run.run(1, disturb=lambda maker: maker.manager.add(listener))
    batch = [
        "batch_start", "make_experience_start", "make_experience_end", "send_start", "send_end", "batch_end",
    ]  # fmt: skip
    assert heard == ["loop_start", "weights_loaded", *batch * 4, "loop_end"]


def rewards_that(kind):
    def reward(prompts, completions, **_):
        if kind == "raises":
            raise ValueError("no answer column")
        if kind == "nan":
            return [float("nan")] * len(prompts)
        if kind == "none":
            return [None] * len(prompts)
        if kind == "wrong count":
            return [0.0] * (len(prompts) + 1)
        return [float(len(c)) if i % 4 else None for i, c in enumerate(completions)]

    return reward


@pytest.mark.parametrize("kind", ["raises", "nan", "none", "wrong count"])
def test_rewards_that_fail_for_every_sample_train_nothing_and_are_counted(kind, caplog):
    run = SmallRun(total_steps=1, scorer=InlineRewards(rewards_that(kind)))
    before = run.digest
    with pytest.raises(NothingToTrainOnError, match="samples had no usable reward, the first because"):
        run.run(1)
    assert run.digest == before, "a missing reward is not 0: there is nothing to learn from"
    assert run.trainer.state.metrics["skipped"] == 1.0
    assert run.book.ledger.trained == 0
    assert sum(run.book.ledger.dropped.values()) == run.book.ledger.leased
    assert "nothing to train on" in caplog.text


def test_samples_without_a_reward_are_left_out_and_the_others_trained():
    run = SmallRun(total_steps=1, scorer=InlineRewards(rewards_that("some")))
    run.run(1)
    ledger = run.book.ledger.as_dict()
    assert (ledger["trained"], ledger["dropped"]) == (12, {"reward_failed": 4})


def hang(prompts, completions, **columns):
    time.sleep(60)


@pytest.mark.prove
def test_a_reward_that_hangs_is_cut_off_by_its_deadline():
    with RewardWorkers("tests.runtime.test_faults:hang", timeout=0.5) as scorer:
        # Each sample that hangs costs a worker, and on a busy machine a new one takes seconds to come up.
        run = SmallRun(total_steps=1, max_refill=0, scorer=scorer, wait_timeout=600.0)
        with pytest.raises(NothingToTrainOnError, match="'hang' timed out after"):
            run.run(1)
    assert run.book.ledger.trained == 0


def test_a_group_of_one_teaches_nothing_and_is_dropped():
    run = SmallRun(total_steps=1, max_refill=0, scorer=InlineRewards(_only_the_first))
    with pytest.raises(NothingToTrainOnError):
        run.run(1)
    assert run.book.ledger.dropped == {"reward_failed": 12, "group_too_small": 4}


def _only_the_first(prompts, completions, **_):
    return [1.0 if i % 4 == 0 else None for i in range(len(prompts))]


def test_a_maker_that_was_replaced_is_dismissed_so_that_it_cannot_go_on_unlisted(caplog):
    run, limits = SmallRun(), Limits()
    lost = []
    run.manager.on("maker.lost")(lambda maker, reason: lost.append((maker, maker in run.book._dismissed)))
    run.run(2, disturb=hanging_once(run, 1, limits), limits=limits)
    assert lost
    assert all(dismissed for _, dismissed in lost)
