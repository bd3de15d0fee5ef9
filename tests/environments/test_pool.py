"""Environments in a pool: dealt to workers, used from many threads, closed in bounded time, and nothing left behind."""

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.environments.helpers import ROW, called, is_running, one_step, pool_of, said, text_of, until

from proa.actors.waiting import ClosedError
from proa.environments import EnvironmentFailed, Start, Step, WorkerLostError, dealing, links
from proa.errors import SettingError

OBEDIENT = "tests.environments.sources:Obedient"
LATER = "tests.environments.sources:ObedientLater"
DIARY = "tests.environments.sources:Diary"
TOOLS = ["tests.environments.sources:obey", "tests.environments.sources:obey_later"]


@pytest.fixture(scope="module")
def pool():
    with pool_of(OBEDIENT, workers=2) as pool:
        yield pool


def test_a_row_and_a_seed_begin_a_trajectory_and_its_seconds_are_counted():
    async def trajectory():
        surroundings = await pool.begin({"prompt": "Begin.", "reset": "x"}, seed=7)
        assert surroundings.start == Start([{"role": "user", "content": "did x"}], [])
        begun = surroundings.seconds
        assert await surroundings.step(said("go")) == Step([{"role": "user", "content": "did go"}], reward=1.0)
        assert surroundings.seconds > begun > 0
        await surroundings.close()
        await surroundings.close()
        with pytest.raises(EnvironmentFailed, match="this trajectory was closed"):
            await surroundings.step(said("go"))

    with pool_of(LATER) as pool:
        asyncio.run(trajectory())


def test_a_thousand_trajectories_are_open_at_once_in_two_workers(pool):
    async def all_at_once():
        opened = await asyncio.gather(*(pool.begin(ROW, seed=1) for _ in range(1000)))
        steps = await asyncio.gather(*(one.step(said("pid")) for one in opened))
        await asyncio.gather(*(one.close() for one in opened))
        return [text_of(step) for step in steps]

    pids = asyncio.run(asyncio.wait_for(all_at_once(), 60))
    assert sorted(map(pids.count, set(pids))) == [500, 500]


def test_threads_with_loops_of_their_own_use_one_pool_at_once(pool):
    def trajectories(number):
        return asyncio.run(gathered(number))

    async def gathered(number):
        steps = await asyncio.gather(*(one_step(pool, said(f"{number} {place}")) for place in range(10)))
        return [text_of(step) for step in steps]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(trajectories, range(8)))
    assert found == [[f"did {number} {place}" for place in range(10)] for number in range(8)]


def test_the_sync_calls_of_a_trajectory_are_made_in_one_thread_of_its_own(pool):
    async def trajectories():
        opened = [await pool.begin(ROW, seed=1) for _ in range(4)]
        threads = [[text_of(await one.step(said("thread"))) for one in opened] for _ in range(3)]
        for one in opened:
            await one.close()
        return threads

    first, *others = asyncio.run(trajectories())
    assert all(other == first for other in others)


def test_the_calls_of_a_message_are_made_at_the_same_time_and_answered_in_order(tmp_path):
    """The first waits for what the second makes."""
    here = tmp_path / "here"
    with pool_of(tools=TOOLS) as pool:
        step = asyncio.run(one_step(pool, called(f"wait {here}", f"touch {here}.go", "x")))
    assert [message["content"] for message in step.messages] == ["waited", "null", "did x"]


def test_parameters_and_columns_may_have_any_name():
    call = called(None, tool="evaluate", function="x * 2", opened=3, self="y")
    with pool_of(tools=["tests.environments.sources:evaluate"]) as tools:
        assert text_of(asyncio.run(one_step(tools, call))) == "x * 2 3 y"

    async def begin(columns):
        surroundings = await columns.begin({"prompt": "Go: ", "function": "f", "opened": 1}, seed=1)
        await surroundings.close()
        return surroundings.start.messages

    with pool_of("tests.environments.sources:TakesColumns") as columns:
        assert asyncio.run(begin(columns)) == [{"role": "user", "content": "Go: f 1"}]


def test_starting_a_worker_does_not_block_the_callers_loop(monkeypatch):
    """It starts only when the caller's loop has done something else meanwhile."""
    turned = threading.Event()

    class SlowChild(links.Child):
        def __init__(self, module):
            assert turned.wait(120)
            super().__init__(module)

    async def trajectory():
        beginning = asyncio.ensure_future(pool.begin(ROW, seed=1))
        for _ in range(3):
            await asyncio.sleep(0)
        turned.set()
        await (await beginning).close()

    monkeypatch.setattr(links, "Child", SlowChild)
    with pool_of(OBEDIENT) as pool:
        asyncio.run(trajectory())


def test_a_worker_imports_no_heavy_library_by_itself():
    heavy = "torch,numpy,transformers,multiprocessing,concurrent.futures.process"
    with pool_of(tools=TOOLS) as pool:
        assert text_of(asyncio.run(one_step(pool, called(f"modules {heavy}")))) == ""


