"""What answers a run of the small model and goes wrong, each row of the task in a way of its own (`order`)."""

from __future__ import annotations

import asyncio
import os
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx

from proa.environments import Start, Step, ToolEnvironment

TOOL_ORDERS = ("raise", "long", "bytes", "hang", "exit")


def obey(order: str) -> Any:
    """Do what is told.

    Args:
        order: what to do
    """
    match order:
        case "raise":
            raise ValueError("no such page")
        case "long":
            return "x" * 10_000_000
        case "bytes":
            return b"ok \xff\xfe"
        case "hang":
            time.sleep(3600)
        case "exit":
            os._exit(3)
    return f"did {order}"


class CallsForTheModel(ToolEnvironment):
    """The model is too small to write a call: whatever it says calls the tool, with what its row orders."""

    def __init__(self) -> None:
        super().__init__([obey])
        self._turns = 0

    def reset(self, row, *, seed):
        self._row = row
        if row["order"] == "server":
            _visit(row["url"])
        return Start([{"role": "user", "content": row["prompt"]}])

    async def step(self, message):
        self._turns += 1
        if self._row["order"] == "server":
            await asyncio.to_thread(_visit, self._row["url"])
        call = {"type": "function", "function": {"name": "obey", "arguments": {"order": self._row["order"]}}}
        answered = await super().step({**message, "tool_calls": [call]})
        told = [
            {"role": "user", "content": "1>"}
        ]  # what the tool said has characters that the small model does not know
        self._check(answered.messages[0]["content"])
        return Step(
            told, reward=sum(map(str.isdigit, message["content"])) / 10, done=self._turns == 2,
            tool_calls=answered.tool_calls, tool_errors=answered.tool_errors,
        )  # fmt: skip

    def _check(self, text):
        """What the model would be told goes to a file, for the test to read."""
        (Path(self._row["folder"]) / f"{self._row['order']}.txt").write_text(text)


def _visit(url):
    """As clients of environments elsewhere do at each step."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def strict(completions, order, **_):
    """A grader that cannot read what came of some rows."""
    if "grader" in order:
        raise KeyError("answer")
    return [0.5] * len(completions)


async def agent(base_url, api_key, row):
    """Asks once in the usual case."""
    headers = {"Authorization": f"Bearer {api_key}"}
    match row["order"]:
        case "never":
            return 1.0
        case "raise":
            await _ask(base_url, headers, row)
            raise RuntimeError("lost my way")
        case "hang":
            await _ask(base_url, headers, row)
            await asyncio.sleep(3600)
        case "exit":
            os._exit(3)
        case "leaves":
            await _leave_in_the_middle(base_url, headers, row)
        case "waits":
            while not (Path(row["folder"]) / "late.txt").exists():
                await asyncio.sleep(0.02)
        case "late":
            asking = asyncio.create_task(_ask_late(base_url, headers, row))
            _later.add(asking)
    answer = await _ask(base_url, headers, row)
    return sum(map(str.isdigit, answer["choices"][0]["text"])) / 10


_later: set[asyncio.Task[None]] = set()


async def _ask(base_url, headers, row):
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{base_url}/completions", json={"prompt": row["prompt"]}, headers=headers)
        answer.raise_for_status()
        return answer.json()


async def _ask_late(base_url, headers, row):
    """Go on asking until it is refused, which it is once the agent has returned."""
    async with httpx.AsyncClient(timeout=600) as client:
        while True:
            await asyncio.sleep(0.05)
            answer = await client.get(f"{base_url}/models", headers=headers)
            if answer.status_code == 410:
                error = answer.json()["error"]["message"]
                (Path(row["folder"]) / "late.txt").write_text(error)
                return


async def _leave_in_the_middle(base_url, headers, row):
    async with httpx.AsyncClient(timeout=600) as client:
        body = {"prompt": row["prompt"], "stream": True}
        async with client.stream("POST", f"{base_url}/completions", json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if re.match(r"data: \{", line):
                    return
