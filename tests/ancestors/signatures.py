"""Compares a hook or method with a documented signature."""

import inspect
import typing
from collections.abc import Callable
from typing import Any


def differences(
    method: Callable[..., Any], documented: dict[str, Any], *, keyword: dict[str, Any] | None = None
) -> str:
    """What of a documented signature a method does not have; `documented` are the types of its positional parameters
    by name, `keyword` the defaults of those that are given by keyword alone. Every hook returns None."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    hints = typing.get_type_hints(method)
    problems = []
    if [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] != list(documented):
        problems.append(f"positional: {parameters}")
    if {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} != (keyword or {}):
        problems.append(f"keyword: {parameters}")
    for name, kind in documented.items():
        if not is_a(hints[name], kind):
            problems.append(f"{name}: {hints[name]}, not {kind}")
    if hints["return"] is not type(None):
        problems.append(f"returns {hints['return']}")
    return "; ".join(problems)


def is_a(hint: Any, documented: Any) -> bool:
    """Whether a hint is the documented one, or says more exactly what is in the container."""
    return hint == documented or typing.get_origin(hint) is documented
