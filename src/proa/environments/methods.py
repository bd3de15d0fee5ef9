"""Classes in the manner of TRL's `environment_factory`: their public methods are the tools of one trajectory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import SettingError
from .answers import WrongShape, as_reward
from .calls import is_async
from .failures import EnvironmentFailed
from .protocol import Message, Start, Step
from .schemas import tool_schema
from .text import described, prompt_messages, with_observation
from .tools import ToolEnvironment, gathered

_OWN = ("reset", "get_reward", "close")


def method_names(kind: type) -> list[str]:
    """The methods that are tools, in TRL's order."""
    functions = inspect.getmembers(kind, predicate=inspect.isfunction)  # of the class: properties are not evaluated
    return [name for name, _ in functions if not name.startswith("_") and name not in _OWN]


def method_schemas(kind: type) -> list[dict[str, Any]]:
    return [tool_schema(inspect.getattr_static(kind, name).__get__(None, kind)) for name in method_names(kind)]


class MethodTools(ToolEnvironment):
    """An object's public methods as tools. `reset(**row)` may return text, which follows the row's prompt; its
    `get_reward()`, if it has one, is asked once, at the end.

    Calls of sync methods are made one after the other, in the model's order: they share the object. Those of async ones
    follow, at the same time.
    """

    def __init__(self, instance: Any, schemas: Sequence[Mapping[str, Any]] | None = None) -> None:
        kind = type(instance)
        given = method_schemas(kind) if schemas is None else schemas
        super().__init__([getattr(instance, name) for name in method_names(kind)], given)
        self._instance = instance
        self._is_scored = not hasattr(instance, "get_reward")

    @staticmethod
    def check(kind: type) -> None:
        if not method_names(kind):
            raise SettingError(
                f"{kind.__name__} has no tools: write public methods, with types and docstrings, that a model may "
                "call; or step(message), which answers its messages"
            )

    async def reset(self, row: Mapping[str, Any], *, seed: int) -> Start:
        parameters = inspect.signature(self._instance.reset).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        given = {name: value for name, value in row.items() if takes_all or name in parameters}
        observation = await self.calls.method(self._instance.reset, **given)
        messages = prompt_messages(row.get("prompt"))
        if observation is not None and not isinstance(observation, str):
            raise TypeError(f"reset returned {described(observation)}: return a text that follows the prompt, or None")
        return Start(with_observation(messages, observation, "") if observation else messages, self._schemas)

    async def step(self, message: Message) -> Step:
        step = await super().step(message)
        return Step(reward=await self.final_reward(), done=True) if step.done else step

    async def answer_all(self, calls: Sequence[Mapping[str, Any]]) -> list[tuple[dict[str, Any], bool]]:
        answers: dict[int, tuple[dict[str, Any], bool]] = {}
        together = {
            place for place, call in enumerate(calls) if is_async(self._functions.get(call["function"]["name"]))
        }
        for place, call in enumerate(calls):
            if place not in together:
                answers[place] = await self.answer(call)
        found = await gathered(self.answer(calls[place]) for place in together)
        answers |= dict(zip(together, found, strict=True))
        return [answers[place] for place in range(len(calls))]

    async def final_reward(self) -> float | None:
        """What `get_reward` gives, once; None where there is none, or it was asked before. If it fails, that is a
        grader's failure: all calls of tools were answered."""
        if self._is_scored:
            return None
        self._is_scored = True
        try:
            return as_reward(await self.calls.method(self._instance.get_reward))
        except WrongShape as wrong:
            said = f"{type(self._instance).__name__}.get_reward returned {wrong}"
            raise EnvironmentFailed(said, "grader_failed") from None
        except EnvironmentFailed as failure:
            raise EnvironmentFailed(str(failure), "grader_failed") from None

    async def close(self) -> None:
        close: Callable[[], Any] | None = getattr(self._instance, "close", None)
        if callable(close):
            await self.calls.method(close)
