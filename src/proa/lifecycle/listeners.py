"""The calls that moments make: which method of which callback, with which arguments."""

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
from .hooks import BaseCallback, EveryMoment, Hook, callback_family, check_hook_names
from .moments import MOMENTS, Moment, Scope
from .policy import ErrorPolicy
from .unread import unread_items

Function = Callable[..., object]


class SharedLock:
    """The lock of a callback, shared by all managers that have it, and alive as long as one of them."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.lock = threading.RLock()  # reentrant: a hook may fire a moment that its own callback hears
        self._managers: WeakSet[Any] = WeakSet()

    @staticmethod
    def find(owner: object) -> SharedLock:
        # Keyed by identity, because callbacks may be unhashable; the lock keeps its owner alive, so the identity
        # cannot be reused while the entry exists. Each access to a bound method creates a new object.
        key = (id(owner.__self__), id(owner.__func__)) if isinstance(owner, MethodType) else (id(owner), 0)
        with _registry_lock:
            found = _shared_locks.get(key)
            if found is None:
                found = _shared_locks[key] = SharedLock(owner)
            return found

    def join(self, manager: object) -> list[Any]:
        """Add a manager; return the others, which must lock this callback from now on."""
        with _registry_lock:
            others = [other for other in self._managers if other is not manager]
            self._managers.add(manager)
            return others

    def leave(self, manager: object) -> None:
        with _registry_lock:
            self._managers.discard(manager)

    @property
    def is_shared(self) -> bool:
        with _registry_lock:
            return len(self._managers) > 1


_shared_locks: WeakValueDictionary[tuple[int, int], SharedLock] = WeakValueDictionary()
_registry_lock = threading.Lock()


@dataclass(eq=False, slots=True)
class Registration:
    """One callback or function in one manager."""

    owner: Any
    name: str
    priority: int
    error_policy: ErrorPolicy
    thread_safe: bool
    given: object = None
    """The `ListeningFunction` of a function, so that it can be removed without the function's other registrations."""
    shared_lock: SharedLock = field(init=False)
    listeners: list[Listener] = field(default_factory=list)
    errors: int = 0
    first_error: str = ""
    disabled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise HookError(f"{self.name}: priority={self.priority!r} is not a number; write e.g. Priority.LOGGING")
        if not isinstance(self.error_policy, ErrorPolicy):
            raise HookError(f"{self.name}: error_policy={self.error_policy!r}; write e.g. ErrorPolicy.LOG")
        self.shared_lock = SharedLock.find(self.owner)

    def belongs_to(self, owner: object) -> bool:
        """Whether this registers the given object; two bound methods of one object and function are the same."""
        return self.given is owner or self.shared_lock is SharedLock.find(owner)


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
    """Of its background tasks: the hook that starts a task succeeds even if the task fails later."""
    profiled_seconds: float = 0.0
    calls_before: int = 0
    """How often the moment had fired when this listener joined."""

    unread: frozenset[str] = frozenset()
    """Items of the payload that it takes and never reads."""

    def takes(self, item: str) -> bool:
        """Whether it is given that item of the payload."""
        everything = isinstance(self.registration.owner, EveryMoment)
        return everything or any(fragment.rpartition("=")[2] == item for fragment in self.arguments)

    def reads(self, item: str) -> bool:
        """Whether it is given that item, and may look at it."""
        return self.takes(item) and item not in self.unread


def callback_listeners(registration: Registration) -> list[Listener]:
    """One listener for each hook that the callback overrides."""
    callback: BaseCallback = registration.owner
    cls = type(callback)
    family = callback_family(cls)
    attributes = getattr(callback, "__dict__", {})
    check_hook_names(cls, {name: value for name, value in attributes.items() if name.startswith("on_")})
    if isinstance(callback, EveryMoment):
        heard = MOMENTS.keys() if callback.only_moments is None else callback.only_moments
        return [_moment_listener(registration, moment) for moment in MOMENTS.values() if moment.name in heard]
    overridden = []
    for hook in family.hooks.values():
        method = attributes.get(hook.name) or getattr(cls, hook.name)
        if method is not None and method is not getattr(family, hook.name):
            overridden.append(_hook_listener(registration, hook))
    return overridden


def function_listener(registration: Registration, moment: Moment, every: int, uses_asyncio: bool | None) -> Listener:
    """The listener of a decorated function."""
    function: Function = registration.owner
    if isinstance(function, BaseCallback) or not callable(function):
        raise HookError(f"{registration.name} is not a function; register a callback object with manager.add(...)")
    check_runnable(function, registration.name)
    arguments = payload_arguments(function, registration.name, moment)
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


