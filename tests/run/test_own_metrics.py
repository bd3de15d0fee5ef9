"""Metrics of one's own in whole runs: in the record once, with a checkpoint in between too; `batch` in RL."""

import json

import pytest
from tests.small import DETACHED

from proa import Callback, Experience, MakerCallback, TrainerCallback
from proa.recipes import grpo, sft
from proa.record.reading import read_run


def rows(folder):
    """The metrics that hooks of the classes below log, by row."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if name == "step" or name.startswith("my.")}
        for row in lines
        if any(name.startswith("my.") for name in row)
    ]


class Logs(Callback):
    def on_train_start(self, state):
        state.log("my.start", 1)

    def on_step_end(self, state, step_idx, batch, metrics):
        state.log("my.step", step_idx)
        metrics["my.added"] = step_idx

    def on_checkpoint(self, state, row):
        state.log("my.checkpoint", row.step)

    def on_train_end(self, state, artifacts):
        state.log("my.end", state.global_step)


class LogsInTrainer(TrainerCallback):
    def on_gradients_ready(self, gradients):
        self.log("my.parameters", len(gradients))

    def on_update_end(self):
        self.log("my.update", 1)


class LogsInMaker(MakerCallback):
    def on_make_experience_end(self, experience):
        self.log("my.samples", len(experience))


WHOLE = [
    {"step": 0, "my.start": 1, "my.samples": 2.0, "my.parameters": 12},
    {"step": 0, "my.step": 0, "my.added": 0},
    {"step": 0, "my.update": 1},
    {"step": 1, "my.samples": 2.0, "my.parameters": 12},
    {"step": 1, "my.step": 1, "my.added": 1},
    {"step": 1, "my.checkpoint": 2},
    {"step": 1, "my.update": 1},
]


def run(tmp_path, name="run", **changes):
    settings = {**DETACHED, "output_dir": tmp_path, "name": name, "total_steps": 2, "checkpoint": {"save_every": 2}}
    grpo(**{**settings, "callbacks": [Logs(), LogsInTrainer(), LogsInMaker()], **changes})
    return tmp_path / name


def test_every_hook_s_metrics_are_in_the_record_at_their_step(tmp_path):
    folder = run(tmp_path)
    assert rows(folder) == [*WHOLE, {"step": 1, "my.end": 2}]
    last = read_run(folder).last_metrics
    assert (last["step"], last["my.step"], last["my.end"], "loss" in last) == (1, 1, 2, True)


class Leaves(Callback):
    """Interrupts the run after its second step, once its checkpoint is there."""

    def on_checkpoint(self, state, row):
        if state.resumed_from is None and row.step == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_has_every_row_once(tmp_path):
    own = [Logs(), LogsInTrainer(), LogsInMaker()]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, total_steps=3, callbacks=[*own, Leaves()])
    run(tmp_path, total_steps=3, callbacks=[*own, Leaves()], resume="auto")
    assert rows(tmp_path / "run") == [
        *WHOLE[:5],
        {"step": 1, "my.start": 1, "my.checkpoint": 2},  # the checkpoint is announced again, after `train_start`
        {"step": 1, "my.update": 1},
        {"step": 2, "my.samples": 2.0, "my.parameters": 12},
        {"step": 2, "my.step": 2, "my.added": 2},
        {"step": 2, "my.update": 1},
        {"step": 2, "my.checkpoint": 3},
        {"step": 2, "my.end": 3},
    ]


def test_the_batch_of_a_step_is_the_experience_with_its_loss(tmp_path):
    seen = []

    class Looks(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            seen.append(batch)

    run(tmp_path, callbacks=[Looks()])
    assert [(type(batch.data), len(batch.data), batch.loss_fn) for batch in seen] == [(Experience, 8, "grpo")] * 2
    assert seen[0].loss_fn_config["clip_high"] == 0.2
    assert seen[0].data.advantages is not None


def test_supervised_runs_have_them_too_and_the_loss_of_their_eval_by_its_short_name(tmp_path):
    state = sft(
        model=DETACHED["model"], task=DETACHED["task"], total_steps=2, train_batch_size=4, output_dir=tmp_path,
        name="run", eval=[{"name": "held_out", "run_every": 1, "count": 4, "baseline": False}],
        callbacks=[Logs(), LogsInTrainer()],
    )  # fmt: skip
    found = rows(tmp_path / "run")
    assert found[0] == {"step": 0, "my.start": 1, "my.parameters": 12}
    assert found[-1] == {"step": 1, "my.end": 2}
    assert state.metrics["eval_loss"] == state.metrics["held_out.eval_loss"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval_loss"] for row in lines if "eval_loss" in row] == [
        row["held_out.eval_loss"] for row in lines if "held_out.eval_loss" in row
    ]


def asks_the_trainer(completions, policy_version, trainer_state, log_metric):
    """As a reward of TRL's does; more is worth more as training goes on."""
    log_metric("my.asked", trainer_state.global_step)
    assert trainer_state.max_steps == 4
    assert {trainer_state.policy_version} == set(policy_version)
    return [(1 + trainer_state.global_step) * len(text) for text in completions]


def test_a_reward_knows_how_many_steps_the_weights_had_that_sampled(tmp_path):
    scored = {"name": "held_out", "count": 2, "metric": asks_the_trainer}
    settings = {**DETACHED, "total_steps": 4, "update_steps": 2, "max_staleness": 0, "eval": [scored]}
    state = grpo(**{**settings, "reward": asks_the_trainer}, output_dir=tmp_path, name="run")
    assert [row["my.asked"] for row in rows(tmp_path / "run")] == [0, 0, 2, 2]
    assert state.metrics["held_out.asks_the_trainer"] >= 0
