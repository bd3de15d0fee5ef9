"""What a value must be instead, in plain words, where pydantic says that it is none of that."""

from __future__ import annotations

from pydantic_core import ErrorDetails

from .spelling import did_you_mean

_TYPES = {
    "int": "a whole number", "float": "a number", "finite_number": "a finite number", "bool": "true or false",
    "string": "text", "path": "a path", "list": "a list", "tuple": "a list", "dict": "a mapping, {key: value}",
    "mapping": "a mapping, {key: value}",
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("more than", "gt"), "greater_than_equal": ("at least", "ge"), "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}  # fmt: skip


def must_be(problem: ErrorDetails) -> str | None:
    """What a value must be, by pydantic's kind of error; None where pydantic has the better words.

    >>> must_be({"type": "greater_than_equal", "ctx": {"ge": 1}, "loc": (), "msg": "", "input": 0})
    'at least 1'
    >>> must_be({"type": "int_parsing", "loc": (), "msg": "", "input": "ten"})
    'a whole number'
    """
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"{words} {context[key]:g}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind == "string_too_short":
        return "text that is not empty"
    if kind == "int_from_float":
        return _TYPES["int"]
    return _TYPES.get(kind) or _TYPES.get(kind.removesuffix("_type").removesuffix("_parsing"))


def likely_choice(problem: ErrorDetails) -> str:
    """`; did you mean 'x'?` where one of several words was wanted and the value is nearly one."""
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    return did_you_mean(
        problem["input"], str(problem["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
    )
