"""A run in a process of its own whose starter interrupts it, or is killed, before it can answer."""

import json
import signal

import pytest

STARTERS = "tests.chaos.arm_starters"


@pytest.mark.parametrize(("handler", "times"), [("default", 2), ("ignored", 1)])
def test_an_early_interrupt_cancels_the_run_without_a_traceback(nursery, tmp_path, handler, times):
    """Below nohup or a shell's `&` SIGINT is ignored; a run has to hear its starter all the same."""
    run = nursery.call(tmp_path, f"{STARTERS}:interrupt_early", handler, times)
    assert run.wait(120.0) == 0, run.printed
    status, error = json.loads((tmp_path / "outcome.json").read_text())
    assert (status, error) == ("cancelled", "interrupted")  # and not: its process ended
    assert "Traceback" not in run.printed


def test_a_run_whose_starter_is_killed_early_does_not_train_on(nursery, tmp_path):
    starter = nursery.call(tmp_path, f"{STARTERS}:die_early")
    assert starter.wait(120.0) == -signal.SIGKILL, starter.printed
    (tmp_path / "released").touch()
    assert not nursery.left_behind()
