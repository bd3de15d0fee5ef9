"""Whether a reward is still the same function: a digest of what it says, as far as that can be had."""

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

_OWN = __name__.partition(".")[0]
_MAKERS = ("__init__", "__post_init__", "__new__", "__setstate__")
"""Methods that make an object what it is."""


def identity(function: Any) -> str:
    """A digest of a function's source and of the user's functions and constants that it uses, in any module of theirs,
    without comments and layout; of its bytecode where there is no source. With it goes what it was made with and does
    not change: the settings of an object, a partial or a function within a function. Empty where neither can be had,
    and for what comes with Proa, whose version says it. Two digests can be compared if what stands before the colon is
    the same.
    """
    found: dict[str, str] = {}
    try:
        _collect(function, found)
    except Exception:  # whatever a user's object does when it is looked at: that nothing is known refuses nobody
        return ""
    if not found:
        return ""
    kind = "source" if all(text.startswith("source") for text in found.values()) else "bytecode"
    version = "" if kind == "source" else f"-{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.blake2b(repr(sorted(found.items())).encode("utf-8", "replace"), digest_size=16)
    return f"{kind}{version}:{digest.hexdigest()}"


def _collect(thing: Any, found: dict[str, str]) -> None:
    """What a function says, under its name, and the same for what it uses that is the user's."""
    if isinstance(thing, functools.partial):
        found[f"partial of {len(found)}"] = f"source {_plain([thing.args, sorted(thing.keywords.items())])}"
        return _collect(thing.func, found)
    if isinstance(thing, MethodType):
        _note_settings(thing.__self__, found)
        thing = thing.__func__
    thing = inspect.unwrap(thing) if isinstance(thing, FunctionType) else thing
    if not isinstance(thing, FunctionType | type):
        _note_settings(thing, found)
        return _collect(type(thing), found)  # an object: what its class says
    name = f"{thing.__module__}.{thing.__qualname__}"
    if name in found or thing.__module__.partition(".")[0] in (_OWN, "builtins"):
        return None
    found[name] = _said_by(thing)
    functions = [thing] if isinstance(thing, FunctionType) else _methods(thing)
    used = {key: value for one in functions for key, value in _used_by(one.__code__, one.__globals__).items()}
    used |= {base.__name__: base for base in getattr(thing, "__mro__", ())[1:]}
    for key, value in {**_closed_over(thing), **_defaults(thing)}.items():
        if isinstance(value, FunctionType):
            used[key] = value
        elif _is_plain(value):
            found[f"{name} with {key}"] = f"source {_plain(value)}"
    for key, value in used.items():
        if isinstance(value, FunctionType | type) and _is_the_users(value.__module__, thing.__module__):
            _collect(value, found)
        elif key.rpartition(".")[2].isupper() and _is_constant(value):  # others may be counted up
            found[f"{thing.__module__}.{key}"] = f"source {_plain(value)}"
    return None


def _is_the_users(module: str, own: str) -> bool:
    """Whether a module is one of those that are edited: not Python's, and not one that was installed."""
    if module == own:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        return False
    return not Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])


def _note_settings(thing: Any, found: dict[str, str]) -> None:
    """What an object was made with: plain attributes that only its `__init__` sets. Others may be counted up."""
    kind = type(thing)
    if isinstance(thing, type | ModuleType) or kind.__module__.partition(".")[0] in (_OWN, "builtins"):
        return
    methods = [method for one in kind.__mro__ for method in _methods(one) if method.__name__ not in _MAKERS]
    changing = {name for method in methods for name in _stored(method.__code__, "STORE_ATTR", "DELETE_ATTR")}
    for name, value in getattr(thing, "__dict__", {}).items():
        if name not in changing and _is_plain(value):
            found[f"{kind.__module__}.{kind.__qualname__} with {name}"] = f"source {_plain(value)}"


def _closed_over(thing: Any) -> dict[str, Any]:
    """What a function within a function has of the outer one, but for what it sets itself."""
    if not isinstance(thing, FunctionType):
        return {}
    changing = _stored(thing.__code__, "STORE_DEREF", "DELETE_DEREF")
    cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True))
    filled = {name: cell for name, cell in cells.items() if name not in changing and cell != CellType()}
    return {name: cell.cell_contents for name, cell in filled.items()}


def _stored(code: CodeType, *how: str) -> set[str]:
    """The names that some code sets, in functions within it too."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in how}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names.union(*(_stored(one, *how) for one in inner))


def _defaults(thing: Any) -> dict[str, Any]:
    """What parameters are if they are not given: the source names it, and may not say it."""
    if not isinstance(thing, FunctionType):
        return {}
    numbered = {f"default {place}": value for place, value in enumerate(thing.__defaults__ or ())}
    return {**numbered, **(thing.__kwdefaults__ or {})}


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


def _used_by(code: CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """What of its module a function mentions, by name; in functions within it too."""
    used = {name: names[name] for name in code.co_names if name in names}
    for module in [value for value in used.values() if isinstance(value, ModuleType)]:
        if _is_the_users(module.__name__, ""):
            inside = vars(module)
            used |= {f"{module.__name__}.{name}": inside[name] for name in code.co_names if name in inside}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            used |= _used_by(constant, names)
    return used


def _said_by(thing: Any) -> str:
    try:
        if getattr(thing, "__name__", "") == "<lambda>":
            raise OSError  # its source is the line that it stands in
        return f"source {ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(thing))))}"
    except (OSError, TypeError, SyntaxError, ValueError):
        functions = [thing] if isinstance(thing, FunctionType) else _methods(thing)
        return f"bytecode {[_compiled(function.__code__) for function in functions]}"


def _compiled(code: CodeType) -> list[Any]:
    constants = [_compiled(one) if isinstance(one, CodeType) else _plain(one) for one in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _plain(value: Any) -> str:
    """As text if that is the same in every process."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_plain, value)))}}}"
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_plain(inner)}' for key, inner in value.items())}}}"
    return repr(value) if isinstance(value, str | int | float | bool | bytes | None) else type(value).__qualname__
