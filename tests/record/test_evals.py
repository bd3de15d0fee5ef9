"""Evals of a record: read as they were written, whatever a model wrote and a number is."""

import json
import math

import pytest

from proa.data.results import EvalResult
from proa.record import evals
from proa.record.evals import EvalRecord, predictions_path
from proa.record.run_folder import BrokenRecordError, json_text

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


# -- what a model may write, and what a number may be -------------------------------------------------

ODD = {
    "completion": "half \ud83d of one, and a whole one: 😀",
    "reward": math.nan,
    "columns": {"token": "kept", "least": -math.inf, "many": [1.0, math.inf], "said": "NaN"},
}


def test_odd_predictions_are_written_and_come_back_as_they_were(tmp_path):
    record = EvalRecord(tmp_path)
    record.append(result(0), [ODD, *ROWS])
    odd, *others = record.predictions("held_out", 0)
    assert math.isnan(odd["reward"])
    assert {**odd, "reward": 0.0} == {**ODD, "reward": 0.0}
    assert others == ROWS


def test_any_json_reader_reads_predictions(tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    record = EvalRecord(tmp_path)
    record.append(result(0), [ODD, *ROWS])
    text = (tmp_path / predictions_path("held_out", 0)).read_text(encoding="utf-8")
    first, *others = [json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1]]
    assert (first["reward"], first["columns"]["least"]) == ("NaN", "-Infinity")
    assert others == ROWS
    assert "\u2028" in text.split("\n")[1], "lines without halves of characters are not escaped"


def test_scores_that_are_no_numbers_come_back(tmp_path):
    record = EvalRecord(tmp_path)
    record.append(result(0, exact=math.inf, loss=-math.inf), [])
    assert record.read() == [result(0, exact=math.inf, loss=-math.inf)]
    assert '"Infinity"' in record.path.read_text()


def test_scores_written_by_an_earlier_version_are_read(tmp_path):
    record = EvalRecord(tmp_path)
    record.path.write_text('{"name": "a", "metrics": {"exact": "inf", "loss": "-inf"}, "breakdowns": {}}\n')
    assert record.read() == [EvalResult("a", metrics={"exact": math.inf, "loss": -math.inf})]


def test_parts_called_as_secrets_are_keep_their_numbers(tmp_path):
    breakdowns = {"token": {"auth": {"n": 3, "mean_reward": 0.5}}, "kind": {"password": {"n": 4}}}
    scored = EvalResult("secret", "sort", {"token": 3}, breakdowns, 0.5, 0)
    record = EvalRecord(tmp_path)
    record.append(scored, [])
    assert record.read() == [scored]


def test_the_header_keeps_scores_called_as_secrets_are_and_nothing_else_of_that_name(tmp_path):
    told = {"evals": {"auth": {"token": 3}}, "token": "abc", "arms": [{"eval_breakdowns": {"token": {"x": {"n": 3}}}}]}
    written = json.loads(json_text(told))
    assert written["evals"] == told["evals"]
    assert written["arms"] == told["arms"]
    assert written["token"] == "REDACTED"


def test_a_secret_known_by_its_value_is_taken_out_of_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "planted-in-the-environment")
    record = EvalRecord(tmp_path)
    record.append(EvalResult("a", "sort", {}, {"key": {"planted-in-the-environment": {"n": 1}}}), [])
    assert "planted" not in record.path.read_text()
    assert "planted" not in json_text({"evals": {"a": {"planted-in-the-environment": 1.0}}})


# -- what others may have written -----------------------------------------------------------------------


def test_keys_of_a_newer_version_are_left_out(tmp_path):
    record = EvalRecord(tmp_path)
    record.path.write_text('{"name": "a", "metrics": {"exact": 1.0}, "weather": "fine", "breakdowns": null}\n')
    assert record.read() == [EvalResult("a", metrics={"exact": 1.0})]


@pytest.mark.parametrize(
    "line",
    [
        b'{"name": "\xff"}', b"[1]", b"3", b'{"metrics": {}}', b'{"name": 3}', b'{"name": "a", "metrics": 3}',
        b'{"name": "a", "breakdowns": {"length": 3}}', b'{"name": "a", "breakdowns": {"length": {"long": 3}}}',
        b'{"name": "a", "step": "x"}', b'{"name": "a", "step": -2}', b"[" * 100_000,
    ],
    ids=lambda line: line[:50].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_eval_is_broken_and_named(tmp_path, line):
    record = EvalRecord(tmp_path)
    record.append(result(0), [])
    with record.path.open("ab") as file:
        file.write(line + b"\n")
    for look in (record.read, record.latest):
        with pytest.raises(BrokenRecordError, match=r"evals\.jsonl is broken at line 2"):
            look()


def test_of_a_long_file_the_last_of_each_is_found_wherever_it_is(tmp_path, monkeypatch):
    record = EvalRecord(tmp_path)
    record.append(EvalResult("rare", metrics={"exact": 0.25}, step=0), [])
    for step in range(20):
        record.append(result(step, exact=step), [])
    monkeypatch.setattr(evals, "TAIL_BYTES", 300)
    assert record.latest(["held_out"]) == {"held_out": result(19, exact=19)}
    assert record.latest(["held_out", "rare"])["rare"].metrics == {"exact": 0.25}
    assert record.latest(["held_out", "rare"])["held_out"] == result(19, exact=19)
