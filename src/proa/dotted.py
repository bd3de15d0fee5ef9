"""Finds the object at a dotted path: `package.module:name` or `package.module.name`; and names objects."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from .errors import SettingError
from .spelling import did_you_mean


class DottedPathError(SettingError, ImportError):
    """There is nothing at a dotted path."""


def resolve(path: str) -> Any:
    """The object at a dotted path; its module is imported.

    >>> resolve("math:floor") is resolve("math.floor")
    True
    """
    module_name, name = _parts(path)
    found = _import(module_name, path)
    for part in name.split("."):
        if not hasattr(found, part):
            names = [known for known in dir(found) if not known.startswith("_")]
            raise DottedPathError(f"{path!r}: {module_name} has no {part!r}{did_you_mean(part, names)}")
        found = getattr(found, part)
    return found


def check_module(path: str) -> None:
    """Raise for what is not a dotted path, or where its package is not there, or a module in one file in which the name
    does not occur. Nothing is imported."""
    module_name, name = _parts(path)
    package = module_name.partition(".")[0]
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise DottedPathError(f"{path!r}: no module {package!r} on Python's search path")
    file = Path(spec.origin or "")
    if package == module_name and file.suffix == ".py" and file.name != "__init__.py":
        _check_occurs(name.partition(".")[0], file, path)


_DEFINES_UNSEEN = r"import\s*\*|__getattr__|globals|vars|setattr|exec|sys\.modules"
"""With one of these in its text, a module may have names that do not occur there."""


def _check_occurs(name: str, file: Path, path: str) -> None:
    """Raise if the text of a module has the name nowhere, unless it may have it all the same, as every module has
    `__name__`."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if name.startswith("__") or re.search(rf"\b{re.escape(name)}\b|{_DEFINES_UNSEEN}", text):
        return
    defined = re.findall(r"^(?:async\s+def|def|class)\s+(\w+)", text, flags=re.MULTILINE)
    raise DottedPathError(f"{path!r}: {file.stem} has no {name!r}{did_you_mean(name, defined)}")


def name_of(thing: Any) -> str:
    """Of a class or a function: the same in every process, which an object's address is not.

    >>> name_of(functools.partial(resolve, "math:floor"))
    'resolve'
    """
    while isinstance(thing, functools.partial):
        thing = thing.func
    return str(getattr(thing, "__name__", type(thing).__name__))


def _parts(path: str) -> tuple[str, str]:
    """The module, and the name in it.

    >>> _parts("rewards/mine.py:exact")
    Traceback (most recent call last):
    proa.dotted.DottedPathError: 'rewards/mine.py:exact' names a file: write its module, 'rewards.mine:exact'
    """
    file, colon, name = path.partition(":")
    if file.endswith(".py"):
        module = file.removesuffix(".py").lstrip("./").replace("/", ".")
        raise DottedPathError(f"{path!r} names a file: write its module, '{module}:{name or 'name'}'")
    module_name = file
    if not colon:
        module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise DottedPathError(f"{path!r} is not a dotted path: write 'package.module:name'")
    return module_name, name


def _import(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise DottedPathError(f"{path!r}: no module {error.name!r} on Python's search path") from None
        raise DottedPathError(f"{path!r}: importing {module_name} failed: {error}") from error
    except Exception as error:  # the user's module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise DottedPathError(f"{path!r}: importing {module_name} failed: {reason}") from error
