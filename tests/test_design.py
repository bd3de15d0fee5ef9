"""docs/design.md names the files that a run works through: those that are named do, and no others of their rooms."""

import re
import sys
import threading
from pathlib import Path

import pytest
from tests.small import DETACHED

import proa
from proa.recipes import run

PACKAGE = Path(proa.__file__).parent
ROOMS = ("run", "runtime", "roles", "leases", "rollouts", "learning", "loop", "recipes")
"""Each file of these that works is named; of other rooms, those that hand the experience on."""


@pytest.fixture(scope="module")
def sections(repository):
    text = (repository / "docs" / "design.md").read_text()
    return {part.split("\n", 1)[0]: part for part in text.split("\n## ")}


@pytest.fixture(scope="module")
def files_at_work(tmp_path_factory):
    """Files of the package in which a function is called in a small run; building an object is no work."""
    found = set()

    def note(frame, event, _):
        code = frame.f_code
        is_function = code.co_flags & 0x02 and not code.co_name.startswith(("__init__", "__post_init__", "<"))
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            found.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run(**DETACHED | {"total_steps": 2, "reward": {"workers": 1}}, output_dir=tmp_path_factory.mktemp("design"))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def files_in(text):
    return set(re.findall(r"`([a-z_/]+\.py)`", text))


def test_every_file_that_is_listed_has_a_part_in_a_run(sections, files_at_work):
    tables = [line for name in ("How a run is put together", "The way of one experience")
              for line in sections[name].splitlines() if line.startswith("|")]  # fmt: skip
    listed = files_in("\n".join(tables)) - {"cli/main.py", "cli/train.py"}
    assert listed - files_at_work == set()


def test_no_file_that_has_a_part_is_left_out(sections, files_at_work):
    text = sections["How a run is put together"] + sections["The way of one experience"]
    in_rooms = {file for file in files_at_work if file.split("/")[0] in ROOMS}
    assert in_rooms - files_in(text) == set()


def test_every_file_of_the_runtime_on_ray_is_named(sections):
    named = files_in(sections["The way of one experience"])
    present = {file.name for file in (PACKAGE / "runtime" / "ray").glob("*.py")}
    of_a_cluster = {"__init__.py", "probe.py", "tasks.py"}  # whether one answers, and tasks of experiments
    assert present - of_a_cluster <= {Path(file).name for file in named}


def test_every_file_that_is_named_exists(repository):
    text = (repository / "docs" / "design.md").read_text()
    rooms = [PACKAGE, PACKAGE / "runtime" / "ray"]
    assert [file for file in files_in(text) if not any((room / file).is_file() for room in rooms)] == []
