"""The environment of tools: typed Python functions that a model may call, until it answers without a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import SettingError
from ..spelling import did_you_mean
from .calls import Calls
from .failures import Raised
from .protocol import Message, Start, Step
from .schemas import fault_of_arguments, tool_name, tool_schema
from .text import as_text, prompt_messages, raised


class ToolEnvironment:
    """Calls tools until the model answers without a call; rewards come from reward functions.

    The calls of one message run at the same time. What cannot be called as the model wrote it, and what a tool raises,
    is answered to the model and counted. A subclass may give rewards, or answer otherwise where there are no calls:

        class Bank(ToolEnvironment):
            def __init__(self):
                super().__init__([self.pay])
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        schemas: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._functions = tools_by_name(functions)
        self._schemas = list(map(tool_schema, functions)) if schemas is None else list(schemas)
        self._parameters = {tool_name(one): one.get("function", one).get("parameters") or {} for one in self._schemas}
        self.calls = Calls()
        """How functions are called. The host of an environment puts its own here, with deadlines."""

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Any:
        return Start(prompt_messages(row.get("prompt")), self._schemas)

    async def step(self, message: Message) -> Step:
        calls = message.get("tool_calls") or []
        if not calls:
            return Step(done=True)
        answers = await self.answer_all(calls)
        errors = sum(is_error for _, is_error in answers)
        return Step([answer for answer, _ in answers], tool_calls=len(calls), tool_errors=errors)

    def close(self) -> Any:
        pass

    async def answer_all(self, calls: Sequence[Mapping[str, Any]]) -> list[tuple[dict[str, Any], bool]]:
        """For each call, in order, the message that answers it, and whether it tells of an error."""
        return await gathered([self.answer(call) for call in calls])

    async def answer(self, call: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        name, text, is_error = call["function"]["name"], "", True
        if fault := self.fault_of(call):
            text = f"Error: {fault}"
        else:
            try:
                text = as_text(await self.calls.tool(self._functions[name], **call["function"]["arguments"]))
                is_error = False
            except Raised as failure:  # a tool of the user's: the model is told
                text = f"Error: {raised(failure.error)}"
        answer = {"role": "tool", "name": name, "content": text}
        return answer | ({"tool_call_id": call["id"]} if call.get("id") else {}), is_error

    def fault_of(self, call: Mapping[str, Any]) -> str:
        """Why a call cannot be made as the model wrote it; empty if it can."""
        if "error" in call:
            return f"the call {call['error']}"
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name not in self._functions:
            near = did_you_mean(name, self._functions) or f" (there are: {', '.join(self._functions)})"
            return f"there is no tool {name!r}{near}"
        fault = fault_of_arguments(arguments, self._parameters.get(name, {}))
        return f"{name}: {fault}" if fault else ""


def tools_by_name(functions: Sequence[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    named: dict[str, Callable[..., Any]] = {}
    for function in functions:
        name = tool_name(function)
        if name in named:
            raise SettingError(f"two tools have the same name, {name!r}: rename one of them")
        named[name] = function
    return named


async def gathered(awaitables: Iterable[Any]) -> list[Any]:
    """All results, in order. Where one raises that is raised at once, and the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
