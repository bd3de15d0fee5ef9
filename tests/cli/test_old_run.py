"""A run folder that version 0.1 left behind, killed after two of four steps, stays readable and can be gone on with.

When a format changes, this folder stays as it is and a new one joins it.
"""

import json
import shutil
from pathlib import Path

import pytest

from proa.cli.main import main

OLD_RUN = Path(__file__).parent / "fixtures" / "run_of_0_1"


@pytest.fixture
def old_run(tmp_path):
    return shutil.copytree(OLD_RUN, tmp_path / "old_run")


def test_it_is_shown_and_listed_and_reported(old_run, capsys):
    assert main(["show", str(old_run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in shown["checkpoints"]] == [2]
    assert main(["runs", str(old_run.parent), "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["old_run"]
    assert main(["report", str(old_run)]) == 0
    assert "held_out" in (old_run / "report.html").read_text()


def test_it_is_gone_on_with_to_its_end(old_run, capsys):
    assert main(["resume", str(old_run)]) == 0
    assert json.loads((old_run / "run.json").read_text())["status"] == "completed"
    steps = [json.loads(line)["step"] for line in (old_run / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [-1, 0, 1, 2, 3]


def test_it_is_repeated_from_its_journal(old_run, capsys):
    main(["replay", str(old_run)])  # the same bits only with the libraries and the processor it was made with
    assert "step_2" in capsys.readouterr().out


def test_its_weights_are_evaluated(old_run, capsys):
    assert main(["eval", str(old_run), "--task", "sort_digits", "--count", "2", "--json"]) == 0
    assert "exact" in capsys.readouterr().out
