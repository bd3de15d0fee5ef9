"""`proa experiment`, `eval`, `runs`, `replay` and `show` of an experiment: what they print, and how they end."""

import json
import shutil

import pytest
import yaml
from tests.experiments.small_experiment import MODEL

from proa import Callback
from proa.cli.main import main
from proa.experiments import Experiment

RUN = {
    "algorithm": "sft", "total_steps": 2, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 16},
}  # fmt: skip


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """An experiment that is complete."""
    folder = tmp_path_factory.mktemp("experiment")
    config = {
        "name": "e", "output_dir": str(folder / "runs"), "runs": {"a": RUN, "b": {**RUN, "total_steps": 1}},
        "metadata": {"success_metric": "loss", "mode": "min"},
    }  # fmt: skip
    (folder / "e.yaml").write_text(yaml.safe_dump(config))
    assert main(["experiment", str(folder / "e.yaml")]) == 0
    return folder


def test_it_ends_with_the_arms_and_a_conclusion_and_again_it_runs_nothing(experiment, capsys):
    assert main(["experiment", str(experiment / "e.yaml")]) == 0
    out = capsys.readouterr().out
    assert "By loss (less is better)" in out
    assert "a: completed" not in out


def test_an_arm_that_fails_is_named_and_the_exit_code_is_1(tmp_path, capsys):
    wrong = {**RUN, "model": {"path": str(tmp_path / "nowhere")}}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({"name": "e", "output_dir": str(tmp_path), "run": wrong}))
    assert main(["experiment", str(tmp_path / "e.yaml")]) == 1
    assert "e: failed" in capsys.readouterr().out


def test_a_misspelt_key_of_an_arm_is_told_with_its_line(tmp_path, capsys):
    (tmp_path / "e.yaml").write_text("name: e\nruns:\n  a:\n    total_stepz: 3\n")
    assert main(["experiment", str(tmp_path / "e.yaml")]) == 2
    told = capsys.readouterr().err
    assert "arm a" in told
    assert "line 4" in told
    assert "total_steps" in told


def test_runs_lists_runs_and_experiments(experiment, capsys):
    assert main(["runs", str(experiment / "runs"), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == {"e", "e/a", "e/b"}
    assert (rows["e"]["kind"], rows["e/a"]["status"], rows["e/a"]["steps"]) == ("experiment", "completed", 2)
    assert main(["runs", str(experiment / "nowhere")]) == 2


def test_show_tells_of_an_experiment(experiment, capsys):
    assert main(["show", str(experiment / "runs" / "e")]) == 0
    assert "By loss (less is better)" in capsys.readouterr().out


def test_eval_scores_a_run_and_a_model_and_writes_predictions(experiment, tmp_path, capsys):
    run = experiment / "runs" / "e" / "a"
    file = tmp_path / "predictions.jsonl"
    flags = ["--task", "sort_digits", "--count", "3", "--max-new-tokens", "7", "--json"]
    assert main(["eval", str(run), *flags, "--samples", "2", "--output", str(file)]) == 0
    of_run = json.loads(capsys.readouterr().out)
    assert of_run["metrics"].keys() == {"exact", "completion_tokens", "pass@2", "mean@2"}
    assert [json.loads(line)["task_id"] for line in file.read_text().splitlines()] == ["0", "0", "1", "1", "2", "2"]
    assert main(["eval", str(run / "model"), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3


def test_eval_says_what_is_missing(experiment, capsys):
    assert main(["eval", str(experiment / "nowhere"), "--task", "sort_digits"]) == 2
    assert main(["eval", str(experiment / "runs" / "e" / "a" / "model")]) == 2
    assert "--task" in capsys.readouterr().err


def test_replay_says_whether_the_weights_are_the_same(experiment, tmp_path, capsys):
    run = experiment / "runs" / "e" / "a"
    assert main(["replay", str(run), "--into", str(tmp_path / "again"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["same"], told["steps"]) == (True, 2)
    assert main(["replay", str(run), "--until", "9"]) == 2


def test_an_experiment_that_goes_on_or_was_killed_is_told_as_that(tmp_path, capsys):
    """Looked at from inside of its second run; and with a lock that nobody holds any more, as a kill leaves it."""
    run = {**RUN, "algorithm": "sft"}
    config = {"name": "e", "output_dir": str(tmp_path), "runs": {"a": run, "b": run, "c": run}}
    seen = {}

    class Looks(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            if state.ctx.run_key == "b" and step_idx == 0:
                main(["show", str(tmp_path / "e")])
                seen["live"] = capsys.readouterr().out
                shutil.copytree(tmp_path / "e", tmp_path / "killed")

    Experiment(config, [Looks()]).run()
    for name, told in {"a": "completed", "b": "running, 1 of 2 steps", "c": "not started"}.items():
        assert any(name in line and told in line for line in seen["live"].splitlines()), seen["live"]
    assert "e: running" in seen["live"]
    assert main(["show", str(tmp_path / "killed")]) == 0
    assert "e: cut off" in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["killed"]["status"], rows["e"]["status"]) == ("cut off", "completed")