def payload_arguments(function: Function, name: str, moment: Moment) -> tuple[str, ...]:
    """The part of the payload that a function's parameters name, as source fragments.

    Parameters receive payload items by name. One required parameter with another name receives the first item; other
    parameters keep their defaults; `*args` and `**kwargs` receive the rest.
    """
    try:
        signature = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature; like list.append, they take one argument
        signature = [inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY)]
    bound = function.keywords if isinstance(function, functools.partial) else {}
    parameters = [p for p in signature if p.name not in bound]
    items = {p.name: p.name for p in parameters if p.name in moment.payload}
    unknown = [
        p
        for p in parameters
        if p.name not in items and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(unknown) == 1 and moment.payload[0] not in items:
        items[unknown[0].name] = moment.payload[0]
    elif unknown:
        wrong = unknown[0].name
        raise HookError(
            f"{name} has a parameter {wrong!r}, which is not an item of {moment.name!r}"
            f"{did_you_mean(wrong, moment.payload)} (its items: {', '.join(moment.payload)})"
        )
    return tuple(_fragments(parameters, items, moment))


def _fragments(parameters: Sequence[inspect.Parameter], items: dict[str, str], moment: Moment) -> Iterator[str]:
    """Positional arguments until a parameter is skipped, then keyword arguments."""
    by_position = True
    rest = [item for item in moment.payload if item not in items.values()]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from rest if by_position else ()
            by_position, rest = False, [] if by_position else rest
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield from (f"{item}={item}" for item in rest)
        elif parameter.name not in items:
            by_position = False
        elif by_position and parameter.kind is not parameter.KEYWORD_ONLY:
            yield items[parameter.name]
        else:
            yield f"{parameter.name}={items[parameter.name]}"


def check_runnable(function: object, name: str) -> None:
    """Raise unless a hook is a plain function: a coroutine or a generator would be created and never run."""
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (function, called)):
        raise HookError(
            f"{name} is 'async def', but hooks are plain functions: write 'def', and start async work in it "
            f"with asyncio.create_task(...); it runs between steps and is finished before training ends"
        )
    if any(inspect.isgeneratorfunction(f) for f in (function, called)):
        raise HookError(
            f"{name} is a generator (it has a 'yield'), which a call would not run: hooks are plain functions"
        )


def _hook_listener(registration: Registration, hook: Hook) -> Listener:
    callback: BaseCallback = registration.owner
    method = getattr(callback, hook.name)
    name = f"{registration.name}.{hook.name}"
    check_runnable(method, name)
    _check_signature(method, name, hook)
    arguments = (*hook.positional, *(f"{item}={item}" for item in hook.keyword))
    return Listener(
        registration,
        hook.moment,
        method,
        arguments,
        name,
        uses_asyncio=_uses_asyncio(callback, method),
        # Makers' hooks are never called with None in place of experience.
        unread=unread_items(method, arguments) if hook.moment.scope is not Scope.MAKER else frozenset(),
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


def _moment_listener(registration: Registration, moment: Moment) -> Listener:
    callback: EveryMoment = registration.owner
    items = ", ".join(f"{item!r}: {item}" for item in moment.payload)
    return Listener(
        registration,
        moment,
        callback.on_moment,
        (repr(moment.name), "{" + items + "}"),
        registration.name,
        uses_asyncio=_uses_asyncio(callback, callback.on_moment),
        unread=callback.unread,
    )


def _uses_asyncio(callback: BaseCallback, method: Function) -> bool:
    if callback.uses_asyncio is not None:
        return callback.uses_asyncio
    # A hook may call any method of the user's classes.
    user_classes = [
        base for base in type(callback).__mro__ if base.__module__ != BaseCallback.__module__ and base is not object
    ]
    methods = [value for base in user_classes for value in vars(base).values() if inspect.isfunction(value)]
    return mentions_asyncio(method) or any(map(mentions_asyncio, methods))


def protect_experience(listener: Listener, call: Function) -> Function:
    """The call of a hook that may change parts of the experience: changes to other parts raise, and those of a failed
    hook are undone."""
    if getattr(listener.registration.owner, "forwards", False):
        return call  # the manager that it forwards to checks

    def checked(*args: Any, **kwargs: Any) -> object:
        items = [*args, *kwargs.values()]
        items += [item for mapping in items if isinstance(mapping, dict) for item in mapping.values()]
        experience = next((item for item in items if isinstance(item, Experience)), None)
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

    def locked_call(*args: Any, **kwargs: Any) -> object:
        with lock:
            return call(*args, **kwargs)

    return locked_call
