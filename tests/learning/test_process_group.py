"""Trainers in real processes: they meet, wait for a busy one, and hear of one that fails, stops or dies."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore

from proa.data.state import StopTraining
from proa.learning.process_group import ProcessGroup

MEMBERS = Path(__file__).with_name("process_group_member.py")
SECONDS = 120.0
"""In which a scenario is over, on any machine."""


@pytest.fixture(scope="module")
def group(repository):
    """Takes the members of a group through a scenario; what each said, by rank."""
    environment = {
        **os.environ, "PYTHONPATH": str(repository / "src"), "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(MEMBERS)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip

    def go_through(scenario, size):
        print(scenario, size, file=process.stdin, flush=True)
        answers, _, _ = select.select([process.stdout], [], [], SECONDS)
        assert answers, f"{scenario} is not over after {SECONDS:g} s"
        return json.loads(process.stdout.readline())

    yield go_through
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_they_gather_hand_on_add_up_and_copy(group):
    assert group("meets", 3) == [["done"]] * 3


def test_a_first_that_is_busy_is_waited_for_longer_than_patience(group):
    assert group("waits_for_a_first_that_is_busy", 2) == [["heard news", "done"]] * 2


def test_one_that_fails_says_so_to_all(group):
    failed = "trainer_1 failed: MemoryError: too much"
    assert group("leaves", 3) == [[failed, "done"], ["done"], [failed, "done"]]


def test_a_stop_at_one_is_a_stop_for_all(group):
    assert group("stops", 2) == [["done"], ["stopped: enough", "done"]]


def test_one_that_is_killed_is_missed_within_the_deadline(group):
    told = "the other trainers have not come to a step for 0.3 s"
    assert group("dies", 2) == [[told, "done"], []]


def test_when_the_first_is_killed_the_others_know_at_once(group):
    assert group("the_first_dies", 2) == [[], ["another trainer is gone", "done"]]


def test_whoever_knows_better_ends_a_wait(group):
    assert group("is_told_to_give_up", 2)[0] == ["trainer_1 died", "done"]


def test_one_that_leaves_after_a_meeting_spoils_it_for_nobody_who_is_slow_to_leave_it():
    store = HashStore()
    leaver, slow = (ProcessGroup.__new__(ProcessGroup) for _ in range(2))
    for rank, one in enumerate((slow, leaver)):
        one._store, one._abandoned, one._meeting, one.rank = store, "", 3, rank
    leaver.leave(StopTraining("enough"))
    slow._check_others()  # the third meeting was whole
    slow._meeting = 4
    with pytest.raises(StopTraining, match="enough"):
        slow._check_others()
