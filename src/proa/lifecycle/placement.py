"""Which process each callback lives in when a run has several, and whether it can be sent there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from ..errors import NotPortableError
from .functions import ListeningFunction
from .hooks import BaseCallback, MakerCallback, TrainerCallback, callback_family
from .roles import CallbackFactory, make_callback


@dataclass
class Placement:
    """Callbacks by the process they live in. A factory goes where its callback belongs."""

    driver: list[BaseCallback | ListeningFunction] = field(default_factory=list)
    trainer: list[BaseCallback | CallbackFactory] = field(default_factory=list)
    """Trainer rank 0."""
    every_trainer: list[BaseCallback | CallbackFactory] = field(default_factory=list)
    makers: list[BaseCallback | CallbackFactory] = field(default_factory=list)
    in_one_process: list[BaseCallback | CallbackFactory | ListeningFunction] = field(default_factory=list)
    """Those of the driver and the trainers, in the order given, for a run that has both in one process."""

    @classmethod
    def assign(cls, callbacks: Iterable[BaseCallback | CallbackFactory | ListeningFunction]) -> Placement:
        """Assign callbacks to processes.

        A function stays in the driver. A factory of a callback for every rank or every maker is called there: each
        process has its own callback.
        """
        placement = cls()
        for given in callbacks:
            if isinstance(given, ListeningFunction):
                placement.driver.append(given)
                placement.in_one_process.append(given)
                continue
            made = make_callback(given)
            if callback_family(type(made)) is MakerCallback:
                placement.makers.append(given)
                continue
            if not isinstance(made, TrainerCallback):
                placement.driver.append(made)
            elif made.all_ranks:
                placement.every_trainer.append(given)
            else:
                placement.trainer.append(given)
            placement.in_one_process.append(given if isinstance(made, TrainerCallback) else made)
        return placement

    @property
    def travelling(self) -> list[BaseCallback | CallbackFactory]:
        """The callbacks that leave the driver's process."""
        return [*self.trainer, *self.every_trainer, *self.makers]


def check_portable(callbacks: Iterable[object], dumps: Callable[[Any], bytes] = pickle.dumps) -> None:
    """Raise for a callback that cannot be pickled, naming the attribute that is the cause.

    `dumps` is the pickler of the transport, e.g. cloudpickle's where the run is on Ray.
    """
    for callback in callbacks:
        name = _name(callback)
        check_portable_part(
            callback,
            dumps,
            f"open it in the first hook instead, or pass a factory that can be pickled, e.g. functools.partial({name}, "
            f"...)",
            "define it at the top level of a module, or pass a factory",
        )


def check_portable_part(part: object, dumps: Callable[[Any], bytes], without_it: str, otherwise: str) -> None:
    """Raise if a part of a run cannot be pickled. The remedy is `without_it` where one attribute is the cause, and
    `otherwise` where it is the whole."""
    if (reason := _pickle_error(dumps, part)) is None:
        return
    name = _name(part)
    for attribute, value in vars(part).items() if hasattr(part, "__dict__") else ():
        if (why := _pickle_error(dumps, value)) is not None:
            raise NotPortableError(
                f"{name} lives in another process and cannot be sent there, because of its attribute {attribute!r} "
                f"({why}): {without_it}"
            )
    raise NotPortableError(f"{name} lives in another process and cannot be sent there ({reason}): {otherwise}")


def _name(part: object) -> str:
    """A function's own name; of anything else, the name of its class."""
    return part.__name__ if isinstance(part, FunctionType) else type(part).__name__


def _pickle_error(dumps: Callable[[Any], bytes], value: object) -> str | None:
    """Why a value cannot be pickled; None if it can. Pickling runs user code, which may raise anything."""
    try:
        dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
