"""`proa … | head -1`: a reader that leaves ends a verb quietly, as it ends other tools."""

import errno
import json
import os
import subprocess
import sys

import pytest
from tests.cli.looked_at import make_run, rows
from tests.small import MODEL

from proa.cli import exit_codes
from proa.cli.exit_codes import exit_code
from proa.cli.main import BROKEN_PIPE

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def read_first_line_of(*arguments):
    """What came of a verb whose output is read up to the end of its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "proa", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=BUFFERED,
    )  # fmt: skip
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    return process.wait(), said


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """So much to say that it does not fit into a pipe."""
    folder = tmp_path_factory.mktemp("many")
    config = {"total_steps": 10, "eval": []}
    for number in range(12):
        metrics = [{**row, **{f"m{n:05}": 0.5 for n in range(4000)}} for row in rows(1)]
        make_run(folder, f"{number:02}" + "n" * 200, metrics=metrics, config=config, error="e" * 6000)
    return folder


def test_json_is_ended_quietly(many):
    assert read_first_line_of("show", next(many.iterdir()), "--json") == (BROKEN_PIPE, "")


def test_a_table_is_ended_quietly(many):
    assert read_first_line_of("show", next(many.iterdir())) == (BROKEN_PIPE, "")


def run_without_a_reader(*arguments, **settings):
    """A verb whose output is a pipe that nobody has the other end of, from the beginning."""
    theirs, ours = os.pipe()
    os.close(theirs)
    try:
        return subprocess.run(
            [sys.executable, "-m", "proa", *map(str, arguments)],
            stdout=ours, stderr=subprocess.PIPE, text=True, env=BUFFERED, timeout=300, **settings,
        )  # fmt: skip
    finally:
        os.close(ours)


@pytest.mark.parametrize("verb", ["runs", "runs --json", "--help", "moments"])
def test_what_is_printed_at_the_end_is_ended_quietly(many, verb):
    """A short output lies in Python's buffer until the end; nobody reads at all."""
    done = run_without_a_reader(*verb.split(), *([many] if verb.startswith("runs") else []))
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


RUN = """
algorithm: sft
output_dir: runs
name: run
total_steps: 4
train_batch_size: 4
model: {config: SMALL_MODEL}
task: {source: sort_digits, count: 16}
callbacks: [{kind: console}]
""".replace("SMALL_MODEL", json.dumps(MODEL))


def test_a_run_without_a_reader_goes_on_to_its_end(tmp_path):
    """Which prints a line for each step."""
    (tmp_path / "run.yaml").write_text(RUN)
    done = run_without_a_reader("train", "run.yaml", cwd=tmp_path)
    assert done.returncode == BROKEN_PIPE
    assert "Traceback" not in done.stderr
    header = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())
    assert (header["status"], header["steps_run"], header["callback_errors"]) == ("completed", 4, {})


def test_a_closed_output_is_no_failure(tmp_path):
    command = f"{sys.executable} -m proa callbacks >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=BUFFERED, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_a_pipe_of_somebody_else_is_not_taken_for_the_output(capsys):
    def work():
        raise BrokenPipeError(errno.EPIPE, "a worker is gone")

    assert exit_code(work) == 1
    assert "a worker is gone" in capsys.readouterr().err


def test_open_streams_are_not_silenced():
    assert not exit_codes.silence_closed_streams()
