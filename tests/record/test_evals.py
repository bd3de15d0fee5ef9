import pytest

from proa.data.results import EvalResult
from proa.record.evals import EvalRecord, predictions_path
from proa.record.run_folder import BrokenRecordError

ROWS = [
    {"task_id": "0", "completion": "one\u2028two\u0085three\nfour", "reward": 1.0},
    {"task_id": "1", "completion": "", "reward": None},
]


def result(step, **metrics):
    return EvalResult("held_out", "sort", metrics, {}, 0.5, step, ["tag"])


def test_what_was_written_is_read_back(tmp_path):
    record = EvalRecord(tmp_path)
    record.append(result(-1, exact=0.0), ROWS)
    record.append(result(None, exact=0.5), ROWS[:1])
    assert record.read() == [result(-1, exact=0.0), result(None, exact=0.5)]
    assert record.predictions("held_out", -1) == ROWS
    assert record.predictions("held_out", None) == ROWS[:1]


def test_an_eval_that_was_repeated_counts_once(tmp_path):
    record = EvalRecord(tmp_path)
    for value in (0.1, 0.2):
        record.append(result(4, exact=value), ROWS)
    assert record.read() == [result(4, exact=0.2)]


def test_a_line_that_was_being_written_is_passed_over_and_a_broken_one_is_not(tmp_path):
    record = EvalRecord(tmp_path)
    record.append(result(0, exact=1.0), ROWS)
    with record.path.open("a") as file:
        file.write('{"name": "held')
    assert len(record.read()) == 1
    with record.path.open("a") as file:
        file.write("\n")
    with pytest.raises(BrokenRecordError, match="line 2"):
        record.read()


def test_files_are_named_by_the_steps_done():
    assert str(predictions_path("a", -1)) == "evals/a/step_0.jsonl"
    assert str(predictions_path("a", 9)) == "evals/a/step_10.jsonl"
    assert str(predictions_path("a", None)) == "evals/a/final.jsonl"
