"""Type checkers see every hook, every call site and every event name."""

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent


def errors_in(file: Path, cache: Path) -> set[tuple[int, str]]:
    out, _, _ = api.run(["--strict", "--no-error-summary", "--hide-error-context", f"--cache-dir={cache}", str(file)])
    return {(int(line), code) for line, code in re.findall(r"^\S+?:(\d+): error: .*\[([a-z-]+)\]$", out, re.MULTILINE)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def test_right_code_passes(cache):
    assert errors_in(HERE / "right.py", cache) == set()


def test_every_mistake_is_found_and_nothing_else(cache):
    wrong = HERE / "wrong.py"
    expected = {
        (number, line.partition("# E: ")[2])
        for number, line in enumerate(wrong.read_text().splitlines(), start=1)
        if "# E: " in line
    }
    assert errors_in(wrong, cache) == expected
