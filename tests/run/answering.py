"""Environments for runs of the small model: it writes characters, and they answer with a few more."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import httpx
from tests.small import DETACHED, MODEL

from proa.environments import Start, Step

SETTINGS = {
    **DETACHED,
    "model": {"config": MODEL | {"max_position_embeddings": 64, "eos_token_id": [1, 4, 7, 10, 13]}},
    "environment": {"path": "tests.run.answering:Counts", "max_turns": 3, "workers": 1},
    "sampling": {"group_size": 2, "max_new_tokens": 10}, "total_steps": 3, "record": {"rollouts_every": 1},
}  # fmt: skip
"""With so many end tokens, turns end often."""


def changed(environment=None, **changes):
    """The settings, with changes to the section of the environment."""
    return {**SETTINGS, **changes, "environment": {**SETTINGS["environment"], **(environment or {})}}


class Counts:
    """Rewards digits, differently in each turn, and answers with how many there were; two turns are enough of them."""

    def __init__(self, until=3):
        self.turn, self.until = 0, until

    def reset(self, row, *, seed):
        self.first = str(seed % 10)
        return Start([{"role": "user", "content": self.first + row["prompt"]}])

    def step(self, message):
        digits = sum(map(str.isdigit, message["content"]))
        self.turn += 1
        return Step(
            [{"role": "user", "content": f"{digits}>"}], reward=digits * self.turn / 10, done=digits > self.until
        )

    def close(self):
        pass


class Dawdles(Counts):
    """The same, whenever it likes."""

    async def step(self, message):
        await asyncio.sleep(random.random() / 50)
        return super().step(message)


class DiesOnce(Dawdles):
    """And once its process dies, in the middle of everything."""

    def __init__(self, marker, **settings):
        super().__init__(**settings)
        self.marker = Path(marker)

    async def step(self, message):
        if self.turn == 1:
            try:
                self.marker.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os._exit(3)
        return await super().step(message)


class Fails(Counts):
    """Some of them cannot answer."""

    def step(self, message):
        if len(message["content"]) % 3 == 1:
            raise RuntimeError("the service is down")
        return super().step(message)


class OtherEachTime(Counts):
    deterministic = False

    def step(self, message):
        step = super().step(message)
        return Step([{"role": "user", "content": random.choice("0123456789")}], random.random(), step.done)


async def agent(base_url, api_key, row):
    """Asks twice, the second time on top of the first; what it is worth is how many digits it got."""
    async with httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}) as client:
        first = await _ask(client, row["prompt"])
        said = first["choices"][0]
        second = await _ask(client, [*said["prompt_token_ids"], *said["token_ids"], 9], stop_token_ids=[2, 3, 5, 6])
    return sum(map(str.isdigit, first["choices"][0]["text"] + second["choices"][0]["text"])) / 10


async def concurrent_agent(base_url, api_key, row):
    """Asks several things at once, whichever comes first."""
    async with httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}) as client:

        async def ask(text):
            await asyncio.sleep(random.random() / 50)
            return await _ask(client, text)

        found = await asyncio.gather(*(ask(row["prompt"] + word) for word in ("1", "22", "1", "333")))
    return sum(sum(map(str.isdigit, one["choices"][0]["text"])) for one in found) / 10


concurrent_agent.deterministic = True


async def _ask(client, prompt, **more):
    answer = await client.post(
        "/completions", json={"prompt": prompt, "return_token_ids": True, "logprobs": 0, **more}, timeout=60.0
    )
    answer.raise_for_status()
    return answer.json()


def lazy_agent(base_url, api_key, row):
    """Never asks."""
    return 1.0


async def growing_agent(base_url, api_key, row):
    """Says all that was said again, and more."""
    async with httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}) as client:
        said = await _ask(client, row["prompt"])
        while True:
            [choice] = said["choices"]
            said = await _ask(client, [*choice["prompt_token_ids"], *choice["token_ids"], 9], max_tokens=10)


async def greedy_agent(base_url, api_key, row):
    """Does not know when to stop."""
    async with httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}) as client:
        while True:
            await _ask(client, row["prompt"])
