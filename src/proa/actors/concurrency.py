"""Which methods of an actor may run at the same time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def concurrency_group(name: str) -> Callable[[Method], Method]:
    """Mark a method for Ray's concurrency groups, without Ray: unmarked, an append would queue behind `fit`."""

    def mark(method: Method) -> Method:
        marked: tuple[Any, ...] = (method, inspect.unwrap(method))  # Ray looks at what a decorator has wrapped
        for one in marked:
            one.__ray_concurrency_group__ = name
        return method

    return mark
