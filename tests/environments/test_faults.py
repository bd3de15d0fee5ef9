"""Whatever a tool or an environment does, it costs its own trajectory alone: how that ends, in what words, and that its
neighbours in the same worker are unharmed, or begin again."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.environments.helpers import ROW, called, one_step, pool_of, said, text_of, until

from proa.environments import EnvironmentFailed, WorkerLostError, dealing

TOOLS = ["tests.environments.sources:obey", "tests.environments.sources:obey_later"]
OBEDIENT = "tests.environments.sources:Obedient"
LATER = "tests.environments.sources:ObedientLater"


@pytest.fixture(scope="module")
def pool():
    """For what needs no deadline."""
    with pool_of(tools=TOOLS, memory_gib=1.0) as pool:
        yield pool


@pytest.fixture(scope="module")
def hasty(request):
    """With short deadlines; what is no fault in it takes no time."""
    before, dealing.GRACE_SECONDS = dealing.GRACE_SECONDS, 1.0
    with pool_of(tools=TOOLS, call_timeout=0.8) as pool:
        yield pool
    dealing.GRACE_SECONDS = before


async def beside_a_neighbour(pool, work):
    """The result of `work(surroundings)`, whose neighbour goes on in the same worker as if nothing had happened."""
    neighbour, surroundings = await pool.begin(ROW, seed=1), await pool.begin(ROW, seed=1)
    assert await pid_of(neighbour) == await pid_of(surroundings)
    before = await pid_of(neighbour)
    found = await work(surroundings)
    await surroundings.close()
    assert await pid_of(neighbour) == before
    await neighbour.close()
    return found


async def pid_of(surroundings):
    return int(text_of(await surroundings.step(called("pid"))))


ANSWERED = {
    "raise": "Error: ValueError: boom (sources.py, line",
    "raise_unsendable": "Error: tests.environments.sources.UnsendableError: <exception str() failed>",
    "exit": "Error: SystemExit: 2",
    "interrupt": "Error: KeyboardInterrupt",
    "cancel": "Error: asyncio.exceptions.CancelledError",
    "ask": "Error: MemoryError",
    "eat": "Error: MemoryError",
    "bytes": "ok ��",
    "surrogate": "half ?",
    "thing": "{'it': a thing}",
    "lock": "<unlocked _thread.lock object",
    "nothing": "null",
    "fork": "True",
    "fork_in_c": "True",
    "long": "xxx",
}


@pytest.mark.parametrize("tool", ["obey", "obey_later"])
def test_what_a_tool_raises_or_returns_is_answered_to_the_model(pool, tool):
    async def all_of_them(surroundings):
        return {order: await surroundings.step(called(order, tool=tool)) for order in ANSWERED}

    steps = asyncio.run(beside_a_neighbour(pool, all_of_them))
    for order, beginning in ANSWERED.items():
        step = steps[order]
        assert text_of(step).startswith(beginning), order
        assert (step.done, step.tool_calls, step.tool_errors) == (False, 1, int(beginning.startswith("Error"))), order
    assert text_of(steps["long"]).endswith("[9,934,464 more characters are cut off]")


def test_a_tool_that_passes_its_deadline_fails_its_trajectory_alone(hasty):
    async def failing(order, tool):
        surroundings = await hasty.begin(ROW, seed=1)
        with pytest.raises(EnvironmentFailed) as failed:
            await surroundings.step(called(order, "pid", tool=tool))
        await surroundings.close()
        assert str(failed.value) == f"tool {tool!r} did not answer within 0.8 s (call_timeout)"
        assert failed.value.ending == "tool_failed"

    async def all_at_once(_):
        tools = {"hang": "obey", "loop": "obey", "stubborn": "obey", "hang_later": "obey_later"}
        await asyncio.gather(*(failing(order, tool) for order, tool in tools.items()))

    asyncio.run(beside_a_neighbour(hasty, all_at_once))


def test_a_worker_with_a_stuck_thread_gets_no_new_trajectories_and_ends_with_its_last(hasty):
    async def trajectories():
        healthy, stuck = await hasty.begin(ROW, seed=1), await hasty.begin(ROW, seed=1)
        condemned = await pid_of(healthy)
        with pytest.raises(EnvironmentFailed):
            await stuck.step(called("hang"))
        await stuck.close()
        fresh = condemned
        while fresh == condemned:  # until the thread has had its time to end
            fresh = int(text_of(await one_step(hasty, called("pid"))))
            await asyncio.sleep(0.01)
        assert await pid_of(healthy) == condemned
        await healthy.close()
        await until(lambda: not Path(f"/proc/{condemned}").exists())

    asyncio.run(trajectories())


def test_an_endless_loop_of_python_is_ended_and_its_worker_goes_on(hasty):
    async def trajectories():
        before = text_of(await one_step(hasty, called("pid")))
        with pytest.raises(EnvironmentFailed):
            await one_step(hasty, called("loop"))
        await asyncio.sleep(1.2)  # after which it would count as stuck
        return before, text_of(await one_step(hasty, called("pid")))

    before, after = asyncio.run(trajectories())
    assert before == after


async def lose_worker(pool, order, tool="obey"):
    """What a culprit, and its neighbour, get from a worker that is lost; then those who begin again."""
    neighbour, culprit = await pool.begin(ROW, seed=1), await pool.begin(ROW, seed=1)
    with pytest.raises(WorkerLostError) as suspect:
        await culprit.step(called(order, tool=tool))
    with pytest.raises(WorkerLostError) as innocent:
        await neighbour.step(called("pid"))
    assert (suspect.value.was_calling, innocent.value.was_calling) == (True, False)
    await culprit.close()
    await neighbour.close()
    culprit, neighbour = await pool.begin(ROW, seed=1, alone=True), await pool.begin(ROW, seed=1)
    pid = await pid_of(neighbour)
    with pytest.raises(EnvironmentFailed) as failed:
        await culprit.step(called(order, tool=tool))
    assert await pid_of(neighbour) == pid
    await culprit.close()
    await neighbour.close()
    return str(suspect.value), str(failed.value), failed.value.ending


ENDS = {
    "die": "died (exit code 3)",
    "keep": "died (its memory reached the limit of 1 GiB (memory_gib))",
    "write hello": "sent something that is no answer",
}


def test_who_ends_the_worker_is_found_when_alone_and_its_neighbours_begin_again():
    pools = [pool_of(tools=TOOLS, memory_gib=1.0) for _ in ENDS]

    async def all_at_once():
        return await asyncio.gather(*(lose_worker(pool, order) for pool, order in zip(pools, ENDS, strict=True)))

    for (suspected, failed, ending), words in zip(asyncio.run(all_at_once()), ENDS.values(), strict=True):
        assert words in suspected
        assert words in failed
        assert "with no other trajectory in it" in failed
        assert ending == "tool_failed"
    for pool in pools:
        pool.close()


def test_a_worker_that_does_not_answer_is_ended_and_who_is_at_fault_is_found(tmp_path, monkeypatch):
    """It holds Python's lock, is stopped, or holds up its event loop."""
    monkeypatch.setattr(dealing, "GRACE_SECONDS", 0.5)
    badly = "tests.environments.sources:obey_later_badly"
    cases = [(f"hold {tmp_path / 'held'}", "obey"), ("stop", "obey"), ("hang", "obey_later_badly")]
    pools = [pool_of(tools=[*TOOLS, badly], call_timeout=0.8, step_timeout=0.8) for _ in cases]

    async def all_at_once():
        return await asyncio.gather(*(lose_worker(pool, *case) for pool, case in zip(pools, cases, strict=True)))

    for suspected, failed, ending in asyncio.run(all_at_once()):
        assert "did not answer for" in suspected
        assert "did not answer for" in failed
        assert ending == "tool_failed"
    for pool in pools:
        pool.close()


