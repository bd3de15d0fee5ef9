"""Rewards in worker processes: deadlines, crashes, threads, and nothing left behind."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.rewards import judges
from tests.rewards.test_inline_rewards import BAD

from proa.rewards import RewardError, RewardWorkers
from proa.rewards.process import WorkerProcess


@pytest.fixture(scope="module")
def moody():
    with RewardWorkers("tests.rewards.judges:moody", timeout=120) as rewards:
        yield rewards


def values(rewards, completions, **columns):
    return [score.value for score in rewards.score(["p"] * len(completions), completions, columns)]


def is_running(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(int(pid))], capture_output=True, text=True).stdout
    return bool(state) and not state.startswith("Z")


def wait_until_gone(pid, seconds=60):
    until = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(pid)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_sample_is_marked_and_spoils_no_other(moody, bad):
    first, middle, last = moody.score(["p"] * 3, ["good", bad, "better"])
    assert (first.value, last.value, first.error, last.error) == (4.0, 6.0, None, None)
    assert middle.value is None
    assert BAD[bad] in middle.error


def test_what_a_function_prints_is_there_with_its_scores(capfd, monkeypatch):
    """Workers are killed when the run ends: what they have not written by then is lost."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with RewardWorkers("tests.rewards.judges:talkative", timeout=120) as rewards:
        assert values(rewards, ["a", "b"]) == [1.0, 1.0]
        assert capfd.readouterr().out == "scoring a b\n"


def test_a_wrong_count_is_told_on_every_sample_from_a_worker_too():
    with RewardWorkers("tests.rewards.judges:one_value_for_all", timeout=120) as rewards:
        scores = rewards.score(["p"] * 4, ["a"] * 4)
    assert [score.value for score in scores] == [None] * 4
    assert all("returned 1 value for 4 samples" in score.error for score in scores)


@pytest.mark.parametrize(("bad", "words"), [("die", "exit code 3"), ("kill", "killed by SIGKILL")])
def test_a_sample_that_kills_its_worker_is_marked_and_the_next_call_works(moody, bad, words):
    first, middle, last = moody.score(["p"] * 3, ["good", bad, "better"])
    assert (first.value, middle.value, last.value) == (4.0, None, 6.0)
    assert f"its worker died ({words})" in middle.error
    assert values(moody, ["fine"]) == [4.0]


@pytest.mark.parametrize("bad", ["regex", pytest.param("hang", marks=pytest.mark.prove)])
def test_a_sample_that_hangs_is_marked_and_the_next_call_works(bad):
    """The batch has one deadline and its samples share a second one, of which each has half of what is left."""
    with RewardWorkers("tests.rewards.judges:moody", timeout=2.0) as rewards:
        first, middle, last = rewards.score(["p"] * 3, ["good", bad, "better"])
        assert (first.value, middle.value, last.value) == (4.0, None, 6.0)
        assert re.search(
            r"timed out after (1|0\.\d+) s on its own, after its batch failed \(which had 2.0 s\)", middle.error
        )
        assert values(rewards, ["fine"]) == [4.0]


def test_a_batch_of_one_that_hangs_is_not_tried_twice():
    with RewardWorkers("tests.rewards.judges:moody", timeout=0.3) as rewards:
        assert "timed out after 0.3 s" in rewards.score(["p"], ["hang"])[0].error


def test_a_function_that_always_dies_is_given_up_for_the_rest_of_the_batch(moody):
    scores = moody.score(["p"] * 8, ["die"] * 8)
    assert [("its worker died" in score.error, "not judged" in score.error) for score in scores] == (
        [(True, False)] * 4 + [(False, True)] * 4
    )


def test_one_bad_function_leaves_the_parts_of_the_others():
    with RewardWorkers(["tests.rewards.judges:length", "tests.rewards.judges:moody"]) as rewards:
        score = rewards.score(["p"], ["die"])[0]
    assert (score.value, score.parts) == (None, {"length": 3.0, "moody": None})


def test_a_worker_that_is_killed_while_idle_costs_no_sample():
    with RewardWorkers("tests.rewards.judges:process") as rewards:
        pid = int(values(rewards, ["a"])[0])
        os.kill(pid, signal.SIGKILL)
        (other,) = values(rewards, ["a"])
        assert other not in (None, pid)


def test_weights_and_columns_reach_the_workers():
    with RewardWorkers(["tests.rewards.judges:same_answer", judges.Longer(than=2)], weights=[1.0, 0.5]) as rewards:
        assert values(rewards, ["abc", "x"], answer=["abc", "y"]) == [1.5, 0.0]


