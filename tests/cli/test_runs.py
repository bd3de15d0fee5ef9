"""`proa runs`: a line for each, on any terminal; and of an experiment no more than its conclusion says."""

import json

import pytest

from proa.cli.main import main
from proa.statistics import conclusion, estimate
from proa.statistics.conclusions import parse_finding
from proa.statistics.pairwise import compare

LONG = "learning_rate-0.0003.group_size-8.and_something_more"


def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path):
    config = {"total_steps": 100_000, "algorithm": {"name": "grpo"}, "eval": [{"name": "sort_digits"}]}
    for name, status in {"short": "interrupted", LONG: "completed", f"e/{LONG}__s1": "failed"}.items():
        evals = {"sort_digits": {"exact": 0.5, "completion_tokens": 7.0}}
        write(tmp_path / name, "run.json", {"status": status, "started": 1e9, "steps_run": 100_000, "evals": evals})
        write(tmp_path / name, "config.json", config)
    return tmp_path


def experiment(folder, best, said):
    arms = [{"status": "completed"}] * 12
    content = {"name": "e", "status": "completed", "runs": arms, "arms": arms, "best_arm": best, "conclusion": said}
    write(folder / "e", "experiment.json", content)


def lines(folder, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["runs", str(folder)]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_nothing_wraps_on_any_terminal(folder, capsys, monkeypatch):
    experiment(
        folder, LONG, f"By exact (more is better) {LONG} scored best of 2 arms: 0.7. {LONG} is better than b by 1."
    )
    for width in (40, 60, 64, 70, 80, 100, 200):
        found = lines(folder, capsys, monkeypatch, width)
        assert len(found) == 2 + 4, width  # head, rule, and one for each
        assert found[0].split()[:2] == ["name", "status"], width
        assert set(found[0].split()) <= {"name", "status", "done", "began", "scores"}, width
        assert max(map(len, found)) <= width
    head = lines(folder, capsys, monkeypatch, 80)[0].split()
    assert head == ["name", "status", "done", "began", "scores"]


def test_an_arm_is_called_best_only_where_the_conclusion_says_it_is_better(folder, capsys, monkeypatch):
    scores = {"a": [0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.2], "same": [0.3, 0.1, 0.2, 0.2, 0.3, 0.1, 0.2]}
    scores["b"] = [score + 0.5 + place / 100 for place, score in enumerate(scores["a"])]
    for first, second, finding in [("b", "a", "best b"), ("same", "a", "no difference seen")]:
        estimates = {name: estimate(scores[name]) for name in (first, second)}
        found = compare(*(dict(enumerate(scores[name])) for name in (first, second)), names=(first, second))
        said = conclusion(estimates, metric="exact", comparison=found, hypothesis="same is better than a")
        experiment(folder, first, said)
        (line,) = (line for line in lines(folder, capsys, monkeypatch, 100) if line.strip().startswith("e "))
        assert line.endswith(finding), said
        assert main(["runs", str(folder), "--json"]) == 0
        (row,) = (row for row in json.loads(capsys.readouterr().out) if row["name"] == "e")
        assert row["scores"] == ({"best": "b"} if first == "b" else {})


def test_a_finding_is_what_the_conclusion_says():
    one_each = conclusion({"a": estimate([0.5]), "b": estimate([0.7])}, metric="exact")
    same = conclusion({"a": estimate([0.5]), "b": estimate([0.5])}, metric="exact", hypothesis="b is better than a")
    alone = conclusion({"a": estimate([0.5])}, metric="exact")
    assert [parse_finding(said, "b") for said in (one_each, same, alone, "")] == [
        "one run each",
        "one run each",
        "",
        "",
    ]
