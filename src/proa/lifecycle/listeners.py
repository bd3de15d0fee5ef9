"""From a callback or a function to the calls that a moment makes: who is called, with what, in what order."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from ..errors import HookError
from ..spelling import did_you_mean
from .asyncio_use import mentions_asyncio
from .hooks import BaseCallback, EveryMoment, Hook, family_of, refuse_unknown_hooks
from .moments import MOMENTS, Moment
from .policy import ErrorPolicy

Function = Callable[..., object]


class Seat:
    """The one lock of a callback, shared by every manager that has it, and alive as long as one does."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.lock = threading.RLock()  # reentrant: a hook may fire a moment that its own callback hears
        self.managers: WeakSet[Any] = WeakSet()

    @staticmethod
    def of(owner: object) -> Seat:
        # Keyed by identity, because callbacks may be unhashable; the seat keeps its owner alive, so the
        # identity cannot be reused while the entry exists.
        with _seats_lock:
            seat = _seats.get(id(owner))
            if seat is None:
                seat = _seats[id(owner)] = Seat(owner)
            return seat


_seats: WeakValueDictionary[int, Seat] = WeakValueDictionary()
_seats_lock = threading.Lock()


@dataclass(eq=False, slots=True)
class Registration:
    """One callback or function as one manager knows it."""

    owner: Any
    name: str
    priority: int
    error_policy: ErrorPolicy
    thread_safe: bool
    seat: Seat
    listeners: list[Listener] = field(default_factory=list)
    errors: int = 0
    disabled: bool = False


@dataclass(eq=False, slots=True)
class Listener:
    """One call that a moment makes."""

    registration: Registration
    moment: Moment
    call: Function
    arguments: tuple[str, ...]
    """Source fragments over the payload's names, e.g. `state` or `step=step`."""
    name: str
    every: int = 1
    firings: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    uses_asyncio: bool = False
    errors: int = 0
    failures_in_a_row: int = 0
    task_failures_in_a_row: int = 0
    """Of the background tasks it started: the hook that starts a task succeeds even if the task then fails."""
    profiled_seconds: float = 0.0
    calls_before: int = 0
    """How often the moment had fired when this listener joined."""

    def reads(self, item: str) -> bool:
        """Whether it takes that item of the payload."""
        everything = isinstance(self.registration.owner, EveryMoment)
        return everything or any(fragment.rpartition("=")[2] == item for fragment in self.arguments)


def listeners_of_callback(registration: Registration) -> list[Listener]:
    """One listener for each hook that the callback overrides."""
    callback: BaseCallback = registration.owner
    cls = type(callback)
    family = family_of(cls)
    refuse_unknown_hooks(cls, {name: value for name, value in vars(callback).items() if name.startswith("on_")})
    if family is EveryMoment:
        return [_listener_to_everything(registration, moment) for moment in MOMENTS.values()]
    return [
        _listener_of_hook(registration, hook)
        for hook in family.hooks.values()
        if _overrides(callback, family, hook.name)
    ]


def listener_of_function(registration: Registration, moment: Moment, every: int) -> Listener:
    """The one listener of a decorated function."""
    function: Function = registration.owner
    refuse_async(function, registration.name)
    arguments = arguments_for(function, registration.name, moment)
    return Listener(
        registration,
        moment,
        function,
        arguments,
        registration.name,
        every=every,
        uses_asyncio=mentions_asyncio(function),
    )


def arguments_for(function: Function, name: str, moment: Moment) -> tuple[str, ...]:
    """The part of the payload that a function's parameters ask for, as source fragments.

    Parameters take payload items by name. A function's only required parameter, if no item has its
    name, takes the first item; parameters with defaults that name no item keep their defaults.
    """
    parameters = _parameters(function)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return moment.payload
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    strangers = [p for p in named if p.name not in moment.payload and p.default is p.empty]
    required = [p for p in named if p.default is p.empty]
    if strangers and len(required) == 1:
        return (moment.payload[0] if strangers[0].kind is not strangers[0].KEYWORD_ONLY
                else f"{strangers[0].name}={moment.payload[0]}",)  # fmt: skip
    if strangers:
        wrong = strangers[0].name
        raise HookError(
            f"{name} asks for {wrong!r}, which {moment.name!r} does not carry{did_you_mean(wrong, moment.payload)} "
            f"(it carries: {', '.join(moment.payload)})"
        )
    asked = [p for p in named if p.name in moment.payload]
    fragments = _fragments(named, asked)
    if len(named) < len(parameters):  # **kwargs takes the rest
        fragments += [f"{item}={item}" for item in moment.payload if item not in {p.name for p in asked}]
    return tuple(fragments)