def test_async_functions_keep_their_event_loop_from_call_to_call():
    with RewardWorkers("tests.rewards.judges:keeps_a_loop") as rewards:
        assert [values(rewards, ["a"]) for _ in range(3)] == [[0.0], [1.0], [1.0]]


def test_functions_run_on_the_main_thread_where_alarms_work():
    with RewardWorkers("tests.rewards.judges:alarm") as rewards:
        assert values(rewards, ["a"]) == [1.0]


def test_a_worker_imports_no_heavy_library_by_itself():
    with RewardWorkers(
        ["tests.rewards.judges:modules", "proa.tasks.builtin.sort_digits:reward"], weights=[1, 0]
    ) as rewards:
        heavy = ["torch", "numpy", "transformers", "multiprocessing"]
        assert values(rewards, heavy, answer=["x"] * len(heavy)) == [0.0] * len(heavy)


def test_the_first_score_starts_the_worker_not_the_constructor():
    with RewardWorkers("tests.rewards.judges:length") as rewards:
        assert rewards._workers[0].pid is None
        values(rewards, ["a"])
        assert is_running(rewards._workers[0].pid)


def test_threads_that_score_at_once_get_their_own_answers_in_order():
    def ask(number):
        return values(rewards, ["x" * (number + place) for place in range(5)])

    with RewardWorkers("tests.rewards.judges:length", workers=2) as rewards, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(40)))
    assert answers == [[float(number + place) for place in range(5)] for number in range(40)]


def test_two_workers_work_at_the_same_time(tmp_path):
    """The first waits for a file that the second makes."""
    with (
        RewardWorkers("tests.rewards.judges:waits_or_releases", workers=2, timeout=600) as rewards,
        ThreadPoolExecutor(2) as threads,
    ):
        waiting = threads.submit(values, rewards, [f"wait {tmp_path}"])
        assert values(rewards, [f"release {tmp_path}"]) == [2.0]
        assert waiting.result() == [1.0]


def test_a_closure_runs_in_a_thread_with_the_same_care_and_is_logged_once(caplog):
    bonus = 1.0
    caplog.set_level(logging.WARNING)
    with RewardWorkers(lambda completions: [bonus + v for v in judges.moody(completions)], timeout=1.0) as rewards:
        good, raising, hanging = rewards.score(["p"] * 3, ["good", "raise", "hang"])
        assert values(rewards, ["fine"]) == [5.0]
        assert rewards._workers[0].pid is None
    assert good.value == 5.0
    assert "ValueError: boom" in raising.error
    assert "timed out after" in hanging.error
    assert [record.message.startswith("reward 'lambda' runs in a thread") for record in caplog.records] == [True]


