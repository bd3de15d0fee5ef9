"""Run folders that older versions left behind, each stopped after two or three of four steps, stay readable and can be
resumed: a detached run of 0.1, and a supervised run whose configuration still has all keys of detached ones.

When a format changes, these folders stay as they are and a new one joins them.
"""

import json
import shutil
from pathlib import Path

import pytest

from proa.cli.main import main

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(params=["run_of_0_1", "supervised_run"])
def old_run(request, tmp_path):
    return shutil.copytree(FIXTURES / request.param, tmp_path / "old_run")


def test_it_is_shown_and_listed_and_reported(old_run, capsys):
    assert main(["show", str(old_run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in shown["checkpoints"]] == [2]
    assert main(["runs", str(old_run.parent), "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["old_run"]
    assert main(["report", str(old_run)]) == 0
    assert "held_out" in (old_run / "report.html").read_text()


def test_it_is_gone_on_with_to_its_end(old_run, capsys, caplog):
    assert main(["resume", str(old_run)]) == 0
    assert "proa was 0.1.0.dev0 and is" in caplog.text
    assert "results may differ in their last bits from here on" in caplog.text
    assert json.loads((old_run / "run.json").read_text())["status"] == "completed"
    steps = [json.loads(line)["step"] for line in (old_run / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [-1, 0, 1, 2, 3]


def test_it_is_repeated_from_its_journal(old_run, capsys):
    main(["replay", str(old_run)])  # the same bits only with the libraries and the processor it was made with
    said = capsys.readouterr().out
    assert "step_2" in said
    assert "proa was 0.1.0.dev0 and is" in said
    assert "with these the last bits may differ, and so all digests: that they do shows nothing" in said


def test_its_weights_are_evaluated(old_run, capsys):
    assert main(["eval", str(old_run), "--task", "sort_digits", "--count", "2", "--json"]) == 0
    assert "exact" in capsys.readouterr().out


def test_what_has_no_meaning_for_a_supervised_run_cannot_be_given_when_it_is_resumed(tmp_path, capsys):
    folder = shutil.copytree(FIXTURES / "supervised_run", tmp_path / "old_run")
    assert json.loads((folder / "config.json").read_text())["makers"] == 1
    assert main(["resume", str(folder), "--makers", "2"]) == 2
    assert capsys.readouterr().err == "makers does not apply to algorithm sft: leave it out\n"
    assert main(["resume", str(folder)]) == 0
    written = json.loads((folder / "config.json").read_text())
    assert written.keys().isdisjoint({"makers", "reward", "ray"})
    assert written["sampling"] == {"max_new_tokens": 64, "stop": []}
