"""Type checkers see every hook, every call site and every event name."""

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent

# What the hooks' types do not depend on is not read: it would take a minute.
CONFIG = """\
[mypy]
strict = true
plugins = pydantic.mypy

[mypy-torch.*,transformers.*,numpy.*,rich.*,tokenizers.*,xxhash.*]
follow_imports = skip
"""


@pytest.fixture(scope="module")
def errors_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "mypy.ini").write_text(CONFIG)

    def check(file: Path) -> set[tuple[int, str]]:
        options = [f"--config-file={folder / 'mypy.ini'}", f"--cache-dir={folder}", "--no-error-summary"]
        out, _, _ = api.run([*options, str(file)])
        found = re.findall(rf"^\S*{file.name}:(\d+): error: .*\[([a-z-]+)\]$", out, re.MULTILINE)
        return {(int(line), code) for line, code in found}

    return check


def test_right_code_passes(errors_in):
    assert errors_in(HERE / "right.py") == set()


def test_every_mistake_is_found_and_nothing_else(errors_in):
    wrong = HERE / "wrong.py"
    expected = {
        (number, line.partition("# E: ")[2])
        for number, line in enumerate(wrong.read_text().splitlines(), start=1)
        if "# E: " in line
    }
    assert errors_in(wrong) == expected