def test_a_function_of_the_main_script_runs_in_this_process(tmp_path):
    script = tmp_path / "train.py"  # without `if __name__ == "__main__"`, and it must run only once
    script.write_text(
        "import os\nprint('started')\nfrom proa.rewards import RewardWorkers\n"
        "def here(completions): return [float(os.getpid())]\n"
        "with RewardWorkers([here, 'os:getpid'][:1]) as rewards: "
        "print(rewards.score(['p'], ['a'])[0].value == os.getpid())\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout.split() == ["started", "True"]
    assert "defined in the main script" in ran.stderr


def test_a_reward_that_cannot_be_read_in_the_worker_says_so():
    with RewardWorkers([judges.CannotBeReadBack(), judges.length]) as rewards:
        score = rewards.score(["p"], ["a"])[0]
    assert "could not be loaded in the worker process: RuntimeError: not here" in score.error
    assert score.parts["length"] == 1.0


def test_a_column_that_cannot_travel_marks_its_sample_only(moody):
    first, last = moody.score(["p"] * 2, ["good", "better"], {"lock": [None, threading.Lock()]})
    assert first.value == 4.0
    assert "cannot be sent to the worker process" in last.error


def test_large_batches_travel():
    with RewardWorkers("tests.rewards.judges:length") as rewards:
        assert values(rewards, ["x" * 5_000_000, "y"]) == [5_000_000.0, 1.0]


def test_a_stopped_worker_cannot_hang_the_caller(monkeypatch):
    seconds = iter(
        [0.5]
    )  # for the call that cannot be answered; those after it need only work, however busy the machine
    call = WorkerProcess.call
    monkeypatch.setattr(
        WorkerProcess, "call", lambda self, *question: call(self, *question[:-1], next(seconds, question[-1]))
    )
    with RewardWorkers("tests.rewards.judges:length", timeout=120) as rewards:
        rewards._workers[0].prepare()
        os.kill(rewards._workers[0].pid, signal.SIGSTOP)  # it will not even read the request
        assert values(rewards, ["x" * 5_000_000, "y"]) == [5_000_000.0, 1.0]


def test_what_a_function_started_dies_with_its_worker(tmp_path):
    pids = tmp_path / "pids"
    rewards = RewardWorkers("tests.rewards.judges:starts_a_child_and_hangs", timeout=600)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(rewards.score, ["p"], [str(pids)])
        wait_for(pids)
        rewards.close()
        with pytest.raises(RewardError, match="were closed"):
            hanging.result()
    assert all(wait_until_gone(pid) for pid in pids.read_text().split())


def test_closing_leaves_no_process_behind():
    rewards = RewardWorkers("tests.rewards.judges:process")
    (pid,) = values(rewards, ["a"])
    rewards.close()
    rewards.close()
    assert not is_running(pid)
    with pytest.raises(RewardError, match="were closed"):
        rewards.score(["p"], ["a"])


def test_a_function_of_this_process_is_not_called_after_closing():
    rewards = RewardWorkers(lambda completions: [1.0])
    rewards.close()
    with pytest.raises(RewardError, match="were closed"):
        rewards.score(["p"], ["a"])


def test_forgetting_to_close_leaves_no_process_behind():
    rewards = RewardWorkers("tests.rewards.judges:process")
    (pid,) = values(rewards, ["a"])
    del rewards
    assert wait_until_gone(pid)


def wait_for(file, seconds=60):
    until = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_closing_ends_a_score_that_is_under_way(tmp_path):
    rewards = RewardWorkers("tests.rewards.judges:waits_or_releases", timeout=600)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(rewards.score, ["p"], [f"wait {tmp_path}"])
        wait_for(tmp_path / "waiting")
        rewards.close()
        with pytest.raises(RewardError, match="were closed"):
            hanging.result(timeout=600)


@pytest.mark.parametrize("word", ["idle", "regex"])
def test_workers_do_not_outlive_a_parent_that_is_killed(word, tmp_path):
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from proa.rewards import RewardWorkers\n"
        "rewards = RewardWorkers(['tests.rewards.judges:starts_a_thread', 'tests.rewards.judges:hangs_in_a_regex'])\n"
        "print(int(rewards.score(['p'], ['good'])[0].parts['starts_a_thread']), flush=True)\n"
        "rewards._timeout = 1.0  # a worker in a regex cannot look for its parent; it ends after its deadline\n"
        f"if '{word}' == 'regex': rewards.score(['p'], [{str(tmp_path / 'hangs')!r}])\n"
        "import time; time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = parent.stdout.readline()
    if word == "regex":
        wait_for(tmp_path / "hangs")
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()  # not communicate(): that would wait for the worker, who has it too
    assert wait_until_gone(pid)


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"timeout": float("inf")}, {"workers": 0}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(RewardError, match="must be"):
        RewardWorkers("tests.rewards.judges:length", **settings)


@pytest.mark.parametrize("kind", ["fork", "fork in C"])
def test_a_function_that_forks_shifts_no_later_reward_by_one_call(kind):
    with RewardWorkers("tests.rewards.judges:forks", timeout=120) as rewards:
        worker = rewards._workers[0]
        values(rewards, ["a"])
        began_as = worker.pid
        assert values(rewards, [kind]) == [len(kind)]
        assert [values(rewards, ["a" * count]) for count in range(2, 12)] == [[count] for count in range(2, 12)]
        assert worker.pid == began_as  # a child that cannot answer is no reason for another worker


# Sizes that a header could name: none, a little, and more than there is memory for.
STRAY = {"text": "hello", "a whole message of another kind": "\x00" * 7 + "\x04" + "abcd", "a huge size": "\x7f" * 64}


@pytest.mark.parametrize("stray", STRAY)
def test_what_a_function_writes_into_its_channel_is_told_and_its_worker_is_replaced(stray):
    with RewardWorkers(
        ["tests.rewards.judges:writes_into_its_channel", "tests.rewards.judges:length"], timeout=120
    ) as rewards:
        score = rewards.score(["p"], [STRAY[stray]])[0]
        assert score.parts == {"writes_into_its_channel": None, "length": float(len(STRAY[stray]))}
        assert "'writes_into_its_channel': its worker sent an invalid answer" in score.error


def test_a_command_that_a_function_starts_does_not_inherit_the_channel():
    with RewardWorkers("tests.rewards.judges:inheritable_sockets", timeout=120) as rewards:
        assert values(rewards, ["a"]) == [0.0]


def test_what_a_function_prints_goes_through_the_streams_of_its_parent(monkeypatch):
    """A panel on the console, or a notebook, has taken their place."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with RewardWorkers("tests.rewards.judges:talkative", timeout=120) as rewards:
        assert values(rewards, ["a", "b"]) == [1.0, 1.0]
    assert out.getvalue() == "scoring a b\n"
