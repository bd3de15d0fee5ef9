"""Environments, one for each trajectory, in this process."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any


class EnvironmentPool:
    deterministic = True

    def __init__(self, source: Any, **_: Any) -> None:
        self.source = source

    async def begin(self, row: Any, *, seed: int, alone: bool = False) -> Any:
        environment = self.source.make()
        start = environment.reset(row, seed=seed)
        start = await start if inspect.isawaitable(start) else start

        async def step(message: Any) -> Any:
            answer = environment.step(message)
            return await answer if inspect.isawaitable(answer) else answer

        async def close() -> None:
            pass

        return SimpleNamespace(start=start, step=step, close=close, seconds=0.0)

    def close(self) -> None:
        pass
