"""Classic text environments, as gymnasium has them: `reset(seed=...)` and `step(text)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import Message, Start, Step
from ..text import as_text, prompt_messages, said, with_observation
from .adapter import Adapter, takes


class GymnasiumEnvironment(Adapter):
    """What is observed follows the row's prompt, and is the user's message afterwards; the model's text is the action.

    `reset` gets the seed, and the row's other columns as `options`, where it takes them. `step` may return gymnasium's
    five values, the four of older environments, or those without `info`.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._env = make()

    @staticmethod
    def fits(kind: type) -> bool:
        return takes(kind, "reset", seed=0) or takes(kind, "reset")

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Start:
        space = getattr(self._env, "action_space", None)
        if space is not None and not isinstance(space.sample(), str):
            raise TypeError(
                f"its actions are {space}, and a model's are texts: write an environment with step(message), which "
                "finds the action in the message"
            )
        offered = {"seed": seed, "options": {name: value for name, value in row.items() if name != "prompt"} or None}
        found = self._env.reset(**_accepted(self._env.reset, offered))
        observation = found[0] if isinstance(found, tuple) else found
        return Start(with_observation(prompt_messages(row.get("prompt")), as_text(observation)))

    def step(self, message: Message) -> Step:
        found = self._env.step(said(message))
        match found:
            case (observation, reward, bool(terminated), bool(truncated), dict()):
                done = terminated or truncated
            case (observation, reward, done, dict()) | (observation, reward, done):
                pass
            case _:
                raise TypeError("step returned no (observation, reward, terminated, truncated, info)")
        return Step([{"role": "user", "content": as_text(observation)}], reward=reward, done=bool(done))

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if callable(close):
            close()


def _accepted(method: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in offered.items() if takes_all or name in parameters}
