"""Whose score a checkpoint's row holds: that of its own weights, or none."""

import errno
import os
from pathlib import Path

import pytest
from tests.small import MODEL

from proa import Callback, CheckpointManager
from proa.recipes import sft
from proa.record.checkpoints import DiskFullError


def run_with(folder, evaluator, *, run_every, save_every, total_steps=7, callbacks=(), **checkpoint):
    sft(
        model={"config": MODEL}, task={"source": "sort_digits", "count": 16}, total_steps=total_steps, name="run",
        train_batch_size=4, output_dir=folder, resume="auto", callbacks=callbacks,
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
        name="run", output_dir=tmp_path, eval=sections,
        checkpoint={"save_every": 3, "keep": None, "best": "quiz.score"},
    )  # fmt: skip
    rows = CheckpointManager(tmp_path / "run").rows
    assert [(row.step, row.metrics.get("quiz.score")) for row in rows] == [(3, None), (5, 0.3)]


class Prunes(Callback):
    """Keeps the newest alone, and notes the rows it was given."""

    def __init__(self, even_newest=False):
        self.even_newest, self.rows, self.left = even_newest, [], []

    def on_checkpoint(self, state, row):
        self.rows.append(row)
        assert Path(row.state_path).is_dir()
        assert Path(row.sampler_path, "config.json").is_file()
        for old in state.checkpoint_mgr.rows:
            if self.even_newest or old.step < row.step:
                state.checkpoint_mgr.remove(old, even_newest=self.even_newest)

    def on_train_end(self, state, artifacts):
        self.left = artifacts.checkpoints


@pytest.mark.parametrize("background", [False, True])
def test_a_hook_gets_absolute_paths_and_may_prune(tmp_path, monkeypatch, background):
    monkeypatch.chdir(tmp_path)
    prunes = Prunes()
    manager = run_with(
        Path(), lambda policy: {"score": 1.0}, run_every=0, save_every=2, total_steps=6, keep=None,
        background=background, callbacks=[prunes],
    )  # fmt: skip
    assert [row.step for row in prunes.rows] == [2, 4, 6]
    assert [row.name for row in manager.rows] == [row.name for row in prunes.left] == ["step_6"]
    assert prunes.left[0].state_path == str(tmp_path / "run" / "checkpoints" / "step_6" / "state")
    assert manager.final().name == "step_6"
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_a_run_whose_last_checkpoint_a_hook_removed_still_has_a_final_one(tmp_path):
    manager = run_with(
        tmp_path, lambda policy: {"score": 1.0}, run_every=0, save_every=2, total_steps=2,
        callbacks=[Prunes(even_newest=True)],
    )  # fmt: skip
    assert [row.name for row in manager.history] == ["step_2", "final"]
    assert manager.rows == []  # the hook has removed that one too
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
