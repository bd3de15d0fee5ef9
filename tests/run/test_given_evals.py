"""Evals whose data and functions are given in Python."""

import json

import pytest
from datasets import Dataset, DatasetDict
from tests.small import DETACHED, MODEL_WITH_END

from proa.cli.main import main
from proa.config import ConfigError
from proa.recipes import dpo, grpo, sft
from proa.tasks import TaskError
from proa.tasks.builtin.characters import tokenizer

ROWS = [{"prompt": f"{number}>", "answer": str(number)} for number in range(10, 18)]
HELD_OUT = [{"prompt": f"{number}>", "answer": str(number)} for number in range(90, 94)]


def spread(completions, **columns):
    return [float(place) for place in range(len(completions))]


def begins_right(completions, answer):
    return [float(text[:1] == one[:1]) for text, one in zip(completions, answer, strict=True)]


def scores(tmp_path):
    return json.loads((tmp_path / "small" / "run.json").read_text())["evals"]


def settings(tmp_path, **changes):
    settings = {**DETACHED, "model": {"config": MODEL_WITH_END}, "total_steps": 1, "output_dir": tmp_path}
    return {**settings, "name": "small", "task": ROWS, "tokenizer": tokenizer(), **changes}


def test_data_and_metric_of_an_eval_may_be_objects_and_the_reward_of_the_run_is_the_default(tmp_path):
    evals = [
        {"name": "held", "source": HELD_OUT, "metric": begins_right},
        {"name": "same", "source": HELD_OUT},
    ]
    grpo(**settings(tmp_path, reward={"functions": spread, "workers": 0}, eval=evals))
    assert {name: next(iter(metrics)) for name, metrics in scores(tmp_path).items()} == {
        "held": "begins_right",
        "same": "spread",
    }
    written = json.loads((tmp_path / "small" / "config.json").read_text())["eval"]
    assert [(one["source"], one["metric"]) for one in written] == [
        ("(given in Python)", "begins_right (given in Python)"),
        ("(given in Python)", None),
    ]


def test_the_score_of_an_eval_comes_before_what_its_function_logs(tmp_path):
    def exact(completions, answer, log_metric):
        log_metric("characters", 1.0)
        return begins_right(completions, answer)

    evals = [{"name": "held", "source": HELD_OUT, "metric": exact}]
    grpo(**settings(tmp_path, reward={"functions": spread, "workers": 0}, eval=evals))
    assert list(scores(tmp_path)["held"]) == ["exact", "completion_tokens", "characters"]


def test_the_held_out_data_of_a_supervised_run_may_be_an_object(tmp_path):
    given = settings(tmp_path, eval=[{"name": "held", "source": HELD_OUT}])
    sft(**{key: value for key, value in given.items() if key not in ("reward", "sampling", "wait_timeout")})
    assert "eval_loss" in scores(tmp_path)["held"]


def test_an_eval_without_data_beside_given_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="eval held has no data of its own"):
        grpo(**settings(tmp_path, reward=spread, eval=[{"name": "held"}]))


# -- columns of its own ------------------------------------------------------------------------------

RENAMED = [{"question": row["prompt"], "answer": row["answer"]} for row in ROWS]
PAIRS = [{"asked": row["prompt"], "chosen": row["answer"], "rejected": "0"} for row in HELD_OUT]


def test_an_eval_names_the_columns_of_its_own_data(tmp_path):
    evals = [{"name": "held", "source": HELD_OUT, "columns": {}}, {"name": "same", "source": RENAMED}]
    task = {"source": RENAMED, "columns": {"prompt": "question"}}
    grpo(**settings(tmp_path, task=task, reward={"functions": begins_right, "workers": 0}, eval=evals))
    predictions = (tmp_path / "small" / "evals" / "held" / "step_1.jsonl").read_text().splitlines()
    assert [json.loads(row)["prompt"] for row in predictions] == [row["prompt"] for row in HELD_OUT]
    assert set(scores(tmp_path)) == {"held", "same"}


def test_columns_of_the_task_that_an_eval_does_not_have_are_named(tmp_path):
    task = {"source": RENAMED, "columns": {"prompt": "question"}}
    with pytest.raises(TaskError, match="no column 'question', which columns names as 'prompt'"):
        grpo(**settings(tmp_path, task=task, reward=begins_right, eval=[{"name": "held", "source": HELD_OUT}]))


@pytest.mark.parametrize(
    ("recipe", "rows", "held_out", "columns"),
    [(sft, ROWS, RENAMED, {"prompt": "question"}), (dpo, None, PAIRS, {"prompt": "asked"})],
    ids=["sft", "dpo"],
)
def test_held_out_data_of_supervised_runs_has_columns_of_its_own(tmp_path, recipe, rows, held_out, columns):
    rows = rows or [{"prompt": row["asked"], "chosen": row["chosen"], "rejected": row["rejected"]} for row in PAIRS]
    given = settings(tmp_path, task=rows, eval=[{"name": "held", "source": held_out, "columns": columns}])
    recipe(**{key: value for key, value in given.items() if key not in ("reward", "sampling", "wait_timeout")})
    assert scores(tmp_path)["held"]["eval_loss"] > 0


def test_an_eval_chooses_a_split_of_its_own(tmp_path):
    splits = DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(HELD_OUT)})
    evals = [{"name": "held", "source": splits, "split": "test"}]
    reward = {"functions": begins_right, "workers": 0}
    grpo(**settings(tmp_path, task={"source": splits, "split": "train"}, reward=reward, eval=evals))
    assert len((tmp_path / "small" / "evals" / "held" / "step_1.jsonl").read_text().splitlines()) == len(HELD_OUT)


def test_proa_eval_takes_a_column_for_the_data_that_it_scores(tmp_path, capsys):
    sft(**{
        key: value for key, value in settings(tmp_path).items() if key not in ("reward", "sampling", "wait_timeout")
    })  # fmt: skip
    capsys.readouterr()
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RENAMED))
    arguments = ["eval", str(tmp_path / "small"), "--task", str(tmp_path / "asked.jsonl"), "--json"]
    metric = ["--metric", "tests.run.test_given_evals:begins_right"]
    assert main([*arguments, *metric, "--column", "prompt=question"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"].keys() >= {"begins_right"}
    with pytest.raises(SystemExit):
        main([*arguments, "--column", "question"])
    assert "write WHAT=NAME, e.g. prompt=question, not 'question'" in capsys.readouterr().err
