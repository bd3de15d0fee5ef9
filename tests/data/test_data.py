"""The data nouns: round trips, scores, plain forms."""

import json
from pathlib import Path

import pytest
import torch

from proa import ArmResult, EvalResult, Experience, LogContext, LoopArtifacts, LoopState, ManifestRow, TrainState


def test_a_manifest_row_survives_a_round_trip_with_keys_it_does_not_know():
    written = {"name": "step_4", "batch": 3, "epoch": 0, "state_path": "s", "sampler_path": None, "future": [1, 2]}
    row = ManifestRow.from_dict(written)
    assert row.extra == {"future": [1, 2]}
    again = json.loads(json.dumps(row.as_dict()))
    assert again.items() >= written.items()
    assert ManifestRow.from_dict(again) == row


def test_artifacts_are_ready_for_json():
    artifacts = LoopArtifacts(Path("runs/a"), checkpoints=[ManifestRow("final", 3, 0, final=True)], steps_run=4)
    plain = json.loads(json.dumps(artifacts.as_dict()))
    assert plain["run_dir"] == "runs/a"
    assert plain["checkpoints"][0]["final"] is True


def test_a_state_is_plain_without_its_handles(tmp_path):
    state = LoopState(global_step=3, metrics={"loss": 1.0}, output_dir=tmp_path, ctx=LogContext(tmp_path))
    state.exception = ValueError("x")
    plain = json.loads(json.dumps(state.to_dict()))
    assert plain["output_dir"] == str(tmp_path)
    assert not {"ctx", "exception", "checkpoint_mgr"} & plain.keys()
    assert json.dumps(TrainState().to_dict())


def test_a_state_is_shown_without_its_handles(tmp_path):
    """A notebook shows what a cell ends with: where training stands, not the whole configuration."""
    state = LoopState(global_step=3, output_dir=tmp_path, checkpoint_mgr=object(), ctx=LogContext(tmp_path))
    assert "global_step=3" in repr(state)
    assert "ctx=" not in repr(state)
    assert "checkpoint_mgr=" not in repr(state)
    arm = ArmResult("a", "configuration", eval_metrics={"sort": {"exact": 0.9}})
    assert "{'sort': {'exact': 0.9}}" in repr(arm)
    assert "configuration" not in repr(arm)


def test_a_score_is_a_metric_or_a_benchmarks():
    arm = ArmResult("a", metrics={"reward": 0.5, "x.y": 2.0}, eval_metrics={"sort.v2": {"exact": 0.9}})
    assert [arm.score(name) for name in ("reward", "x.y", "sort.v2.exact", "none", "sort.v2.none")] == [
        0.5, 2.0, 0.9, None, None,
    ]  # fmt: skip


def test_evals_are_found_by_name_and_step():
    after, during = EvalResult("sort", metrics={"exact": 0.9}), EvalResult("sort", step=9)
    arm = ArmResult("a", evals=[during, after])
    assert arm.eval("sort") is after
    assert arm.eval("sort", step=9) is during
    assert arm.eval("sort", step=1) is None


def test_an_experience_moves_all_its_tensors():
    experience = Experience(torch.zeros(3, 5), torch.zeros(3, 2), reward=torch.ones(3))
    assert len(experience) == 3
    experience.to_device("meta")
    assert experience.sequences.device.type == experience.reward.device.type == "meta"
    assert experience.values is None


@pytest.mark.gpu
def test_an_experience_can_be_pinned():
    if not torch.cuda.is_available():
        pytest.skip("pinned memory needs a CUDA device, and there is none")
    assert Experience(torch.zeros(3, 5), torch.zeros(3, 2)).pin_memory().sequences.is_pinned()