@pytest.mark.parametrize("leaves", [False, True])
def test_of_workers_that_had_one_trajectory_alone_no_more_stay_than_others_wait_for(monkeypatch, leaves):
    monkeypatch.setattr(dealing, "MOST_ALONE", 2)

    async def trajectories(dealer):
        first, second = [(await dealer.begin(ROW, seed, True, dealing.Claim()))[0] for seed in (1, 2)]
        third = asyncio.ensure_future(dealer.begin(ROW, 3, True, dealing.Claim()))
        await asyncio.sleep(0)  # it waits
        dealer._release(first)
        dealer._release(second)  # before the third has taken what the first gave up
        if leaves:
            third.cancel()
        await asyncio.wait({third})
        if not leaves:
            dealer._release(third.result()[0])
        await asyncio.gather(first.worker.wait_for_end(), second.worker.wait_for_end())
        assert not dealer._workers

    with pool_of(OBEDIENT) as own:
        asyncio.run(own._core.run(trajectories))


def test_trajectories_that_are_alone_take_their_turns(monkeypatch):
    monkeypatch.setattr(dealing, "MOST_ALONE", 2)

    async def alone(number):
        surroundings = await pool.begin(ROW, seed=number, alone=True)
        pid = text_of(await surroundings.step(said("pid")))
        open_in.setdefault(pid, set()).add(number)
        assert open_in[pid] == {number}
        await surroundings.step(said("x"))
        open_in[pid].discard(number)
        await surroundings.close()
        return pid

    async def all_at_once():
        return await asyncio.gather(*map(alone, range(6)))

    open_in = {}
    with pool_of(OBEDIENT) as pool:
        pids = asyncio.run(all_at_once())
        assert len(set(pids)) < 6  # a worker is used again by those who wait
        asyncio.run(until(lambda: not any(map(is_running, pids))))


def open_descriptors():
    return {link.name for link in Path("/proc/self/fd").iterdir()}


def test_closing_ends_calls_that_are_under_way_and_leaves_nothing_behind(tmp_path):
    async def hanging():
        surroundings = await pool.begin(ROW, seed=1)
        pids.append(text_of(await surroundings.step(said("pid"))))
        waiting = asyncio.ensure_future(surroundings.step(said(f"wait {tmp_path / 'here'}")))
        await until((tmp_path / "here").exists)
        closing = asyncio.get_running_loop().run_in_executor(None, pool.close)
        with pytest.raises(ClosedError, match="these environments were closed"):
            await waiting
        await closing
        await surroundings.close()
        with pytest.raises(ClosedError):
            await surroundings.step(said("x"))
        with pytest.raises(ClosedError):
            await pool.begin(ROW, seed=1)

    pids, descriptors, threads = [], open_descriptors(), threading.active_count()
    pool = pool_of(OBEDIENT)
    asyncio.run(hanging())
    pool.close()
    assert not any(map(is_running, pids))
    gc.collect()
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads


def test_closing_is_not_held_up_by_a_worker_that_is_stopped():
    async def stopped():
        surroundings = await pool.begin(ROW, seed=1)
        pid = int(text_of(await surroundings.step(said("pid"))))
        os.kill(pid, signal.SIGSTOP)
        return pid

    pool = pool_of(OBEDIENT, step_timeout=0.5)
    pid = asyncio.run(stopped())
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 10
    assert not is_running(pid)


def test_environments_that_are_open_are_closed_with_their_pool(tmp_path):
    async def opened():
        return await asyncio.gather(*(pool.begin(ROW | {"file": str(tmp_path / name)}, seed=1) for name in "ab"))

    pool = pool_of(DIARY)
    asyncio.run(opened())
    pool.close()
    assert [(tmp_path / name).read_text().split() for name in "ab"] == [["reset", "close"]] * 2


def test_a_trajectory_that_is_cancelled_is_closed_and_its_worker_goes_on(tmp_path):
    async def trajectories():
        surroundings = await pool.begin(ROW | {"file": str(tmp_path / "a")}, seed=1)
        step = asyncio.ensure_future(surroundings.step(said(f"wait {tmp_path / 'here'}")))
        await until((tmp_path / "here").exists)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await surroundings.close()
        (tmp_path / "here.go").touch()
        row = ROW | {"file": str(tmp_path / "b"), "reset": f"wait {tmp_path / 'there'}"}
        beginning = asyncio.ensure_future(pool.begin(row, seed=1))
        await until((tmp_path / "there").exists)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        (tmp_path / "there.go").touch()
        await until(lambda: (tmp_path / "b").read_text().split()[-1] == "close")
        assert text_of(await one_step(pool, said("x"), file=str(tmp_path / "c"))) == "did x"

    with pool_of(DIARY) as pool:
        asyncio.run(trajectories())
    assert (tmp_path / "a").read_text().split("\n")[-2] == "close"


def test_forgetting_to_close_leaves_no_process_behind():
    pool = pool_of(OBEDIENT)
    pid = text_of(asyncio.run(one_step(pool, said("pid"))))
    assert is_running(pid)
    del pool
    gc.collect()
    assert not is_running(pid)


