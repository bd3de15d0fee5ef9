"""OpenEnv's clients: `reset()` and `step(action)`, whose results have observation, reward and done."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, get_args

from ..protocol import Message, Start, Step
from ..text import as_text, described, prompt_messages, said, with_observation
from .adapter import Adapter

_BESIDE = ("done", "reward", "metadata")
"""Fields of every observation; an action has `metadata`."""


class OpenEnvEnvironment(Adapter):
    """A client of an environment that runs elsewhere, one session for each trajectory.

    The model's text is the action's one text field, or its fields as JSON. `action` names the field where there are
    several, or is a function that makes the action from the message. What is observed is the observation's one text
    field, or all as JSON; `observation` names the field. `reset` gets the seed where `seeded`.
    """

    parameters = ("action", "observation", "seeded")

    def __init__(
        self,
        make: Callable[..., Any],
        action: str | Callable[[Message], Any] | None = None,
        observation: str | None = None,
        seeded: bool = True,
    ) -> None:
        self._client = make()
        self._action = action
        self._observation = observation
        self._seeded = seeded

    @staticmethod
    def fits(kind: type) -> bool:
        return all(callable(getattr(kind, name, None)) for name in ("reset", "step", "_step_payload", "_parse_result"))

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Any:
        def begun(result: Any) -> Start:
            messages = prompt_messages(row.get("prompt"))
            text = self._observed(result)
            return Start(with_observation(messages, text) if text else messages)

        # A server takes no negative seeds, and its generators rarely more than 32 bits.
        given = {"seed": seed % 2**32} if self._seeded else {}
        return _then(self._client.reset(**given), begun)

    def step(self, message: Message) -> Any:
        def taken(result: Any) -> Step:
            text = self._observed(result)
            messages = [{"role": "user", "content": text}] if text else []
            return Step(messages, reward=result.reward, done=bool(result.done))

        return _then(self._client.step(self._action_of(message)), taken)

    def close(self) -> Any:
        return self._client.close()

    def _action_of(self, message: Message) -> Any:
        if callable(self._action):
            return self._action(message)
        kind, text = _action_class(self._client), said(message)
        if self._action is not None:
            return kind(**{self._action: text})
        if (name := _one_text_field(kind)) is not None:
            return kind(**{name: text})
        try:
            given = json.loads(text)
        except ValueError:
            given = None
        if isinstance(given, dict):
            return kind(**given)
        raise ValueError(
            f"the model's text is no JSON object with the fields of {kind.__name__}: name the field that takes the "
            "text, environment.params: {action: name}"
        )

    def _observed(self, result: Any) -> str:
        fields = _fields_of(result.observation)
        if self._observation is not None:
            if self._observation not in fields:
                raise ValueError(f"the observation {described(fields)} has no field {self._observation!r}")
            return as_text(fields[self._observation])
        shown = {name: value for name, value in fields.items() if name not in _BESIDE}
        texts = [value for value in shown.values() if isinstance(value, str)]
        return as_text(texts[0] if len(texts) == 1 else shown) if shown else ""


def _then(found: Any, use: Callable[[Any], Any]) -> Any:
    """What `use` makes of a result, which an async client's is to be waited for."""
    if not inspect.isawaitable(found):
        return use(found)

    async def wait() -> Any:
        return use(await found)

    return wait()


def _action_class(client: Any) -> Any:
    """The class of its actions: the first parameter of the generic class that it is."""
    for kind in type(getattr(client, "async_client", client)).__mro__:
        for base in getattr(kind, "__orig_bases__", ()):
            found = get_args(base)
            if found and isinstance(found[0], type):
                return found[0]
    return dict


def _one_text_field(kind: Any) -> str | None:
    """The one field of an action that must be given, if that is a text."""
    if hasattr(kind, "model_fields"):
        needed = {name: one.annotation for name, one in kind.model_fields.items() if one.is_required()}
    elif dataclasses.is_dataclass(kind):
        nothing = dataclasses.MISSING
        all_fields = [one for one in dataclasses.fields(kind) if one.name not in _BESIDE]
        needed = {one.name: one.type for one in all_fields if one.default is one.default_factory is nothing}
    else:
        return None
    return next(iter(needed)) if len(needed) == 1 and next(iter(needed.values())) in (str, "str") else None


def _fields_of(observation: Any) -> dict[str, Any]:
    if hasattr(observation, "model_dump"):
        return dict(observation.model_dump())
    if dataclasses.is_dataclass(observation) and not isinstance(observation, type):
        return dataclasses.asdict(observation)
    return dict(observation) if isinstance(observation, Mapping) else {"text": observation}
