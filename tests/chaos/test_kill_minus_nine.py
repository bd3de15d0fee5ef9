"""`kill -9` at any instant, two processes in one folder, and a full disk: what is on the disk is whole, and goes on."""

import random
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
FIVE_OR_A_HUNDRED = [*range(5), *(pytest.param(number, marks=pytest.mark.prove) for number in range(5, 105))]


def killed(run, seconds):
    """So much later; whether that was in time."""
    time.sleep(seconds)
    run.send(signal.SIGKILL)
    code = run.wait()
    assert code in (0, -signal.SIGKILL), run.printed
    return code != 0


@pytest.mark.parametrize("number", FIVE_OR_A_HUNDRED)
def test_a_run_that_is_killed_at_any_instant_ends_as_if_nothing_had_been(nursery, undisturbed, tmp_path, number):
    settings = KINDS[number % len(KINDS)]
    whole, chance = undisturbed(settings), random.Random(number)
    if killed(begin(nursery, tmp_path, settings), chance.random() * whole.seconds * 0.9):
        newest_checkpoint(tmp_path)
        go_on(nursery, tmp_path)
    assert not nursery.left_behind()
    assert came_to(tmp_path) == whole.outcome


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.prove) for n in range(1, 25))])
def test_killed_again_and_again_while_it_goes_on_it_ends_the_same(nursery, undisturbed, tmp_path, number):
    whole, chance = undisturbed(DETACHED), random.Random(number)
    killed(begin(nursery, tmp_path, DETACHED), (0.3 + 0.3 * chance.random()) * whole.seconds)
    for _ in range(2):
        again = nursery.start(tmp_path, "resume", "run")
        again.wait_until_it_listens(signal.SIGTERM)
        killed(again, 0.5 * chance.random() * whole.seconds)
        newest_checkpoint(tmp_path)
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == whole.outcome


@pytest.mark.parametrize(
    ("moment", "step", "saved"),
    [
        ("train_start", 0, None),
        ("train_end", 5, 5),
        pytest.param("step_start", 3, 2, marks=pytest.mark.prove),
        pytest.param("checkpoint_saved", 4, 4, marks=pytest.mark.prove),
    ],
)
def test_killed_at_this_moment_it_goes_on_from_the_checkpoint_before(
    nursery, undisturbed, tmp_path, moment, step, saved
):  # fmt: skip
    assert killed(held_up(nursery, tmp_path, DETACHED, moment, step), 0)
    row = newest_checkpoint(tmp_path)
    assert (row.step if row else None) == saved
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


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
    nursery, undisturbed, tmp_path
):
    assert killed(held_up(nursery, tmp_path, DETACHED, "step_start", 3), 0)
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
