"""How a run ends: its header says so, whatever else fails."""

import json

import pytest
from tests.small import DETACHED

from proa import Callback
from proa.recipes import grpo
from proa.run.trainer_side import TrainerSide


class Fails(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        raise OSError("no space left on the device")


@pytest.fixture
def no_summary(monkeypatch):
    def summary(side, errors):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(TrainerSide, "summary", summary)


def header(tmp_path):
    return json.loads((tmp_path / "run" / "run.json").read_text())


def test_a_failed_run_that_cannot_be_summed_up_says_why_it_failed(tmp_path, no_summary):
    with pytest.raises(OSError, match="no space left") as raised:
        grpo(**DETACHED, name="run", output_dir=tmp_path, callbacks=[Fails()])
    assert (header(tmp_path)["status"], header(tmp_path)["stop_reason"][:8]) == ("failed", "OSError:")
    assert any("RuntimeError: CUDA error" in note for note in raised.value.__notes__)


def test_a_complete_run_that_cannot_be_summed_up_is_complete(tmp_path, no_summary, caplog):
    grpo(**DETACHED, name="run", output_dir=tmp_path)
    assert header(tmp_path)["status"] == "completed"
    assert "RuntimeError: CUDA error" in caplog.text
