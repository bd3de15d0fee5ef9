"""`--overwrite`: a run takes the place of the one in its folder, unless it cannot start."""

import json

import pytest
from tests.small import MODEL_WITH_END

from proa import recipes
from proa.config import ConfigError
from proa.errors import ProaError

SETTINGS = {
    "name": "run", "model": {"config": MODEL_WITH_END}, "task": "sort_digits", "train_batch_size": 8, "total_steps": 2,
}  # fmt: skip


def steps(folder):
    return json.loads((folder / "run.json").read_text())["steps_run"]


def test_it_replaces_the_run_and_all_that_it_wrote(tmp_path):
    recipes.sft(**SETTINGS, output_dir=str(tmp_path), **{"checkpoint.save_every": 1})
    assert (tmp_path / "run/checkpoints/step_1").is_dir()
    with pytest.raises(ProaError, match=r"already used by a run: resume it .* or replace it with --overwrite"):
        recipes.sft(**SETTINGS, output_dir=str(tmp_path))
    recipes.sft(**SETTINGS | {"total_steps": 3}, output_dir=str(tmp_path), overwrite=True)
    assert steps(tmp_path / "run") == 3
    assert not (tmp_path / "run/checkpoints/step_1").exists()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [0, 1, 2]


def test_an_empty_folder_is_simply_used(tmp_path):
    recipes.sft(**SETTINGS, output_dir=str(tmp_path), overwrite=True)
    assert steps(tmp_path / "run") == 2


def test_a_run_that_cannot_start_leaves_the_old_one(tmp_path):
    recipes.sft(**SETTINGS, output_dir=str(tmp_path))
    with pytest.raises(ProaError):
        recipes.sft(**SETTINGS | {"model": str(tmp_path / "nowhere")}, output_dir=str(tmp_path), overwrite=True)
    assert steps(tmp_path / "run") == 2
    assert (tmp_path / "run/model").is_dir()


def test_a_folder_that_is_no_run_s_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.txt").write_text("mine")
    with pytest.raises(ProaError, match="already used"):
        recipes.sft(**SETTINGS, output_dir=str(tmp_path), overwrite=True)
    assert (tmp_path / "run/thesis.txt").read_text() == "mine"


def test_files_of_the_user_s_own_beside_a_run_are_left(tmp_path):
    recipes.sft(**SETTINGS, output_dir=str(tmp_path))
    (tmp_path / "run/thesis.txt").write_text("mine")
    recipes.sft(**SETTINGS | {"total_steps": 3}, output_dir=str(tmp_path), overwrite=True)
    assert (tmp_path / "run/thesis.txt").read_text() == "mine"
    assert steps(tmp_path / "run") == 3


def test_overwriting_and_resuming_exclude_each_other(tmp_path):
    with pytest.raises(ConfigError, match="give one of them"):
        recipes.sft(**SETTINGS, output_dir=str(tmp_path), overwrite=True, resume="auto")
