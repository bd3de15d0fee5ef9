import itertools
import json
import random
import shutil
import threading
import time

import pytest
from tests.chaos.killed_runs import DETACHED, SUPERVISED

from proa import CallbackManager, MakerCallback
from proa.config import ConfigError
from proa.recipes import grpo, sft
from proa.record.checkpoints import CheckpointManager
from proa.record.journal import Journal
from proa.run.replay import replay

WINDOWED = DETACHED | {
    "schedule": "windowed", "makers": 3, "total_steps": 6, "eval": [], "lease_prompts": 1,
    "reward": {"functions": ["tests.chaos.replay_rewards:telling"], "workers": 0},
}  # fmt: skip


class RandomDelays(MakerCallback):
    """Has leases come back in another order each time; the first maker is overtaken in any case."""

    def __init__(self, seed, sent, is_first):
        self._random = random.Random(seed)
        self._sent, self._is_overtaken = sent, is_first

    def on_make_experience_start(self):
        if self._is_overtaken:
            self._is_overtaken = False
            # One of the first three leases, overtaken by more than a step has: it is trained on in a later one.
            for _ in range(5):
                assert self._sent.acquire(timeout=600)
        time.sleep(self._random.random() * 0.02)

    def on_send_end(self):
        self._sent.release()


def digest(folder):
    return json.loads((folder / "run.json").read_text())["weights_digest"]


def order(folder):
    return [entry["lease"] for entry in Journal(folder).read() if entry["kind"] == "lease"]


def make(tmp_path, **changes):
    makers, sent = itertools.count(), threading.Semaphore(0)

    def delays():
        number = next(makers)
        return RandomDelays(number, sent, is_first=number == 0)

    grpo(**(WINDOWED | changes), output_dir=tmp_path, name="run", callbacks=[delays])
    return tmp_path / "run"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A windowed run with random delays; to be copied."""
    return make(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def windowed(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "run")


def test_a_windowed_run_with_random_delays_is_replayed_to_the_same_bits(windowed):
    assert len(set(order(windowed))) == 24  # not always the first 24: one that comes too late is too stale
    assert sorted(order(windowed)) != order(windowed)
    outcome = replay(windowed)
    assert outcome.same
    assert [one.step for one in outcome.compared] == [1, 2, 3, 4, 5, 6]
    assert digest(outcome.folder) == digest(windowed)
    assert order(outcome.folder) == order(windowed)


def test_without_its_journal_the_run_comes_out_otherwise(windowed):
    """Else the test before would show nothing."""
    in_order = [{"kind": "lease", "step": 0, "lease": lease} for lease in sorted(order(windowed))]
    (windowed / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in in_order))
    assert not replay(windowed).same


def test_a_replay_ends_at_the_step_one_wants_to_look_at(windowed, tmp_path):
    outcome = replay(windowed, until=3, into=tmp_path / "look")
    assert (outcome.state.global_step, outcome.same) == (3, True)
    assert CheckpointManager(tmp_path / "look").final().step == 3


def test_a_full_buffer_does_not_hold_back_what_a_replay_waits_for(tmp_path):
    assert replay(make(tmp_path, buffer_limit=1, max_staleness=2)).same


def test_a_stop_is_repeated_at_its_step(tmp_path):
    def stop(state):
        if state.global_step == 4:
            state.stop_training("enough")

    manager = CallbackManager()
    manager.on("step_end")(stop)
    grpo(**WINDOWED, output_dir=tmp_path, name="run", callbacks=manager)
    outcome = replay(tmp_path / "run")
    assert (outcome.state.global_step, outcome.same) == (4, True)


def test_a_run_that_was_resumed_is_replayed_as_one(tmp_path):
    class Killed(BaseException):
        pass

    def die(state):
        if state.global_step == 4:
            raise Killed

    manager = CallbackManager()
    manager.on("step_end")(die)
    with pytest.raises(Killed):
        grpo(**WINDOWED, output_dir=tmp_path, name="run", callbacks=manager)
    grpo(**WINDOWED, output_dir=tmp_path, name="run", resume="auto")
    assert len(order(tmp_path / "run")) == 24
    assert replay(tmp_path / "run").same


def test_rewards_that_could_not_be_had_are_missing_again(tmp_path):
    settings = DETACHED | {"reward": {"functions": ["tests.chaos.replay_rewards.flaky"], "workers": 0}, "eval": []}
    random.seed(5)
    grpo(**settings, output_dir=tmp_path, name="run")
    failed = [entry["uid"] for entry in Journal(tmp_path / "run").read() if entry["kind"] == "reward"]
    assert failed
    random.seed(6)
    outcome = replay(tmp_path / "run", flags=["--reward.functions", "[tests.chaos.replay_rewards.steady]"])
    assert outcome.same


def test_a_supervised_run_is_replayed_too(tmp_path):
    sft(**SUPERVISED, output_dir=tmp_path, name="run")
    assert replay(tmp_path / "run").same


def test_a_step_that_the_record_does_not_have_is_refused(windowed):
    with pytest.raises(ConfigError, match="has steps 1 to 6"):
        replay(windowed, until=7)
