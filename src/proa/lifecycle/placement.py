"""Which process each callback lives in when a run has several, and whether it can be sent there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import NotPortableError
from .hooks import BaseCallback, MakerCallback, TrainerCallback, callback_family
from .roles import CallbackFactory, make_callback


@dataclass
class Placement:
    """Callbacks by the process they live in. A factory goes where its callback belongs."""

    driver: list[BaseCallback] = field(default_factory=list)
    trainer: list[BaseCallback | CallbackFactory] = field(default_factory=list)
    """Trainer rank 0."""
    every_trainer: list[BaseCallback | CallbackFactory] = field(default_factory=list)
    makers: list[BaseCallback | CallbackFactory] = field(default_factory=list)

    @classmethod
    def assign(cls, callbacks: Iterable[BaseCallback | CallbackFactory]) -> Placement:
        """Assign callbacks to processes.

        A factory of a callback for every rank or every maker is called there: each process has its own callback.
        """
        placement = cls()
        for given in callbacks:
            made = make_callback(given)
            family = callback_family(type(made))
            if family is MakerCallback:
                placement.makers.append(given)
            elif not isinstance(made, TrainerCallback):
                placement.driver.append(made)
            elif made.all_ranks:
                placement.every_trainer.append(given)
            else:
                placement.trainer.append(given)
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
        if (reason := _pickle_error(dumps, callback)) is None:
            continue
        name = type(callback).__name__
        for attribute, value in vars(callback).items() if hasattr(callback, "__dict__") else ():
            if (why := _pickle_error(dumps, value)) is not None:
                raise NotPortableError(
                    f"{name} lives in another process and cannot be sent there, because of its attribute "
                    f"{attribute!r} ({why}): open it in the first hook instead, or pass a factory that can be "
                    f"pickled, e.g. functools.partial({name}, ...)"
                )
        raise NotPortableError(
            f"{name} lives in another process and cannot be sent there ({reason}): define it at the top level "
            f"of a module, or pass a factory"
        )


def _pickle_error(dumps: Callable[[Any], bytes], value: object) -> str | None:
    """Why a value cannot be pickled; None if it can. Pickling runs user code, which may raise anything."""
    try:
        dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