def test_a_worker_that_is_killed_from_outside_costs_nobody_anything(pool, tmp_path):
    async def trajectories():
        calling, idle = await pool.begin(ROW, seed=1), await pool.begin(ROW, seed=1)
        pid = await pid_of(idle)
        waiting = asyncio.ensure_future(calling.step(called(f"wait {tmp_path / 'here'}")))
        await until((tmp_path / "here").exists)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="killed by SIGKILL") as lost:
            await waiting
        assert lost.value.was_calling
        with pytest.raises(WorkerLostError) as lost:
            await idle.step(called("pid"))
        assert not lost.value.was_calling
        (tmp_path / "here.go").touch()
        again = await pool.begin(ROW, seed=1, alone=True)
        assert text_of(await again.step(called(f"wait {tmp_path / 'here'}"))) == "waited"
        for one in (calling, idle, again):
            await one.close()

    asyncio.run(trajectories())


def test_one_that_is_alone_and_not_calling_is_not_blamed_for_the_end_of_its_worker(pool):
    async def trajectory():
        alone = await pool.begin(ROW, seed=1, alone=True)
        pid = await pid_of(alone)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{pid}").exists())  # it was waited for: the pool knows
        with pytest.raises(WorkerLostError) as lost:
            await alone.step(called("x"))
        assert not lost.value.was_calling
        await alone.close()

    asyncio.run(trajectory())


def test_what_is_printed_without_end_is_cut_and_its_trajectory_fails(hasty, capfd):
    async def failing(surroundings):
        with pytest.raises(EnvironmentFailed, match="did not answer"):
            await surroundings.step(called("print"))

    asyncio.run(beside_a_neighbour(hasty, failing))
    assert 100_000 < len(capfd.readouterr().out) < 2_000_000


