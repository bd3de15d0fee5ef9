"""`kill -9` at any instant, two processes in one folder, and a full disk: what is on the disk is whole, and goes on.

A handful of real kills; `test_killed_everywhere` has every moment of every kind of run, without processes.
"""

import random
import shutil
import signal
import time

import pytest
from tests.chaos.real_runs import (
    DETACHED,
    SUPERVISED,
    begin,
    came_to,
    go_on,
    header_of,
    held_up,
    let_go,
    newest_checkpoint,
)

BEHIND = {**DETACHED, "checkpoint": {"save_every": 1, "keep": 2, "background": True}}
KINDS = [DETACHED, SUPERVISED, {**DETACHED, "makers": 2}, BEHIND]


def killed(run):
    """Whether that was in time."""
    run.send(signal.SIGKILL)
    code = run.wait()
    assert code in (0, -signal.SIGKILL), run.printed
    return code != 0


@pytest.fixture(scope="module")
def killed_in_its_fourth_step(nursery, tmp_path_factory):
    """The folder of a run that has a checkpoint after its second step; to be copied."""
    folder = tmp_path_factory.mktemp("killed")
    assert killed(held_up(nursery, folder, DETACHED, "step_start", 3))
    return folder


def test_a_killed_run_goes_on_from_the_checkpoint_before(
    nursery, undisturbed, killed_in_its_fourth_step, tmp_path
):  # fmt: skip
    shutil.copytree(killed_in_its_fourth_step, tmp_path, dirs_exist_ok=True)
    assert newest_checkpoint(tmp_path).step == 2
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


@pytest.mark.prove
@pytest.mark.parametrize(
    ("moment", "step", "saved"), [("train_start", 0, None), ("checkpoint_saved", 4, 4), ("train_end", 5, 5)]
)
def test_killed_at_this_moment_it_goes_on_from_the_checkpoint_before(
    nursery, undisturbed, tmp_path, moment, step, saved
):  # fmt: skip
    assert killed(held_up(nursery, tmp_path, DETACHED, moment, step))
    row = newest_checkpoint(tmp_path)
    assert (row.step if row else None) == saved
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


@pytest.mark.prove
@pytest.mark.parametrize("number", range(105))
def test_a_run_that_is_killed_at_any_instant_ends_as_if_nothing_had_been(nursery, undisturbed, tmp_path, number):
    settings = KINDS[number % len(KINDS)]
    whole, chance = undisturbed(settings), random.Random(number)
    run = begin(nursery, tmp_path, settings)
    time.sleep(chance.random() * whole.seconds * 0.9)
    if killed(run):
        newest_checkpoint(tmp_path)
        go_on(nursery, tmp_path)
    assert not nursery.left_behind()
    assert came_to(tmp_path) == whole.outcome


@pytest.mark.prove
@pytest.mark.parametrize("number", range(25))
def test_killed_again_and_again_while_it_goes_on_it_ends_the_same(nursery, undisturbed, tmp_path, number):
    whole, chance = undisturbed(DETACHED), random.Random(number)
    run = begin(nursery, tmp_path, DETACHED)
    time.sleep((0.3 + 0.3 * chance.random()) * whole.seconds)
    killed(run)
    for _ in range(2):
        again = nursery.start(tmp_path, "resume", "run")
        again.wait_until_it_listens(signal.SIGTERM)
        time.sleep(0.5 * chance.random() * whole.seconds)
        killed(again)
        newest_checkpoint(tmp_path)
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == whole.outcome


@pytest.mark.parametrize(
    "left", [["config.json", ".run.json.new"], pytest.param([".config.json.new"], marks=pytest.mark.prove)], ids=str
)
def test_killed_before_it_had_a_header_it_was_no_run_and_the_next_one_has_the_folder(
    nursery, undisturbed, tmp_path, left
):  # fmt: skip
    (tmp_path / "run").mkdir()
    for name in left:  # as the kill leaves it; the time between is too short to be hit
        (tmp_path / "run" / name).write_text('{"cut of')
    assert begin(nursery, tmp_path, DETACHED).wait() == 0
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


def test_what_is_not_a_runs_is_not_removed(nursery, tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("config.json", "notes.txt"):
        (tmp_path / "run" / name).write_text("mine")
    assert begin(nursery, tmp_path, DETACHED).wait() == 2
    assert {path.name: path.read_text() for path in (tmp_path / "run").iterdir()} == dict.fromkeys(
        ("config.json", "notes.txt"), "mine"
    )


def test_two_processes_cannot_have_one_folder_and_the_first_is_not_disturbed(nursery, undisturbed, tmp_path):
    run = held_up(nursery, tmp_path, DETACHED, "step_start", 3)
    for arguments in (("resume", "run"), ("train", "run.yaml")):
        second = tmp_path / arguments[0]
        second.mkdir()
        arguments = (arguments[0], str(tmp_path / arguments[1]), "--output_dir", str(tmp_path))
        code, printed = nursery.run(second, *arguments)
        assert (code, run.code) == (2, None), printed
        assert f"is being used by another process (pid {run.pid}): two runs cannot share it" in printed
        assert "Traceback" not in printed
    let_go(tmp_path)
    assert run.wait() == 0, run.printed
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


def test_a_checkpoint_that_has_no_room_ends_the_run_in_words_and_the_one_before_is_whole(
    nursery, undisturbed, killed_in_its_fourth_step, tmp_path
):
    shutil.copytree(killed_in_its_fourth_step, tmp_path, dirs_exist_ok=True)
    most = max(newest_checkpoint(tmp_path).sizes.values()) // 2
    assert most > (tmp_path / "run" / "metrics.jsonl").stat().st_size * 2, "it is the checkpoint that is too large"
    code, printed = nursery.run(tmp_path, "resume", "run", largest_file=most)
    assert code == 1, printed
    assert "DiskFullError: checkpoint step_4 in run/checkpoints cannot be written: File too large" in printed
    assert "It needs about" in printed
    assert "free there, but no file may be larger than" in printed
    assert "Traceback" not in printed
    assert header_of(tmp_path)["status"] == "failed"
    assert newest_checkpoint(tmp_path).step == 2
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome
