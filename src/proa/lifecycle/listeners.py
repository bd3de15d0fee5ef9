"""From a callback or a function to the calls that a moment makes: who is called, with what, in what order."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from ..data.experience import Experience
from ..data.experience_changes import copied, put_back, refuse_other_changes
from ..errors import HookError
from ..spelling import did_you_mean
from .asyncio_use import mentions_asyncio
from .hooks import BaseCallback, EveryMoment, Hook, family_of, refuse_unknown_hooks
from .moments import MOMENTS, Moment
from .policy import ErrorPolicy
from .unread import unread_items

Function = Callable[..., object]


class Seat:
    """The one lock of a callback, shared by every manager that has it, and alive as long as one does."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.lock = threading.RLock()  # reentrant: a hook may fire a moment that its own callback hears
        self._managers: WeakSet[Any] = WeakSet()

    @staticmethod
    def of(owner: object) -> Seat:
        # Keyed by identity, because callbacks may be unhashable; the seat keeps its owner alive, so the
        # identity cannot be reused while the entry exists. Each access to a bound method makes a new one.
        key = (id(owner.__self__), id(owner.__func__)) if isinstance(owner, MethodType) else (id(owner), 0)
        with _seats_lock:
            seat = _seats.get(key)
            if seat is None:
                seat = _seats[key] = Seat(owner)
            return seat

    def join(self, manager: object) -> list[Any]:
        """Take a manager in; returns the others, who must lock this callback from now on."""
        with _seats_lock:
            others = [other for other in self._managers if other is not manager]
            self._managers.add(manager)
            return others

    def leave(self, manager: object) -> None:
        with _seats_lock:
            self._managers.discard(manager)

    @property
    def is_shared(self) -> bool:
        with _seats_lock:
            return len(self._managers) > 1


_seats: WeakValueDictionary[tuple[int, int], Seat] = WeakValueDictionary()
_seats_lock = threading.Lock()


@dataclass(eq=False, slots=True)
class Registration:
    """One callback or function as one manager knows it."""

    owner: Any
    name: str
    priority: int
    error_policy: ErrorPolicy
    thread_safe: bool
    seat: Seat = field(init=False)
    listeners: list[Listener] = field(default_factory=list)
    errors: int = 0
    disabled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise HookError(f"{self.name}: priority={self.priority!r} is no number; write e.g. Priority.LOGGING")
        if not isinstance(self.error_policy, ErrorPolicy):
            raise HookError(f"{self.name}: error_policy={self.error_policy!r}; write e.g. ErrorPolicy.LOG")
        self.seat = Seat.of(self.owner)

    def is_of(self, owner: object) -> bool:
        """Whether this is the registration of that object; a bound method is the same each time it is taken."""
        return self.seat is Seat.of(owner)


@dataclass(slots=True)
class Firings:
    """How often a moment fired, for one listener that is called at each n-th firing."""

    count: int = 0

    def __next__(self) -> int:
        self.count += 1
        return self.count


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
    firings: Firings = field(default_factory=lambda: Firings())
    uses_asyncio: bool = False
    errors: int = 0
    failures_in_a_row: int = 0
    task_failures_in_a_row: int = 0
    """Of the background tasks it started: the hook that starts a task succeeds even if the task then fails."""
    profiled_seconds: float = 0.0
    calls_before: int = 0
    """How often the moment had fired when this listener joined."""

    unread: frozenset[str] = frozenset()
    """Items of the payload that it takes and never looks at."""

    def takes(self, item: str) -> bool:
        """Whether it is given that item of the payload."""
        everything = isinstance(self.registration.owner, EveryMoment)
        return everything or any(fragment.rpartition("=")[2] == item for fragment in self.arguments)

    def reads(self, item: str) -> bool:
        """Whether it is given that item, and may look at it."""
        return self.takes(item) and item not in self.unread


def listeners_of_callback(registration: Registration) -> list[Listener]:
    """One listener for each hook that the callback overrides."""
    callback: BaseCallback = registration.owner
    cls = type(callback)
    family = family_of(cls)
    attributes = getattr(callback, "__dict__", {})
    refuse_unknown_hooks(cls, {name: value for name, value in attributes.items() if name.startswith("on_")})
    if family is EveryMoment:
        return [_listener_to_everything(registration, moment) for moment in MOMENTS.values()]
    return [
        _listener_of_hook(registration, hook)
        for hook in family.hooks.values()
        if _overrides(callback, family, hook.name)
    ]


def listener_of_function(registration: Registration, moment: Moment, every: int, uses_asyncio: bool | None) -> Listener:
    """The one listener of a decorated function."""
    function: Function = registration.owner
    if isinstance(function, BaseCallback) or not callable(function):
        raise HookError(f"{registration.name} is no function; a callback object is registered with manager.add(...)")
    refuse_what_never_runs(function, registration.name)
    arguments = arguments_for(function, registration.name, moment)
    return Listener(
        registration,
        moment,
        function,
        arguments,
        registration.name,
        every=every,
        uses_asyncio=mentions_asyncio(function) if uses_asyncio is None else uses_asyncio,
        unread=unread_items(function, arguments),
    )


def arguments_for(function: Function, name: str, moment: Moment) -> tuple[str, ...]:
    """The part of the payload that a function's parameters ask for, as source fragments.

    Parameters take payload items by name. One required parameter whose name is no item takes the first
    item; parameters with defaults that name no item keep them; `*args` and `**kwargs` take the rest.
    """
    parameters = [p for p in _parameters(function) if p.name not in _bound_by_partial(function)]
    asked = {p.name: p.name for p in parameters if p.name in moment.payload}
    strangers = [p for p in parameters if p.name not in moment.payload and _is_required(p)]
    if len(strangers) == 1 and moment.payload[0] not in asked:
        asked[strangers[0].name] = moment.payload[0]
    elif strangers:
        wrong = strangers[0].name
        raise HookError(
            f"{name} asks for {wrong!r}, which {moment.name!r} does not carry{did_you_mean(wrong, moment.payload)} "
            f"(it carries: {', '.join(moment.payload)})"
        )
    return tuple(_fragments(parameters, asked, moment))


def _fragments(parameters: Sequence[inspect.Parameter], asked: dict[str, str], moment: Moment) -> Iterator[str]:
    """Positionally as far as no parameter is skipped, by keyword from there on."""
    by_position = True
    rest = [item for item in moment.payload if item not in asked.values()]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from rest if by_position else ()
            by_position, rest = False, [] if by_position else rest
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield from (f"{item}={item}" for item in rest)
        elif parameter.name not in asked:
            by_position = False
        elif by_position and parameter.kind is not parameter.KEYWORD_ONLY:
            yield asked[parameter.name]
        else:
            yield f"{parameter.name}={asked[parameter.name]}"


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable


def _bound_by_partial(function: Function) -> set[str]:
    return set(function.keywords) if isinstance(function, functools.partial) else set()


def refuse_what_never_runs(function: object, name: str) -> None:
    """Hooks are plain functions: a coroutine or a generator would be created and never run."""
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (function, called)):
        raise HookError(
            f"{name} is 'async def', and hooks are plain functions: write 'def', and start async work in it "
            f"with asyncio.create_task(...); it runs between steps and is finished before training ends"
        )
    if any(inspect.isgeneratorfunction(f) for f in (function, called)):
        raise HookError(f"{name} has a 'yield' in it, so calling it would run nothing: hooks are plain functions")


def _parameters(function: Function) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature; like list.append, they take one thing
        return [inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY)]


def _overrides(callback: BaseCallback, family: type[BaseCallback], name: str) -> bool:
    own = getattr(callback, "__dict__", {}).get(name) or getattr(type(callback), name)
    return own is not None and own is not getattr(family, name)


def _listener_of_hook(registration: Registration, hook: Hook) -> Listener:
    callback: BaseCallback = registration.owner
    method = getattr(callback, hook.name)
    name = f"{registration.name}.{hook.name}"
    refuse_what_never_runs(method, name)
    _check_signature(method, name, hook)
    arguments = (*hook.positional, *(f"{item}={item}" for item in hook.keyword))
    return Listener(
        registration,
        hook.moment,
        method,
        arguments,
        name,
        uses_asyncio=_uses_asyncio(callback, method),
        unread=unread_items(method, arguments),
    )


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
    return mentions_asyncio(method) or any(mentions_asyncio(f) for f in _own_methods(type(callback)))


def _own_methods(cls: type) -> list[Function]:
    """The methods of a callback class and its bases, down to Proa's own: any of them may be what a hook calls."""
    own = (base for base in cls.__mro__ if base.__module__ != BaseCallback.__module__ and base is not object)
    return [value for base in own for value in vars(base).values() if inspect.isfunction(value)]


def changing_only_what_may_be(listener: Listener, call: Function) -> Function:
    """The call of a hook that is shown experience; what else it changes is refused, and so is half of a change."""
    if getattr(listener.registration.owner, "forwards", False):
        return call  # who it is forwarded to is called by a manager too

    def checked(*args: Any, **kwargs: Any) -> object:
        shown = [*args, *kwargs.values()]
        shown += [item for mapping in shown if isinstance(mapping, dict) for item in mapping.values()]
        experience = next((item for item in shown if isinstance(item, Experience)), None)
        if experience is None:
            return call(*args, **kwargs)
        before = copied(experience)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            put_back(experience, before)
            raise
        refuse_other_changes(listener.name, before, experience)
        return result

    return checked


def locked(lock: threading.RLock, call: Function) -> Function:
    """The call, made by one thread at a time."""

    def under_lock(*args: Any, **kwargs: Any) -> object:
        with lock:
            return call(*args, **kwargs)

    return under_lock
