"""Agents: any function that is given an address, a key and a row, and gives a reward or none."""

import asyncio

import pytest
from tests.environments.helpers import pool_of

from proa.environments import EnvironmentFailed, WorkerLostError

AGENTS = ["tests.environments.sources:agent", "tests.environments.sources:agent_in_a_thread"]


def run(pool, prompt, *, timeout=120.0, alone=False):
    row = {"prompt": prompt}
    return asyncio.run(pool.run_agent("http://localhost", "key", row, timeout=timeout, alone=alone))


@pytest.mark.parametrize(("agent", "reward"), [(AGENTS[0], 1.9), (AGENTS[1], 0.5)])
def test_an_agent_gives_a_reward_or_none_and_its_faults_are_its_own(agent, reward):
    with pool_of(agent=agent) as pool:
        assert run(pool, "x") == reward
        assert run(pool, "nothing") is None
        for prompt, words in {
            "raise": r"raised ValueError: boom \(sources.py, line",
            "exit": "raised SystemExit: 2",
            "thing": "returned the reward {'it': a thing}: a reward is a number",
        }.items():
            if (agent, prompt) != (AGENTS[1], "thing"):
                with pytest.raises(EnvironmentFailed, match=words) as failed:
                    run(pool, prompt)
                assert failed.value.ending == "tool_failed"
        with pytest.raises(EnvironmentFailed, match=r"did not answer within 0.3 s \(trajectory_timeout\)") as failed:
            run(pool, "hang", timeout=0.3)
        assert failed.value.ending == "timed_out"
        assert run(pool, "x") == reward


def test_an_agent_that_ends_its_worker_is_found_when_alone():
    with pool_of(agent=AGENTS[0]) as pool:
        with pytest.raises(WorkerLostError) as lost:
            run(pool, "die")
        assert lost.value.was_calling
        with pytest.raises(EnvironmentFailed, match=r"agent: .* died \(exit code 3\), with no other trajectory"):
            run(pool, "die", alone=True)


def test_an_agent_that_is_cancelled_stops():
    async def cancelled(pool):
        running = asyncio.ensure_future(pool.run_agent("", "", {"prompt": "hang"}, timeout=600))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await pool.run_agent("http://localhost", "key", {"prompt": "x"}, timeout=120)

    with pool_of(agent=AGENTS[0]) as pool:
        assert asyncio.run(cancelled(pool)) == 1.9
