"""How a tool is described to a model, and whether a call's arguments fit the description."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import SettingError
from ..spelling import did_you_mean
from .text import described

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_WORDS = {"integer": "an integer", "array": "a list", "object": "an object"}


def tool_name(tool: Any) -> str:
    """
    >>> tool_name(functools.partial(len)), tool_name({"type": "function", "function": {"name": "add"}})
    ('len', 'add')
    """
    if isinstance(tool, Mapping):
        return str(tool.get("function", tool).get("name", ""))
    while isinstance(tool, functools.partial):
        tool = tool.func
    return str(getattr(tool, "__name__", type(tool).__name__))


def tool_schema(tool: Callable[..., Any] | Mapping[str, Any]) -> dict[str, Any]:
    """What a chat template is told about a tool, from its name, its annotations and its docstring."""
    if isinstance(tool, Mapping):
        return dict(tool)
    name, function, fixed = tool_name(tool), tool, set[str]()
    while isinstance(function, functools.partial):
        taken = list(inspect.signature(function.func).parameters)[: len(function.args)]
        fixed |= {*taken, *function.keywords}
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__.__get__(function)  # an object; that has the annotations
    _check_described(name, function, fixed)
    from transformers.utils.chat_template_utils import get_json_schema  # slow to import

    try:
        schema = dict(get_json_schema(function))
    except Exception as error:
        raise SettingError(f"tool {name!r} cannot be described to a model: {error}") from error
    parameters = schema["function"]["parameters"]
    for one in fixed & parameters["properties"].keys():
        del parameters["properties"][one]
    if "required" in parameters:
        parameters["required"] = [one for one in parameters["required"] if one not in fixed]
    return schema | {"function": schema["function"] | {"name": name}}


def _check_described(name: str, function: Callable[..., Any], fixed: set[str]) -> None:
    """Raise where something of the user's is missing, with what to write."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:
        raise SettingError(
            f"tool {name!r} has no signature ({error}): wrap it in a typed function of your own"
        ) from error
    doc = inspect.getdoc(function)
    if not doc:
        raise SettingError(f"tool {name!r} has no docstring, by which a model would know what it does: write one")
    for parameter in parameters:
        if parameter.name in fixed or (parameter.name in ("self", "cls") and parameter.annotation is parameter.empty):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SettingError(
                f"tool {name!r} takes {str(parameter).partition(':')[0]!r}, and a model can only give arguments that "
                "have a name: write each as a parameter of its own"
            )
        if parameter.annotation is parameter.empty:
            raise SettingError(
                f"tool {name!r}: parameter {parameter.name!r} has no type: write '{parameter.name}: int'"
            )
        if f"{parameter.name}:" not in doc and f"{parameter.name} (" not in doc:
            raise SettingError(
                f"tool {name!r}: parameter {parameter.name!r} is not described in the docstring: write, in a section "
                f"'Args:', the line '    {parameter.name}: what it is'"
            )


def fault_of_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Why arguments do not fit a tool's description, for the model; empty if they do.

    >>> schema = {"properties": {"count": {"type": "integer"}, "unit": {"type": "string"}}, "required": ["count"]}
    >>> fault_of_arguments({"count": "1"}, schema), fault_of_arguments({"units": 1}, schema)
    ("'count' must be an integer, not '1'", "there is no argument 'units'; did you mean 'unit'?")
    """
    properties = schema.get("properties") or {}
    for name in arguments:
        if name not in properties and not schema.get("additionalProperties"):
            return f"there is no argument {name!r}" + (did_you_mean(name, properties) or _listed(properties))
    for name in schema.get("required") or ():
        if name not in arguments:
            return f"the argument {name!r} is missing"
    faults = (_fault(value, properties[name], repr(name)) for name, value in arguments.items() if name in properties)
    return next(filter(None, faults), "")


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return f" (there are: {', '.join(names)})" if names else " (it takes none)"


def _fault(value: Any, schema: Any, where: str) -> str:
    """Why a value does not fit a JSON schema, as far as types go; empty if it does."""
    if not isinstance(schema, Mapping):
        return ""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        faults = [_fault(value, choice, where) for choice in choices]
        return "" if "" in faults else " or ".join(dict.fromkeys(faults))
    types = _types(schema)
    if types and not any(_is(value, one) for one in types):
        words = " or ".join(_WORDS.get(one, f"a {one}" if one != "null" else one) for one in types)
        return f"{where} must be {words}, not {described(value)}"
    if schema.get("enum") and value is not None and value not in schema["enum"]:
        return f"{where} must be one of {', '.join(map(repr, schema['enum']))}, not {described(value)}"
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema.get("items")] * len(value)
        inner = (_fault(one, item, f"{where}[{place}]") for place, (one, item) in enumerate(zip(value, items)))  # noqa: B905
        return next(filter(None, inner), "")
    if isinstance(value, dict):
        properties, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        inner = (_fault(one, properties.get(name, rest), f"{where}[{name!r}]") for name, one in value.items())
        return next(filter(None, inner), "")
    return ""


def _types(schema: Mapping[str, Any]) -> list[str]:
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else list(declared or ())
    known = [one for one in types if one in _PYTHON_TYPES]
    return [*known, "null"] if known and schema.get("nullable") and "null" not in known else known


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()  # 3.0 is one in JSON
    return isinstance(value, _PYTHON_TYPES[kind])
