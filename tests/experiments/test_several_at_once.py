"""Runs at once: what is started when, what is passed on, and what ends everything."""

import os
import signal
import time
from typing import ClassVar

import pytest
from tests.experiments.small_experiment import RUN, Listener

from proa import Callback
from proa.actors.interruption import Interruption
from proa.config import ConfigError
from proa.data.results import ArmResult
from proa.errors import ProaError
from proa.experiments import Experiment, concurrent, processes
from proa.experiments.arm_run import ArmRun
from proa.experiments.plan import plan
from proa.experiments.processes import ArmProcess, run_arm

TWO_OF_EACH = {"name": "e", "runs": {"a": RUN, "b": RUN}, "n_repeats": 2, "max_concurrent_arms": 2, "base_seed": 0}


class FakeRun:
    """A run in no process at all: it ends when it is let, or interrupted."""

    started: ClassVar[list] = []

    def __init__(self, work, statuses, let):
        self.work, self.status, self.let = work, statuses.get(work.run.key, "completed"), let
        self.interrupts = 0
        FakeRun.started.append(self)

    def ended(self, seconds):
        return self.interrupts > 0 or self.let(self)

    def interrupt(self):
        self.interrupts += 1

    def outcome(self):
        status = "cancelled" if self.interrupts else self.status
        return ArmResult(self.work.run.key, self.work.run.config, status), {"seen": self.work.run.key}


@pytest.fixture
def at_once(tmp_path, monkeypatch):
    """Runs an experiment whose runs are `FakeRun`."""

    def run(let=lambda _: True, statuses=None, callbacks=(), **changes):
        FakeRun.started = []
        monkeypatch.setattr(concurrent, "ArmProcess", lambda work: FakeRun(work, statuses or {}, let))
        one = Experiment(TWO_OF_EACH | {"output_dir": str(tmp_path)} | changes)
        one._given = tuple(callbacks)
        return one

    return run


def keys():
    return [one.work.run.key for one in FakeRun.started]


def test_groups_are_told_once_and_ids_travel(at_once):
    listener = Listener()
    one = at_once(callbacks=[listener])
    one.run()
    assert sorted(line for line in listener.heard if "group" in line) == ["group_start a", "group_start b"]
    assert sorted(keys()) == ["a__s0", "a__s1", "b__s0", "b__s1"]
    assert all(one.work.ids["experiment_id"] == "e1" for one in FakeRun.started)
    assert "seen" in FakeRun.started[-1].work.ids


@pytest.mark.parametrize("at_a_time", [2, 3])
def test_so_many_run_at_once_and_no_more(at_once, at_a_time):
    going_on, most, until = set(), [], time.monotonic() + 60

    def let(one):
        going_on.add(one)
        most.append(len(going_on))
        if len(going_on) < at_a_time and len(FakeRun.started) < 4 and time.monotonic() < until:
            return False
        time.sleep(0.1)  # in which one more that may not run would show itself
        going_on.discard(one)
        return True

    at_once(let=let, max_concurrent_arms=at_a_time).run()
    assert len(FakeRun.started) == 4
    assert max(most) == at_a_time


def test_what_is_complete_is_not_started(at_once):
    one = at_once()
    one._skip_complete = lambda chain: one._arms.update({run.key: finished(run) for run in chain if "a" in run.key})
    one.run()
    assert sorted(keys()) == ["b__s0", "b__s1"]


def test_a_chain_goes_on_after_the_stages_that_are_complete(at_once):
    one = at_once(n_repeats=1, continual={"datasets": ["sort_digits", "reverse_digits"]})
    one._skip_complete = lambda chain: one._arms.update(
        {run.key: finished(run) for run in chain if "a_stage0" in run.key}
    )
    one.run()
    assert sorted(keys()) == ["a_stage1", "b_stage0", "b_stage1"]


def finished(run):
    return ArmResult(run.key, run.config, "completed")


def test_a_stage_that_fails_ends_its_chain_alone(at_once):
    stages = {"n_repeats": 1, "continual": {"datasets": ["sort_digits", "reverse_digits"]}}
    result = at_once(statuses={"a_stage0": "failed"}, **stages).run()
    assert sorted(keys()) == ["a_stage0", "b_stage0", "b_stage1"]
    assert [arm.status for arm in result.arms] == ["failed", "cancelled", "completed", "completed"]


def test_a_signal_is_passed_on_once_and_nothing_new_begins(at_once):
    sent = []

    def let(one):
        if len(FakeRun.started) == 2 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return False

    with pytest.raises(KeyboardInterrupt):
        at_once(let=let).run()
    assert len(FakeRun.started) == 2
    assert all(one.interrupts == 1 for one in FakeRun.started)


