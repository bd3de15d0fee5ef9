"""What every adapter is: an environment made from another library's."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..protocol import Message


class Adapter(ABC):
    """Methods return what the protocol has, or something to wait for that gives it."""

    parameters: ClassVar[tuple[str, ...]] = ()
    """Of `params`, those for the adapter itself; the others are for what it adapts."""

    @abstractmethod
    def __init__(self, make: Callable[..., Any]) -> None:
        """`make` makes what is adapted."""

    @staticmethod
    @abstractmethod
    def fits(kind: type) -> bool:
        """Whether a class is what this adapts."""

    @abstractmethod
    def reset(self, row: Mapping[str, Any], *, seed: int) -> Any: ...

    @abstractmethod
    def step(self, message: Message) -> Any: ...

    @abstractmethod
    def close(self) -> Any: ...


def takes(kind: type, method: str, /, *given: Any, **named: Any) -> bool:
    """Whether a class has a method that can be called so."""
    function = getattr(kind, method, None)
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, *given, **named)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True
