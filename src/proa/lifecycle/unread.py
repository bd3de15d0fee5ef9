"""Which arguments a hook never reads, judged from its code.

Every `on_step_end(state, step_idx, batch, metrics)` is given the batch, and few read it. It may be large, and come from
another process, so the moment is fired without it if no hook reads it.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence

_READS_EVERYTHING = {"locals", "vars", "eval", "exec"}


def unread_items(function: Callable[..., object], fragments: Sequence[str]) -> frozenset[str]:
    """Payload items that a function takes and its code never names; none where its code cannot tell.

    `fragments` are the arguments of the call: items by position, then `parameter=item`.
    """
    plain = getattr(function, "__func__", function)
    if not inspect.isfunction(plain) or hasattr(plain, "__wrapped__"):
        return frozenset()
    code = plain.__code__
    if _READS_EVERYTHING & set(code.co_names):
        return frozenset()
    named = {
        name
        for instruction in dis.get_instructions(code)
        for name in (instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,))
        if isinstance(name, str)
    }
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # without *args and **kwargs
    by_position = code.co_varnames[int(plain is not function) : code.co_argcount]  # a method is given its object first
    unread = set()
    for place, fragment in enumerate(fragments):
        parameter, _, item = fragment.rpartition("=")
        if not parameter and place < len(by_position):
            parameter = by_position[place]
        if parameter in own and parameter not in named:
            unread.add(item)
    return frozenset(unread)
