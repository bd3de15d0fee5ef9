"""Which step a span is of: what comes after a step has that step's number, and nothing of the end is lost."""

import json
import math
import os
from types import SimpleNamespace

import pytest
import torch
from tests.experiments.small_experiment import MODEL

from proa.actors.activity import Activity
from proa.data.results import LogContext
from proa.data.state import LoopState
from proa.lifecycle.manager import CallbackManager
from proa.recipes import grpo, sft
from proa.record.spans import SpanRecord
from proa.record.state_files import read_state
from proa.run.driver_record import DriverRecord
from proa.run.step_record import TakeStepRecord, _listed

COMMON = {
    "total_steps": 4, "train_batch_size": 8, "model": {"config": MODEL}, "optimizer": {"learning_rate": 1e-2},
    "task": {"source": "sort_digits", "count": 64}, "checkpoint": {"save_every": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def detached(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    grpo(
        name="r", output_dir=folder, reward={"workers": 0}, sampling={"group_size": 2, "max_new_tokens": 7},
        eval=[{"name": "held_out", "source": "sort_digits", "count": 2, "run_every": 2, "baseline": True}], **COMMON,
    )  # fmt: skip
    return folder / "r"


@pytest.fixture(scope="module")
def supervised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    evals = [{"name": "held_out", "kind": "loss", "count": 4, "run_every": 2, "baseline": True}]
    sft(name="r", output_dir=folder, eval=evals, **COMMON)
    return trained_by("trainer_0", folder / "r")


def trained_by(actor, run):
    return [span for span in SpanRecord(run).read() if span["actor"] == actor]


def steps_of(kind, spans):
    return [span["step"] for span in spans if span["kind"] == kind]


def test_evals_saves_and_publishes_are_of_the_step_before_them(detached):
    spans = trained_by("trainer_0", detached)
    assert steps_of("eval", spans) == [-1, 1, 3]
    assert steps_of("save", spans) == [1, 3]
    assert steps_of("publish", spans) == [0, 1, 2, 3]
    assert steps_of("compute", spans) == [0, 1, 2, 3]


def test_a_checkpoint_knows_of_the_eval_before_it(detached):
    """Whoever goes on from there cuts the file back to this length, and does not score again."""
    length = read_state(detached / "checkpoints" / "step_2" / "state" / "run")["record"]["spans.jsonl"]
    lines = (detached / "spans.jsonl").read_bytes()[:length].splitlines()
    assert [span["step"] for span in map(json.loads, lines) if span["kind"] == "eval"] == [-1, 1]


def test_an_eval_that_ends_later_is_of_the_step_whose_weights_it_scored():
    activity, written = Activity(), []
    for kind in ("publish", "eval"):
        with activity.doing(kind, kind):
            pass
    settings = SimpleNamespace(rollouts=0, rollouts_every=1, spans=True)
    config = SimpleNamespace(record=settings, total_steps=9, train_epochs=1)
    driver, book = SimpleNamespace(write_step=written.append), SimpleNamespace(take_spans=list)
    trainer = SimpleNamespace(activity=activity, learner=SimpleNamespace())
    taking = TakeStepRecord(trainer, book, driver, None, config)
    taking.on_eval(LoopState(global_step=6), 2, "held_out", {})
    assert [(span["kind"], span["step"]) for span in written[0].spans] == [("publish", 5), ("eval", 2)]


def test_a_supervised_run_has_spans_too(supervised):
    assert steps_of("compute", supervised) == [0, 1, 2, 3]
    assert steps_of("eval", supervised) == [-1, 1, 3]
    assert steps_of("save", supervised) == [1, 3]


def test_spans_of_a_supervised_run_follow_each_other(supervised):
    ends = [span["start"] + span["seconds"] for span in supervised]
    assert all(end <= after["start"] + 1e-3 for end, after in zip(ends, supervised[1:], strict=False))
    assert all(span["seconds"] > 0 for span in supervised)


def test_a_supervised_run_writes_no_spans_that_nobody_wants(tmp_path):
    sft(name="r", output_dir=tmp_path, record={"spans": False}, **COMMON)
    assert not (tmp_path / "r" / "spans.jsonl").exists()


def test_what_is_no_number_is_none_among_the_numbers_of_tokens():
    values = torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0])
    assert _listed(values, torch.ones(5, dtype=torch.bool)) == [1.0, None, None, None, 2.0]


def test_lengths_of_files_are_told_when_they_are_on_the_disk(tmp_path, monkeypatch):
    """A checkpoint that names lines which a power cut takes away could not be gone on from."""
    lasting = []
    monkeypatch.setattr(
        "proa.run.driver_record.os.fsync", lambda descriptor: lasting.append(length_of(descriptor))
    )  # fmt: skip
    driver = DriverRecord(tmp_path, CallbackManager(), LogContext(tmp_path))
    driver._spans.append([{"actor": "a", "kind": "b", "start": 1.0, "seconds": 1.0}])
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    told = driver.before_saving()["record"]
    assert {name: length for name, length in told.items() if length} == {
        "metrics.jsonl": 12, "spans.jsonl": (tmp_path / "spans.jsonl").stat().st_size
    }  # fmt: skip
    assert sorted(lasting) == sorted(length for length in told.values() if length)


def length_of(descriptor):
    return os.fstat(descriptor).st_size
