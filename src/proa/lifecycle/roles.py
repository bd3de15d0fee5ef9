"""Where a manager sits, and which callbacks belong there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from ..errors import HookError
from .hooks import BaseCallback, Callback, MakerCallback, TrainerCallback, family_of
from .moments import Moment, Scope

CallbackFactory: TypeAlias = Callable[[], BaseCallback]


class Role(Enum):
    """What a manager fires for."""

    RUN = "run"
    """The whole run, or a loop of the user's own: every kind of callback belongs."""
    TRAINER = "trainer"
    MAKER = "maker"


def refuse_misplaced(owner: object, role: Role) -> None:
    """Raise for a callback whose hooks could never be called in that role."""
    if not isinstance(owner, BaseCallback):
        return
    family = family_of(type(owner))
    name = type(owner).__name__
    if role is Role.TRAINER and family is MakerCallback:
        raise HookError(f"{name} is a MakerCallback and was given to a trainer: give it to the makers")
    if role is Role.MAKER and family in (TrainerCallback, Callback):
        raise HookError(f"{name} is a {family.__name__} and was given to a maker: give it to the trainer")


def refuse_moment_elsewhere(moment: Moment, role: Role) -> None:
    """Raise for a function on a moment that never fires in that role."""
    scopes = {Role.TRAINER: {Scope.TRAINER, Scope.FLEET, Scope.EXPERIMENT}, Role.MAKER: {Scope.MAKER}}
    if role in scopes and moment.scope not in scopes[role]:
        raise HookError(f"{moment.name!r} never fires in a {role.value}: listen to it in the run's own manager")


def callbacks_in(given: Iterable[Any]) -> list[Any]:
    """What `callbacks=` was given, as a list; raises for what is likely to be meant as one."""
    if isinstance(given, (BaseCallback, str, Mapping)) or not isinstance(given, Iterable):
        raise HookError(
            f"callbacks={given!r}: give a list, e.g. callbacks=[MyCallback()]; "
            f"a {{kind, params}} entry becomes a callback with proa.callbacks.build_callback(...)"
        )
    return list(given)


def callback_from(given: BaseCallback | CallbackFactory) -> BaseCallback:
    """The callback itself, or what a factory (a class, or a function of no arguments) makes."""
    if isinstance(given, BaseCallback):
        return given
    name = getattr(given, "__name__", repr(given))
    advice = "a function that should hear a moment is registered with manager.on(event)"
    if isinstance(given, (str, Mapping)):
        raise HookError(f"{given!r} is not a callback: make one of it with proa.callbacks.build_callback(...)")
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
