"""Plain functions in `callbacks=`: each listens to the event that its name says."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass

from ..errors import HookError
from ..spelling import did_you_mean
from .hooks import FAMILIES
from .listeners import Function, Listener, check_runnable, payload_arguments
from .moments import MOMENTS, Moment
from .policy import ErrorPolicy, Priority


@dataclass(frozen=True, slots=True, eq=False)
class ListeningFunction:
    """A function and the moment it is to be registered for."""

    function: Function
    moment: Moment
    every: int = 1
    priority: int = Priority.DEFAULT
    error_policy: ErrorPolicy = ErrorPolicy.RAISE
    thread_safe: bool = False
    uses_asyncio: bool | None = None

    @classmethod
    def from_listener(cls, listener: Listener) -> ListeningFunction:
        """The function that a manager registered with `on(...)`, for another manager to register."""
        registration = listener.registration
        return cls(
            registration.owner,
            listener.moment,
            listener.every,
            registration.priority,
            registration.error_policy,
            registration.thread_safe,
            listener.uses_asyncio,
        )


def listening_function(given: object) -> ListeningFunction | None:
    """A function of `callbacks=` with its event; None for a callback, a class and a factory.

    The name is a hook (`on_step_end`), an event (`step_end`, `maker_batch_end`) or `on_` and an event. A function of
    another name is a factory if it can be called without arguments, and refused if it cannot.
    """
    function = given
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) or not callable(given):
        return None
    name = function.__name__
    moments = _named_moments(name)
    if len(moments) > 1:
        options = " or ".join(moment.method for moment in moments)
        raise HookError(f"the function {name} in callbacks= may mean several events: name it {options}")
    if not moments:
        if _is_callable_without_arguments(given):
            return None
        raise HookError(_unknown(name))
    check_runnable(given, name)
    payload_arguments(given, name, moments[0])
    return ListeningFunction(given, moments[0])


def _named_moments(name: str) -> list[Moment]:
    """The moments that a function's name can mean: one, or several if hooks of that name hear different ones."""
    hooked = {family.hooks[name].moment.name for family in FAMILIES if name in family.hooks}
    return [moment for moment in MOMENTS.values() if moment.name in hooked] or [
        moment for moment in MOMENTS.values() if moment.method == name.removeprefix("on_")
    ]


def _unknown(name: str) -> str:
    if name == "<lambda>":
        return (
            "a lambda in callbacks= does not say which event it listens to: register it with a manager, e.g. "
            "manager.on('step_end')(lambda state: ...), and give the manager"
        )
    names = {moment.method for moment in MOMENTS.values()} | {hook for family in FAMILIES for hook in family.hooks}
    return (
        f"the function {name} in callbacks= does not say which event it listens to: name it after one, e.g. "
        f"def on_step_end(state), or register it with a manager, manager.on('step_end')({name})"
        f"{did_you_mean(name, names)}"
    )


def _is_callable_without_arguments(function: Function) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # ValueError: a builtin without a signature
        return False
    return True
