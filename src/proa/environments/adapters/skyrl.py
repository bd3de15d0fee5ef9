"""SkyRL-Gym's `BaseTextEnv`: `init(prompt)`, `step(text)`, `close()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import Message, Start, Step
from ..text import prompt_messages, said
from .adapter import Adapter


class SkyRLEnvironment(Adapter):
    """Its constructor gets the row as `extras`, as SkyRL gives it, beside the `params`."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._env: Any = None

    @staticmethod
    def fits(kind: type) -> bool:
        has_own = callable(getattr(kind, "init", None)) and callable(getattr(kind, "step", None))
        return has_own and not hasattr(kind, "reset")

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Start:
        self._env = self._make(**self._extras(row))
        found = self._env.init(prompt_messages(row.get("prompt")))
        return Start(found[0] if isinstance(found, tuple) else found)

    def step(self, message: Message) -> Step:
        output = self._env.step(said(message))
        observations = output["observations"]
        return Step(observations or [], reward=output["reward"], done=output["done"])

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _extras(self, row: Mapping[str, Any]) -> dict[str, Any]:
        try:
            takes = "extras" in inspect.signature(self._make).parameters
        except ValueError:
            return {}
        given = getattr(self._make, "keywords", {}).get("extras", {})
        return {"extras": {**row, **given}} if takes else {}
