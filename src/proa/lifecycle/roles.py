"""The role of a manager, and which callbacks belong there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from ..errors import HookError
from .hooks import BaseCallback, Callback, MakerCallback, TrainerCallback, callback_family
from .moments import Moment, Scope

CallbackFactory: TypeAlias = Callable[[], BaseCallback]


class Role(Enum):
    """What a manager fires for."""

    RUN = "run"
    """The whole run, or a user's own loop: every kind of callback belongs."""
    TRAINER = "trainer"
    MAKER = "maker"


def check_placement(owner: object, role: Role) -> None:
    """Raise for a callback whose hooks would never be called in this role."""
    if not isinstance(owner, BaseCallback):
        return
    family = callback_family(type(owner))
    name = type(owner).__name__
    if role is Role.TRAINER and family is MakerCallback:
        raise HookError(f"{name} is a MakerCallback and was given to a trainer: give it to the makers")
    if role is Role.MAKER and family in (TrainerCallback, Callback):
        raise HookError(f"{name} is a {family.__name__} and was given to a maker: give it to the trainer")


def check_scope(moment: Moment, role: Role) -> None:
    """Raise for a function on a moment that never fires in this role."""
    scopes = {Role.TRAINER: {Scope.TRAINER, Scope.FLEET, Scope.EXPERIMENT}, Role.MAKER: {Scope.MAKER}}
    if role in scopes and moment.scope not in scopes[role]:
        raise HookError(f"{moment.name!r} never fires in a {role.value}: listen to it in the run's own manager")


def callback_list(given: Iterable[Any]) -> list[Any]:
    """The value of `callbacks=` as a list; raises for a single callback and the like."""
    if isinstance(given, (BaseCallback, str, Mapping)) or not isinstance(given, Iterable):
        raise HookError(
            f"callbacks={given!r}: give a list, e.g. callbacks=[MyCallback()]; "
            f"a {{kind, params}} entry becomes a callback with proa.callbacks.build_callback(...)"
        )
    return list(given)


def make_callback(given: BaseCallback | CallbackFactory) -> BaseCallback:
    """The callback itself, or the one that a factory (a class, or a function without arguments) makes."""
    if isinstance(given, BaseCallback):
        return given
    name = getattr(given, "__name__", repr(given))
    advice = "register a function for a moment with manager.on(event)"
    if isinstance(given, (str, Mapping)):
        raise HookError(f"{given!r} is not a callback: build one with proa.callbacks.build_callback(...)")
    if not callable(given):
        raise HookError(
            f"{name} is neither a callback (derive it from TrainerCallback, MakerCallback or Callback) "
            f"nor a factory that makes one"
        )
    try:
        made = given()
    except TypeError as error:
        raise HookError(
            f"{name} was taken for a factory of a callback, and calling it without arguments failed ({error}); {advice}"
        ) from error
    if not isinstance(made, BaseCallback):
        raise HookError(f"{name} was taken for a factory of a callback, and made {made!r}; {advice}")
    return made