def refuse_async(function: object, name: str) -> None:
    """Hooks are plain functions: a coroutine would be created and never run."""
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (function, called)):
        raise HookError(
            f"{name} is 'async def', and hooks are plain functions: write 'def', and start async work in it "
            f"with asyncio.create_task(...); it runs between steps and is finished before training ends"
        )


def _parameters(function: Function) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature; like list.append, they take one thing
        return [inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY)]


def _fragments(named: Sequence[inspect.Parameter], asked: Sequence[inspect.Parameter]) -> list[str]:
    """Positionally as far as no parameter is skipped, by keyword from there on."""
    fragments = []
    for position, parameter in enumerate(asked):
        by_position = parameter.kind is not parameter.KEYWORD_ONLY and named[position] is parameter
        fragments.append(parameter.name if by_position else f"{parameter.name}={parameter.name}")
    return fragments


def _overrides(callback: BaseCallback, family: type[BaseCallback], name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(family, name)


def _listener_of_hook(registration: Registration, hook: Hook) -> Listener:
    callback: BaseCallback = registration.owner
    method = getattr(callback, hook.name)
    name = f"{registration.name}.{hook.name}"
    refuse_async(method, name)
    _check_signature(method, name, hook)
    arguments = (*hook.positional, *(f"{item}={item}" for item in hook.keyword))
    return Listener(
        registration, hook.moment, method, arguments, name, uses_asyncio=_uses_asyncio(callback, method)
    )  # fmt: skip


def _check_signature(method: Function, name: str, hook: Hook) -> None:
    try:
        signature = inspect.signature(method)
    except ValueError:
        return
    try:
        bound = signature.bind(*hook.positional, **{item: item for item in hook.keyword})
    except TypeError as mismatch:
        raise HookError(
            f"{name}{signature} cannot be called as {hook} ({mismatch}): write def {_definition(hook)}"
        ) from None
    swapped = [
        parameter
        for parameter, item in bound.arguments.items()
        if isinstance(item, str) and parameter != item and parameter in hook.positional
    ]
    if swapped:
        raise HookError(
            f"{name}{signature} takes {', '.join(swapped)} in another order than {hook}: write def {_definition(hook)}"
        )


def _definition(hook: Hook) -> str:
    keyword = ("*", *(f"{item}=None" for item in hook.keyword)) if hook.keyword else ()
    return f"{hook.name}({', '.join(('self', *hook.positional, *keyword))})"


def _listener_to_everything(registration: Registration, moment: Moment) -> Listener:
    callback: EveryMoment = registration.owner
    items = ", ".join(f"{item!r}: {item}" for item in moment.payload)
    return Listener(
        registration,
        moment,
        callback.on_moment,
        (repr(moment.name), "{" + items + "}"),
        registration.name,
        uses_asyncio=_uses_asyncio(callback, callback.on_moment),
    )


def _uses_asyncio(callback: BaseCallback, method: Function) -> bool:
    if callback.uses_asyncio is not None:
        return callback.uses_asyncio
    return mentions_asyncio(method)


def locked(lock: threading.RLock, call: Function) -> Function:
    """The call, made by one thread at a time."""

    def under_lock(*args: Any, **kwargs: Any) -> object:
        with lock:
            return call(*args, **kwargs)

    return under_lock


def each_nth(listener: Listener, call: Function) -> Function:
    """The call, made at each n-th firing only; the listener keeps the count, which outlives a recompilation."""

    def nth(*args: Any, **kwargs: Any) -> object:
        return call(*args, **kwargs) if next(listener.firings) % listener.every == 0 else None

    return nth
