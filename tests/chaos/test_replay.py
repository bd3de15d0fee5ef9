import itertools
import json
import random
import time

import pytest
from tests.chaos.killed_runs import DETACHED, SUPERVISED

from proa import CallbackManager, MakerCallback
from proa.config import ConfigError
from proa.recipes import grpo, sft
from proa.recipes.replaying import replay
from proa.record.checkpoints import CheckpointManager
from proa.record.journal import Journal

WINDOWED = DETACHED | {"schedule": "windowed", "makers": 3, "total_steps": 6, "eval": [], "lease_prompts": 1}


class RandomDelays(MakerCallback):
    """Has leases come back in another order each time."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def on_make_experience_start(self):
        time.sleep(self._random.random() * 0.05)


def digest(folder):
    return json.loads((folder / "run.json").read_text())["weights_digest"]


def order(folder):
    return [entry["lease"] for entry in Journal(folder).read() if entry["kind"] == "lease"]


def make(tmp_path, seed=1, **changes):
    seeds = itertools.count(seed)  # each maker has delays of its own
    grpo(**(WINDOWED | changes), output_dir=tmp_path, name="run", callbacks=[lambda: RandomDelays(next(seeds))])
    return tmp_path / "run"


def test_a_windowed_run_with_random_delays_is_replayed_to_the_same_bits(tmp_path):
    folder = make(tmp_path)
    assert len(set(order(folder))) == 24  # not always the first 24: one that comes too late is too stale
    assert sorted(order(folder)) != order(folder)
    outcome = replay(folder)
    assert outcome.same
    assert [one.step for one in outcome.compared] == [1, 2, 3, 4, 5, 6]
    assert digest(outcome.folder) == digest(folder)
    assert order(outcome.folder) == order(folder)


def test_without_its_journal_the_run_comes_out_otherwise(tmp_path):
    """Else the test before would show nothing."""
    folder = make(tmp_path)
    in_order = [{"kind": "lease", "step": 0, "lease": lease} for lease in sorted(order(folder))]
    (folder / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in in_order))
    assert not replay(folder).same


def test_a_replay_ends_at_the_step_one_wants_to_look_at(tmp_path):
    folder = make(tmp_path)
    outcome = replay(folder, until=3, into=tmp_path / "look")
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


def test_a_step_that_the_record_does_not_have_is_refused(tmp_path):
    folder = make(tmp_path)
    with pytest.raises(ConfigError, match="has steps 1 to 6"):
        replay(folder, until=7)
