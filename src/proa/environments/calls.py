"""How environments call functions of the user's: here directly; a host puts deadlines around them."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from .failures import Raised


class Calls:
    """Calls functions, sync or async, and raises `Raised` for whatever they raise."""

    async def tool(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call what the model may call."""
        return await self.method(function, **arguments)

    async def method(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call what belongs to the environment; sync functions in a thread, so that others go on."""
        try:
            if is_async(function):
                return await function(**arguments)
            called = functools.partial(function, **arguments)
            found = await asyncio.get_running_loop().run_in_executor(None, called)
            return await found if inspect.isawaitable(found) else found
        except Exception as error:
            raise Raised(error) from error


def is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        return False  # its `__call__` is its objects'
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
