"""`proa eval` of runs: which weights, as which version, and of runs that were begun in Python."""

import json

import pytest
from tests.experiments.small_experiment import MODEL

from proa.cli.main import main
from proa.data.results import EvalResult
from proa.evals.scoring import Scored
from proa.recipes import grpo, sft
from proa.run.start import template_start
from proa.tasks import Task, template_date
from proa.tasks.task import TaskRow

COMMON = {
    "model": {"config": MODEL}, "train_batch_size": 4, "total_steps": 3,
    "sampling": {"max_new_tokens": 5, "group_size": 2}, "checkpoint": {"save_every": 1, "keep": None},
}  # fmt: skip


def longer(prompts, completions, **_):
    return [float(len(text)) for text in completions]


def own(policy):
    return {"steps": policy.step}


@pytest.fixture(scope="module")
def begun_in_python(tmp_path_factory):
    """A run whose task, reward and evaluator were objects, with a secret in a callback."""
    folder = tmp_path_factory.mktemp("runs")
    task = Task("mine", [TaskRow(f"{digit}>", {}) for digit in range(8)], longer)
    from proa.tasks.builtin.characters import tokenizer

    grpo(
        None, name="r", output_dir=folder, task=task, reward=[longer], tokenizer=tokenizer(),
        eval=[{"name": "own", "evaluator": own}], **COMMON,
    )  # fmt: skip
    return folder / "r"


def scores(capsys, *arguments):
    code = main(["eval", *map(str, arguments), "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else told.err


def test_a_run_that_was_begun_in_python_is_scored_on_what_is_named(begun_in_python, capsys):
    code, found = scores(capsys, begun_in_python, "--task", "sort_digits", "--count", "4")
    assert (code, found["rows"]) == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "flag"), [(("--name", "own"), "--evaluator"), (("--metric", f"{__name__}:longer"), "--task")]
)
def test_what_only_that_process_had_is_asked_for(begun_in_python, capsys, arguments, flag):
    code, told = scores(capsys, begun_in_python, *arguments)
    assert code == 2
    assert flag in told


def test_a_function_of_ones_own_can_be_named_instead(begun_in_python, capsys):
    code, found = scores(capsys, begun_in_python, "--name", "own", "--evaluator", f"{__name__}:own")
    assert (code, found["metrics"]) == (0, {"steps": 3.0})


def test_a_task_for_an_eval_that_is_a_function_is_refused(begun_in_python, capsys):
    code, told = scores(capsys, begun_in_python, "--name", "own", "--task", "sort_digits")
    assert code == 2
    assert "does not take --task" in told


@pytest.mark.parametrize(("checkpoint", "version"), [("step_1", 1), ("step_2", 2), (None, 3)])
def test_predictions_say_the_version_of_the_weights(begun_in_python, capsys, tmp_path, checkpoint, version):
    rows = tmp_path / "rows.jsonl"
    more = () if checkpoint is None else ("--checkpoint", checkpoint)
    assert scores(capsys, begun_in_python, "--task", "sort_digits", "--count", 1, "--output", rows, *more)[0] == 0
    assert json.loads(rows.read_text())["policy_version"] == version


def test_a_supervised_run_is_scored_without_saying_how_long_completions_are(tmp_path, capsys):
    sft(None, name="s", output_dir=tmp_path, task={"source": "sort_digits", "count": 8}, **COMMON | {"sampling": {}})
    capsys.readouterr()
    code, found = scores(capsys, tmp_path / "s", "--task", "sort_digits", "--count", 2)
    assert (code, found["rows"]) == (0, 2)


def test_templates_write_the_date_of_the_run_whose_weights_are_scored(begun_in_python, capsys, monkeypatch):
    dates = []

    def scored(*_, **__):
        dates.append(template_date.pinned())
        return Scored(EvalResult("after_training", "sort_digits", {}, {}, 0.0), [])

    monkeypatch.setattr("proa.cli.evaluate.evaluate_folder", scored)
    for weights in (begun_in_python, begun_in_python / "checkpoints" / "step_1", begun_in_python / "model"):
        assert scores(capsys, weights, "--task", "sort_digits")[0] == 0
    assert dates == [template_start(begun_in_python)] * 3
