"""`kill -9` at any instant, two processes in one folder, and a full disk: what is on the disk is whole, and goes on."""

import random
import signal
import time

import pytest
from tests.chaos.real_runs import DETACHED, SUPERVISED, begin, came_to, go_on, header_of, held_up, newest_checkpoint

BEHIND = {**DETACHED, "checkpoint": {"save_every": 1, "keep": 2, "background": True}}
KINDS = [DETACHED, SUPERVISED, {**DETACHED, "makers": 2}, BEHIND]
SIX_OR_A_HUNDRED = [*range(6), *(pytest.param(number, marks=pytest.mark.prove) for number in range(6, 106))]


def killed(run, seconds):
    """So much later; whether that was in time."""
    time.sleep(seconds)
    run.send(signal.SIGKILL)
    code = run.wait()
    assert code in (0, -signal.SIGKILL), run.printed
    return code != 0


@pytest.mark.parametrize("number", SIX_OR_A_HUNDRED)
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


@pytest.mark.parametrize("moment", ["train_start", "step_start", "checkpoint_saved", "train_end"])
def test_killed_at_this_moment_it_goes_on_from_the_checkpoint_before(nursery, undisturbed, tmp_path, moment):
    callbacks, marker = held_up(tmp_path, moment, step=0 if moment == "train_start" else 3)
    run = begin(nursery, tmp_path, DETACHED, callbacks=callbacks)
    run.wait_until(marker.exists)
    assert killed(run, 0)
    saved = newest_checkpoint(tmp_path)
    assert {"train_start": None, "step_start": 2, "checkpoint_saved": 4, "train_end": 5}[moment] == (
        saved.step if saved else None
    )
    go_on(nursery, tmp_path)
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


def test_two_processes_cannot_have_one_folder_and_the_first_is_not_disturbed(nursery, undisturbed, tmp_path):
    callbacks, marker = held_up(tmp_path, "step_start", step=3, seconds=1.5)
    run = begin(nursery, tmp_path, DETACHED, callbacks=callbacks)
    run.wait_until(marker.exists)
    for arguments in (("resume", "run"), ("train", "run.yaml")):
        second = tmp_path / arguments[0]
        second.mkdir()
        arguments = (arguments[0], str(tmp_path / arguments[1]), "--output_dir", str(tmp_path))
        code, printed = nursery.run(second, *arguments)
        assert (code, run.code) == (2, None), printed
        assert f"is being used by another process (pid {run.pid}): two runs cannot share it" in printed
        assert "Traceback" not in printed
    assert run.wait() == 0, run.printed
    assert came_to(tmp_path) == undisturbed(DETACHED).outcome


def test_a_checkpoint_that_has_no_room_ends_the_run_in_words_and_the_one_before_is_whole(
    nursery, undisturbed, tmp_path
):
    callbacks, marker = held_up(tmp_path, "step_start", step=3)
    run = begin(nursery, tmp_path, DETACHED, callbacks=callbacks)
    run.wait_until(marker.exists)
    assert killed(run, 0)
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