@pytest.mark.parametrize("word", ["idle", "hold"])
def test_workers_do_not_outlive_a_parent_that_is_killed(word, tmp_path):
    """One that holds Python's lock cannot look for its parent; it ends after its deadline."""
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import asyncio, time\n"
        "from tests.environments.helpers import *\n"
        "from proa.environments import dealing\n"
        "dealing.GRACE_SECONDS = dealing.ORPHAN_SECONDS = 1.0\n"
        f"pool = pool_of({OBEDIENT!r}, step_timeout=0.5, call_timeout=0.5)\n"
        "async def trajectory():\n"
        "    print(text_of(await one_step(pool, said('pid'))), flush=True)\n"
        f"    if {word!r} == 'hold': await one_step(pool, said('hold {tmp_path / 'held'}'))\n"
        "asyncio.run(trajectory()); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid = parent.stdout.readline()
    if word == "hold":
        asyncio.run(until((tmp_path / "held").exists))
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    parent.stderr.close()
    asyncio.run(until(lambda: not is_running(pid), 60))


SETTINGS = {
    "call_timeout": (0, float("inf")),
    "step_timeout": (-1, float("nan")),
    "workers": (0,),
    "memory_gib": (0,),
}


def test_settings_that_cannot_work_are_refused():
    for name, values in SETTINGS.items():
        for value in values:
            with pytest.raises(SettingError, match=rf"environment\.{name} must be"):
                pool_of(OBEDIENT, **{name: value})


def test_memory_is_limited_where_it_is_asked_for(pool):
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    with pool_of("tests.environments.sources:Limits", memory_gib=0.5) as limited:
        for _ in range(2):  # the second has a thread too, in place of the first's
            room = int(text_of(asyncio.run(one_step(limited, said("x"))))) - 2**29
            assert room == (8 << 20 if stack == resource.RLIM_INFINITY else stack)
    with pool_of("tests.environments.sources:Limits", memory_gib=None) as unlimited:
        assert text_of(asyncio.run(one_step(unlimited, said("x")))) != str(2**29)


def test_the_stacks_of_many_threads_are_not_what_memory_is_limited_for():
    async def play():
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(limited.begin(ROW, seed=1)) for _ in range(96)]  # 96 stacks are 0.75 GiB
        return await begun[-1].result().step(said("take"))

    with pool_of(OBEDIENT, memory_gib=0.5) as limited:
        assert text_of(asyncio.run(play())) == "took 100000000"


def local_environment():
    """Of this function only: it cannot be sent to another process."""

    class Here:
        def reset(self, row, *, seed):
            self.row = row
            row["seen"] = True

        def step(self, message):
            from tests.environments.sources import _obey

            return str(_obey(message["content"]))

        def close(self):
            pass

    return Here


def test_what_cannot_be_sent_to_a_process_runs_in_this_one_with_the_same_deadlines(caplog):
    async def trajectories():
        row = dict(ROW)
        neighbour = await pool.begin(row, seed=1)
        assert row == ROW  # each has its own copy
        assert text_of(await neighbour.step(said("pid"))) == str(os.getpid())
        for order in ("hang", "loop", "raise"):
            with pytest.raises(EnvironmentFailed, match="did not answer within 0.5 s|raised ValueError: boom"):
                await one_step(pool, said(order))
        assert text_of(await neighbour.step(said("x"))) == "did x"
        await neighbour.close()

    with pool_of(local_environment(), step_timeout=0.5) as pool:
        asyncio.run(trajectories())
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "Here runs in threads of this process"
    ]


def test_an_event_loop_of_this_process_that_is_held_up_is_replaced(monkeypatch):
    monkeypatch.setattr(dealing, "GRACE_SECONDS", 0.2)

    async def badly(order: str):
        """Do what is told, and hold up the loop.

        Args:
            order: what to do
        """
        while order == "hang" and not over.wait(0.01):
            pass
        return order

    async def trajectories():
        with pytest.raises(WorkerLostError, match="did not answer for"):
            await one_step(pool, called("hang", tool="badly"))
        assert text_of(await one_step(pool, called("x", tool="badly"))) == "x"

    over = threading.Event()
    with pool_of(tools=[badly], call_timeout=0.2, step_timeout=0.2) as pool:
        asyncio.run(trajectories())
        over.set()


def test_an_environment_of_the_main_script_runs_in_this_process(tmp_path):
    script = tmp_path / "train.py"  # without `if __name__ == "__main__"`, and it must run only once
    script.write_text(
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import asyncio, os\n"
        "print('started')\n"
        "from tests.environments.helpers import *\n"
        "class Here:\n"
        "    def reset(self, row, *, seed): pass\n"
        "    def step(self, message): return str(os.getpid())\n"
        "    def close(self): pass\n"
        "with pool_of(Here) as pool:\n"
        "    print(text_of(asyncio.run(one_step(pool, said('x')))) == str(os.getpid()))\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout.split() == ["started", "True"]
    assert "defined in the main script" in ran.stderr


def test_what_is_printed_goes_through_the_streams_of_its_parent(pool, monkeypatch, tmp_path):
    """A panel on the console, or a notebook, has taken their place."""
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        asyncio.run(one_step(pool, said("say hello")))
    assert (tmp_path / "out").read_text() == "hello\n"
