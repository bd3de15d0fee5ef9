"""Whose score a checkpoint's row holds: that of its own weights, or none."""

import errno
import os

import pytest
from tests.small import MODEL

from proa import CheckpointManager
from proa.recipes import sft
from proa.record.checkpoints import DiskFullError


def run_with(folder, evaluator, *, run_every, save_every, total_steps=7, **checkpoint):
    sft(
        model={"config": MODEL}, task={"source": "sort_digits", "count": 16}, total_steps=total_steps,
        train_batch_size=4, output_dir=folder, resume="auto",
        eval=[{"name": "quiz", "evaluator": evaluator, "run_every": run_every, "baseline": True}],
        checkpoint={"save_every": save_every, "keep": 1, "best": "quiz.score", **checkpoint},
    )  # fmt: skip
    return CheckpointManager(folder / "run")


def test_the_best_checkpoint_is_one_whose_own_weights_had_the_score(tmp_path, caplog):
    scores = iter([99.0, 50.0, 3.0, 7.0, 5.0])  # before training, and after steps 2, 4, 6 and 7

    def quiz(policy):
        return {"score": next(scores)}

    manager = run_with(tmp_path, quiz, run_every=2, save_every=3)
    assert [(row.step, row.metrics.get("quiz.score")) for row in manager.history] == [(3, None), (6, 7.0), (7, 5.0)]
    assert manager.best("quiz.score").step == 6
    assert [row.step for row in manager.rows] == [6, 7]  # the best of those, and the newest
    assert "eval quiz comes every 2 steps and checkpoints every 3" in caplog.text


def test_a_disk_that_is_full_for_the_final_weights_is_told_with_their_path(tmp_path, monkeypatch):
    def copying(source, target, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("proa.resume.checkpoints.shutil.copytree", copying)
    with pytest.raises(DiskFullError, match=f"{tmp_path / 'run' / 'model'} cannot be written: No space left"):
        run_with(tmp_path, lambda policy: {"score": 1.0}, run_every=1, save_every=1, total_steps=1)
    assert CheckpointManager(tmp_path / "run").newest_good()[0].step == 1


def test_scores_without_a_checkpoint_are_announced(tmp_path, caplog):
    expected = {
        (2, 2): "", (4, 2): "", (1, 2): "set checkpoint.save_every to 1", (0, 2): "at the end only",
        (2, 0): "checkpoints at the end",
    }  # fmt: skip
    for (run_every, save_every), words in expected.items():
        caplog.clear()
        folder = tmp_path / f"{run_every}_{save_every}"
        run_with(folder, lambda policy: {"score": 1.0}, run_every=run_every, save_every=save_every, total_steps=1)
        told = [record.message for record in caplog.records if "checkpoint.best" in record.message]
        assert any(words in line for line in told) if words else not told, told


def test_an_eval_in_the_background_scores_the_weights_it_began_with(tmp_path):
    scores = iter([0.1, 0.9, 0.2, 0.3])  # before training, and after steps 2, 4 and 5
    sections = [{"name": "quiz", "run_every": 2, "apart": True, "evaluator": lambda policy: {"score": next(scores)}}]
    sft(
        model={"config": MODEL}, task={"source": "sort_digits", "count": 16}, total_steps=5, train_batch_size=4,
        output_dir=tmp_path, eval=sections, checkpoint={"save_every": 3, "keep": None, "best": "quiz.score"},
    )  # fmt: skip
    rows = CheckpointManager(tmp_path / "run").rows
    assert [(row.step, row.metrics.get("quiz.score")) for row in rows] == [(3, None), (5, 0.3)]
