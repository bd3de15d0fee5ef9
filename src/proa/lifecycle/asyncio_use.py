"""Whether a hook may start asyncio tasks, judged by its code and its module.

Setting an event loop costs more than dispatching to ten callbacks, so it is done only for hooks that may need it: those
whose module or own code mentions asyncio. A hook that uses asyncio through another module sets `uses_asyncio = True`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType


def mentions_asyncio(function: Callable[..., object]) -> bool:
    """True if asyncio, or anything from it, is a name in the function's module or in its code."""
    plain = _plain_function(function)
    if plain is None:
        return False
    return _code_mentions(plain.__code__) or any(_is_asyncio(value) for value in plain.__globals__.values())


def _plain_function(function: Callable[..., object]) -> FunctionType | None:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = getattr(type(function), "__call__", function)
    function = getattr(function, "__func__", function)
    return function if inspect.isfunction(function) else None


def _code_mentions(code: CodeType) -> bool:
    return "asyncio" in code.co_names or any(_code_mentions(c) for c in code.co_consts if isinstance(c, CodeType))


def _is_asyncio(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] == "asyncio"
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "asyncio"
