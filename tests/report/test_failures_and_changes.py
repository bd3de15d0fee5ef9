"""What the page says in words: settings that changed or differ, and why something failed."""

import html
import json
import random
import re

from tests.report import report_records as records

from proa.report import page_of, read_subject


def words(folder):
    """The page's text, one piece a line."""
    body = page_of(read_subject(folder)).partition("<body>")[2].partition('<script type="application/json"')[0]
    return html.unescape(re.sub(r"(<[^>]*>)+", "\n", body)).splitlines()


def change(folder, **entries):
    header = json.loads((folder / "run.json").read_text())
    records.write_json(folder / "run.json", {**header, **entries})


def test_settings_that_a_resumed_run_changed_are_in_words(tmp_path):
    run = records.write_run(tmp_path / "run", steps=4)
    changes = {
        "makers": {"before": 2, "now": 1}, "lease_timeout": {"before": None, "now": 5.0},
        "output_dir": {"before": "here", "now": "there"}, "callbacks.token": {"before": "abc123", "now": "def456"},
    }  # fmt: skip
    change(run, resumed=[{"at": 1.0, "checkpoint": "step_2", "reason": "ValueError: away", "changes": changes}])
    (line,) = [line for line in words(run) if "step_2" in line and "makers" in line]
    assert line.endswith(
        " from step_2 after ValueError: away; makers was 2 and is 1; lease_timeout was not set and is 5.0"
    )


def test_the_overview_of_an_experiment_says_what_its_arms_differ_in(tmp_path):
    experiment = records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, seeds=2, steps=4)
    lines = words(experiment)
    assert lines[lines.index("arms differ in") + 1] == "optimizer.learning_rate (0.0001, 0.0002)"


def test_an_experiment_of_one_arm_differs_in_nothing(tmp_path):
    assert "arms differ in" not in words(records.write_experiment(tmp_path / "sweep", {"a": 1.0}, seeds=2, steps=4))


def test_a_run_that_failed_says_why(tmp_path):
    run = records.write_run(tmp_path / "run", steps=4, status="failed")
    change(run, stop_reason="ValueError: my bug")
    assert "The run failed: ValueError: my bug" in words(run)


def test_a_callback_that_failed_is_named_with_what_it_said_first(tmp_path):
    run = records.write_run(tmp_path / "run", steps=4)
    said = {"Plotter": "OSError: no space (in callback Plotter.on_step_end)"}
    change(run, callback_errors={"Plotter": 3, "Printer": 1}, first_callback_errors=said)
    lines = words(run)
    assert f"Callback Plotter failed 3 times. The first time it said: {said['Plotter']}" in lines
    assert "Callback Printer failed once." in lines


def test_an_experiment_names_the_first_run_that_went_wrong_and_its_reason(tmp_path):
    experiment = records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, seeds=2, steps=4)
    change(experiment / "b__s1", status="failed", stop_reason="ValueError: my bug")
    assert "1 of 4 runs went wrong. b__s1: ValueError: my bug" in words(experiment)


def test_predictions_that_could_not_be_scored_are_counted_with_the_most_frequent_reason(tmp_path):
    run = records.write_run(tmp_path / "run", steps=4)  # every 17th has an error
    assert "4 of 60 rows could not be scored, all with: TimeoutError: 30 s" in words(run)
    path = run / "evals" / "sort" / "step_4.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    records.write_lines(path, [{**rows[0], "error": "ValueError: odd"}, *rows[1:]])
    assert "5 of 60 rows could not be scored, 4 of them with: TimeoutError: 30 s" in words(run)


def test_what_a_function_logged_of_a_prediction_is_a_column_and_a_truncated_sample_says_so(tmp_path):
    run = records.write_run(tmp_path / "run", steps=4)
    (prediction,) = records.prediction_rows(1, random.Random(0), "34")
    records.write_lines(run / "evals" / "sort" / "step_4.jsonl", [{**prediction, "logged": {"digits": 0.25}}])
    rollouts = [{**row, "finish_reason": "length"} for row in records.rollout_rows(3, random.Random(0), "34")]
    records.write_lines(run / "rollouts" / "step_4.jsonl", rollouts)
    lines = words(run)
    assert {"digits", "0.25"} <= {*lines}
    assert any(", truncated, group 3" in line for line in lines)