def test_what_is_printed_is_in_the_output_with_the_answer(pool, capfd):
    asyncio.run(one_step(pool, called("say hello", "mutter and again")))
    assert capfd.readouterr().out in ("and againhello\n", "hello\nand again")


def test_what_a_tool_started_ends_with_its_worker(tmp_path):
    with pool_of(tools=TOOLS) as pool:
        asyncio.run(one_step(pool, called(f"child {tmp_path / 'pid'}")))
        child = (tmp_path / "pid").read_text()
        assert Path(f"/proc/{child}").exists()
    asyncio.run(until(lambda: is_gone(child)))


def is_gone(pid):
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.parametrize("environment", [OBEDIENT, LATER])
def test_what_an_environment_raises_fails_its_trajectory(environment):
    async def trajectories():
        neighbour = await pool.begin(ROW, seed=1)
        with pytest.raises(EnvironmentFailed, match=r"\.reset raised ValueError: boom \(sources.py, line \d+\)"):
            await pool.begin(ROW | {"reset": "raise"}, seed=1)
        with pytest.raises(EnvironmentFailed, match=r"\.step raised SystemExit: 2 \(sources.py, line \d+\)") as failed:
            await one_step(pool, said("exit"))
        assert failed.value.ending == "tool_failed"
        assert text_of(await neighbour.step(said("well"))) == "did well"
        await neighbour.close()

    with pool_of(environment) as pool:
        asyncio.run(trajectories())


def test_an_environment_that_cannot_be_made_says_why():
    with pool_of(OBEDIENT, params={"on_start": "raise"}) as pool:
        with pytest.raises(EnvironmentFailed, match=r"Obedient\(\) raised ValueError: boom"):
            asyncio.run(pool.begin(ROW, seed=1))


@pytest.mark.parametrize("environment", [OBEDIENT, LATER])
def test_an_environment_that_hangs_fails_its_trajectory(environment, caplog):
    name = environment.partition(":")[2]

    async def trajectories():
        neighbour = await pool.begin(ROW, seed=1)
        await asyncio.gather(hangs_in_reset(), hangs_in_step(), one_step(pool, said("x"), close="hang"))
        assert text_of(await neighbour.step(said("well"))) == "did well"
        await neighbour.close()

    async def hangs_in_reset():
        with pytest.raises(EnvironmentFailed, match=rf"{name}.reset did not answer within 0.5 s \(step_timeout\)"):
            await pool.begin(ROW | {"reset": "hang"}, seed=1)

    async def hangs_in_step():
        with pytest.raises(EnvironmentFailed, match=rf"{name}.step did not answer within 0.5 s \(step_timeout\)"):
            await one_step(pool, said("hang"))

    with pool_of(environment, step_timeout=0.5) as pool:
        asyncio.run(trajectories())
    assert f"{name}.close did not answer within 0.5 s" in caplog.text


def test_an_environment_whose_close_raises_is_reported_once(caplog):
    async def trajectories():
        for _ in range(3):
            await one_step(pool, said("x"), close="raise")

    with pool_of(OBEDIENT) as pool:
        asyncio.run(trajectories())
    assert [record.getMessage() for record in caplog.records if "close raised ValueError: boom" in record.getMessage()]
    assert len(caplog.records) == 1


def test_a_task_that_an_environment_started_cannot_end_the_loop(pool, capfd):
    with pool_of("tests.environments.sources:StartsTasks") as own:
        step = asyncio.run(one_step(own, said("exit")))
        assert text_of(step) == "still here"
    assert "a task that an environment started raised SystemExit: 7" in capfd.readouterr().err


def test_an_answer_that_cannot_travel_fails_its_trajectory():
    async def step(value):
        surroundings = await own.begin(ROW | {"step": value}, seed=1)
        try:
            return await surroundings.step(said("x"))
        finally:
            await surroundings.close()

    with pool_of("tests.environments.sources:Shapes", workers=1) as own:
        with pytest.raises(EnvironmentFailed, match=r"returned what cannot be sent: ValueError: Exceeds the limit"):
            asyncio.run(step("{'messages': 'x', 'tool_calls': 10**5000}"))
        assert text_of(asyncio.run(step("'well'"))) == "well"


def test_a_row_that_cannot_travel_fails_its_trajectory(pool):
    import threading

    with pytest.raises(EnvironmentFailed, match="cannot be sent to the worker process: cannot pickle"):
        asyncio.run(pool.begin(ROW | {"lock": threading.Lock()}, seed=1))
    assert text_of(asyncio.run(one_step(pool, called("x")))) == "did x"


def test_a_row_that_cannot_be_read_fails_its_trajectory(pool):
    from tests.environments.sources import CannotBeReadBack

    with pytest.raises(EnvironmentFailed, match="cannot be read in the worker process: RuntimeError: not here"):
        asyncio.run(pool.begin(ROW | {"it": CannotBeReadBack()}, seed=1))
