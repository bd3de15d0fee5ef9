"""What tests of environments have in common: trajectories, and pools with short deadlines."""

import asyncio
import os
import subprocess
import time
from unittest.mock import Mock

from proa.environments import EnvironmentFailed, EnvironmentPool, EnvironmentSource, Step
from proa.environments.host import Host
from proa.environments.questions import Begin, Close, Deadlines, Take

ROW = {"prompt": "Begin."}


def said(text):
    return {"role": "assistant", "content": text}


def called(*orders, tool="obey", **arguments):
    """A message with a call for each order."""
    given = [arguments | ({} if order is None else {"order": order}) for order in orders]
    calls = [{"type": "function", "function": {"name": tool, "arguments": one}} for one in given]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def pool_of(environment=None, *, tools=(), agent=None, params=None, **settings):
    source = EnvironmentSource.load(environment=environment, tools=tools, agent=agent, params=params)
    return EnvironmentPool(source, **({"workers": 1, "call_timeout": 20, "step_timeout": 20} | settings))


async def one_step(pool, message, **row):
    """The step of a trajectory that takes one."""
    surroundings = await pool.begin(ROW | row, seed=1)
    try:
        return await surroundings.step(message)
    finally:
        await surroundings.close()


def play(environment, *texts, params=None, row=ROW, seed=1):
    """How a trajectory begins, and its steps: in this process, without a pool."""

    async def trajectory():
        source = EnvironmentSource.load(environment=environment, params=params)
        host = Host(source.recipe.load(), source.name, Deadlines(20, 20), Mock(), None)
        start = await _answered(host, Begin(1, row, seed))
        steps = [Step(**await _answered(host, Take(1, said(text)))) for text in texts]
        await _answered(host, Close(1))
        return start["messages"], steps

    return asyncio.run(trajectory())


async def _answered(host, question):
    answer = await host.answer(question)
    if "failed" in answer:
        raise EnvironmentFailed(answer["failed"], answer["ending"])
    return answer


def text_of(step):
    return step.messages[-1]["content"]


async def until(ready, seconds=30):
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def is_running(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(int(pid))], capture_output=True, text=True).stdout
    return bool(state) and not state.startswith("Z")
