"""Which methods of an actor may run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def concurrency_group(name: str) -> Callable[[Method], Method]:
    """Mark a method for Ray's concurrency groups, without Ray: unmarked, an append would queue behind `fit`."""

    def mark(method: Method) -> Method:
        method.__ray_concurrency_group__ = name  # type: ignore[attr-defined]
        return method

    return mark