def test_the_second_signal_is_passed_on_too(at_once):
    interruption = Interruption(grace=float("inf"))
    interruption.ask("SIGINT")
    interruption.at_once = True
    chains = concurrent._Chains(at_once(), None, None, interruption)

    class Stubborn:
        interrupts = asked = 0

        def ended(self, seconds):
            self.asked += 1
            return self.interrupts == 2 or self.asked > 100

        def interrupt(self):
            self.interrupts += 1

        def outcome(self):
            return None, {}

    one = Stubborn()
    chains._wait_for_outcome(one)
    assert one.interrupts == 2


def test_a_hook_that_fails_ends_all_of_it(at_once):
    class Fails(Callback):
        def on_group_start(self, ctx, group_name):
            if group_name == "b":
                raise LookupError("no such group")

    until = time.monotonic() + 60
    with pytest.raises(LookupError, match="no such group"):
        at_once(let=lambda _: time.monotonic() > until, callbacks=[Fails()], max_concurrent_arms=3).run()
    assert not any("b" in key for key in keys())
    assert all(one.interrupts for one in FakeRun.started)


def test_no_room_for_a_process_fails_that_run(at_once, monkeypatch):
    one = at_once()

    def start(work):
        if work.run.key == "a__s0":
            raise OSError("cannot allocate memory")
        return FakeRun(work, {}, lambda _: True)

    monkeypatch.setattr(concurrent, "ArmProcess", start)
    result = one.run()
    assert [arm.status for arm in result.arms] == ["failed", "completed", "completed", "completed"]
    assert "cannot allocate memory" in result.arms[0].error


# -- processes -------------------------------------------------------------------------------------


def raises():
    raise LookupError("the factory's own error")


def planned(tmp_path, **changes):
    one = Experiment({"name": "e", "output_dir": str(tmp_path), "run": RUN, **changes})
    return one.config, plan(one.config)[0][0]


def test_what_fails_before_the_run_can_tell_is_told_by_the_process(tmp_path):
    arm, _ = run_arm(ArmRun(*planned(tmp_path), (raises,)))
    assert (arm.status, arm.error) == ("failed", "LookupError: the factory's own error")


def test_an_error_of_the_run_itself_is_told_by_the_process_too(tmp_path):
    class Broken(ArmRun):
        def carry_out(self, interruption=None):
            raise LookupError("before it could tell of itself")

    arm, _ = run_arm(Broken(*planned(tmp_path)))
    assert (arm.name, arm.status, arm.error) == ("e", "failed", "LookupError: before it could tell of itself")


class Connection:
    """The end of a pipe that pickles nothing."""

    def __init__(self, fail_first):
        self.sent, self.fail_first = [], fail_first

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def send(self, told):
        if self.fail_first:
            self.fail_first = False
            raise TypeError("cannot pickle a lock")
        self.sent.append(told)


def test_what_cannot_be_sent_stays_and_the_result_comes(tmp_path, monkeypatch):
    config, run = planned(tmp_path)
    monkeypatch.setattr(processes.os, "setsid", lambda: None)
    monkeypatch.setattr(processes, "run_arm", lambda work: (finished(run), {"logger": object()}))
    connection = Connection(fail_first=True)
    processes._child(connection, ArmRun(config, run), os.getppid())
    ((arm, ids),) = connection.sent
    assert (arm.status, ids) == ("completed", {})


def test_a_process_that_is_killed_says_by_what(tmp_path):
    process = ArmProcess(ArmRun(*planned(tmp_path, run={**RUN, "total_steps": 100_000})))
    os.kill(process._process.pid, signal.SIGKILL)
    while not process.ended(0.1):
        pass
    arm, _ = process.outcome()
    assert (arm.status, arm.error) == ("failed", "its process ended by signal 9")


def test_what_was_said_just_before_the_end_counts(tmp_path):
    process = ArmProcess.__new__(ArmProcess)

    class Pipe:
        def poll(self, seconds=0.0):
            return True

        def recv(self):
            return ("arm", {})

    process._outcome, process._here, process._interrupted = None, Pipe(), False
    assert process.outcome() == ("arm", {})


def test_what_cannot_travel_is_refused_at_once(tmp_path):
    with pytest.raises(ProaError, match="cannot be sent there"):
        Experiment(TWO_OF_EACH | {"output_dir": str(tmp_path)}, [lambda: Listener()])
    with pytest.raises(ConfigError, match="give a factory"):
        Experiment(TWO_OF_EACH | {"output_dir": str(tmp_path)}, [Listener()])
