"""`make prove` leaves no long proof out, goes on after a failure, and says in one place how all of it ended."""

from pathlib import Path

from tests import prove


def test_every_file_with_a_long_proof_belongs_to_exactly_one_part():
    tests = Path(__file__).parent
    named = [
        path for part in prove.PARTS.values() if "prove" in part.command for path in part.command if "tests" in path
    ]
    for file in tests.rglob("test_*.py"):
        if "mark.prove" in file.read_text() and file != Path(__file__):
            place = file.relative_to(tests.parent).as_posix()
            if (file.parent / "run.py").is_file():  # which needs an environment of its own, and is a part by itself
                assert any(part.command == [f"{file.parent.relative_to(tests.parent).as_posix()}/run.py"]
                           for part in prove.PARTS.values())  # fmt: skip
                continue
            assert sum(place.startswith(path) for path in named) == 1, (
                f"{place} is in no part of tests/prove.py, or in two"
            )


def test_a_part_that_fails_is_shown_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prove, "LOGS", tmp_path)
    parts = {
        "bad": prove.Part("fails", ["-c", "print('FAILED one'); print('1 failed'); raise SystemExit(1)"]),
        "good": prove.Part("passes", ["-c", "print('=== 3 passed in 1s ===')"]),
        "none": prove.Part("has no tests", ["-c", "raise SystemExit(5)"]),
    }
    monkeypatch.setattr(prove, "PARTS", parts)
    assert prove.main([]) == 1
    printed = capsys.readouterr().out
    assert "FAILED one" in printed
    summary = printed.partition("summary\n")[2].splitlines()
    assert [line.split()[:2] for line in summary[:3]] == [["bad", "FAILED"], ["good", "passed"], ["none", "passed"]]
    assert summary[1].endswith("3 passed in 1s")
    assert summary[3] == "2 passed, 1 failed"
    assert prove.main(["good"]) == 0
    assert prove.main(["nobody"]) == 2
