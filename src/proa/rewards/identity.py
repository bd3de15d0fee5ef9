"""Whether a reward is still the same function: a digest of its source, where that is available."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_INITIALIZERS = ("__init__", "__post_init__", "__new__", "__setstate__")
"""Methods that set up an object."""


def identity(function: Any) -> str:
    """A digest of a function's source and of the user's functions and constants that it uses, in all of their modules.

    Comments and layout do not count. Settings do, if they never change: those of an object, a partial or a closure.
    Where there is no source the bytecode counts. Empty if neither is available, and for functions of Proa itself, which
    its version identifies. Two digests can be compared if their parts before the colon are equal.
    """
    found: dict[str, str] = {}
    try:
        _collect(function, found)
    except Exception:  # a user's object may raise anything; an unknown digest refuses nothing
        return ""
    if not found:
        return ""
    kind = "source" if all(text.startswith("source") for text in found.values()) else "bytecode"
    version = "" if kind == "source" else f"-{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.blake2b(repr(sorted(found.items())).encode("utf-8", "replace"), digest_size=16)
    return f"{kind}{version}:{digest.hexdigest()}"


def _collect(thing: Any, found: dict[str, str]) -> None:
    """Collect a function's source under its name, and that of the user's functions that it uses."""
    if isinstance(thing, functools.partial):
        found[f"partial of {len(found)}"] = f"source {_plain([thing.args, sorted(thing.keywords.items())])}"
        return _collect(thing.func, found)
    if isinstance(thing, MethodType):
        _note_settings(thing.__self__, found)
        thing = thing.__func__
    thing = inspect.unwrap(thing) if isinstance(thing, FunctionType) else thing
    if not isinstance(thing, FunctionType | type):
        _note_settings(thing, found)
        return _collect(type(thing), found)  # an object: its class
    name = f"{thing.__module__}.{thing.__qualname__}"
    if name in found or thing.__module__.partition(".")[0] in (_PACKAGE, "builtins"):
        return None
    found[name] = _content(thing)
    functions = [thing] if isinstance(thing, FunctionType) else _methods(thing)
    used = {key: value for one in functions for key, value in _globals_used(one.__code__, one.__globals__).items()}
    used |= {base.__name__: base for base in getattr(thing, "__mro__", ())[1:]}
    # The source names the defaults of parameters and may not show their values.
    defaults: dict[str, Any] = {}
    if isinstance(thing, FunctionType):
        defaults = {f"default {place}": value for place, value in enumerate(thing.__defaults__ or ())}
        defaults |= thing.__kwdefaults__ or {}
    for key, value in {**_closure(thing), **defaults}.items():
        if isinstance(value, FunctionType):
            used[key] = value
        elif _is_plain(value):
            found[f"{name} with {key}"] = f"source {_plain(value)}"
    for key, value in used.items():
        if isinstance(value, FunctionType | type) and _is_user_module(value.__module__, thing.__module__):
            _collect(value, found)
        elif key.rpartition(".")[2].isupper() and _is_constant(value):  # others may change during a run
            found[f"{thing.__module__}.{key}"] = f"source {_plain(value)}"
    return None


def _is_user_module(module: str, own: str) -> bool:
    """Whether a module is the user's: neither Python's nor installed."""
    if module == own:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        return False
    return not Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])


def _note_settings(thing: Any, found: dict[str, str]) -> None:
    """Collect an object's settings: plain attributes that only its `__init__` sets."""
    kind = type(thing)
    if isinstance(thing, type | ModuleType) or kind.__module__.partition(".")[0] in (_PACKAGE, "builtins"):
        return
    methods = [method for one in kind.__mro__ for method in _methods(one) if method.__name__ not in _INITIALIZERS]
    changing = {name for method in methods for name in _stored(method.__code__, "STORE_ATTR", "DELETE_ATTR")}
    for name, value in getattr(thing, "__dict__", {}).items():
        if name not in changing and _is_plain(value):
            found[f"{kind.__module__}.{kind.__qualname__} with {name}"] = f"source {_plain(value)}"


def _closure(thing: Any) -> dict[str, Any]:
    """The variables of outer functions that an inner function uses and does not set."""
    if not isinstance(thing, FunctionType):
        return {}
    changing = _stored(thing.__code__, "STORE_DEREF", "DELETE_DEREF")
    cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True))
    filled = {name: cell for name, cell in cells.items() if name not in changing and cell != CellType()}
    return {name: cell.cell_contents for name, cell in filled.items()}


def _stored(code: CodeType, *operations: str) -> set[str]:
    """The names that code sets, including functions within it."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in operations}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names.union(*(_stored(one, *operations) for one in inner))


def _is_constant(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_constant, value.values()))
    if isinstance(value, list | set | frozenset):
        return all(map(_is_constant, value))
    return _is_plain(value) or isinstance(value, re.Pattern)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | bool | bytes | None)


def _methods(kind: type) -> list[FunctionType]:
    return [value for value in vars(kind).values() if isinstance(value, FunctionType)]


def _globals_used(code: CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """The globals that a function uses, by name, including functions within it."""
    used = {name: names[name] for name in code.co_names if name in names}
    for module in [value for value in used.values() if isinstance(value, ModuleType)]:
        if _is_user_module(module.__name__, ""):
            inside = vars(module)
            used |= {f"{module.__name__}.{name}": inside[name] for name in code.co_names if name in inside}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            used |= _globals_used(constant, names)
    return used


def _content(thing: Any) -> str:
    try:
        if getattr(thing, "__name__", "") == "<lambda>":
            raise OSError  # its source is the whole line around it
        return f"source {ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(thing))))}"
    except (OSError, TypeError, SyntaxError, ValueError):
        functions = [thing] if isinstance(thing, FunctionType) else _methods(thing)
        return f"bytecode {[_compiled(function.__code__) for function in functions]}"


def _compiled(code: CodeType) -> list[Any]:
    constants = [_compiled(one) if isinstance(one, CodeType) else _plain(one) for one in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _plain(value: Any) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_plain, value)))}}}"
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_plain(inner)}' for key, inner in value.items())}}}"
    return repr(value) if isinstance(value, str | int | float | bool | bytes | None) else type(value).__qualname__
