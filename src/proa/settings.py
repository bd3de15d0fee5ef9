"""Settings as frozen dataclasses whose fields are checked against their annotations when an object is made.

    @dataclass(frozen=True, kw_only=True)
    class Mine(Settings):
        clip: Annotated[float, Field(gt=0, le=1)] = 0.2

    Mine(clip=3)  # SettingError: clip must be a number, more than 0 and at most 1, not 3

Nothing is converted: a configuration that says "0.1", a text, is refused. Only lists become the tuples or sets that an
annotation wants, because YAML has no others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from .errors import SettingError
from .spelling import did_you_mean
from .wrong_values import must_be

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class WrongSettingError(SettingError):
    """One setting of an object cannot be used as written, or there is none of that name."""

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of settings. A subclass is a dataclass too; its `__post_init__` may check what single fields cannot say."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, check in _checks(kind).items():
            check.refuse(getattr(self, name))


Kind = TypeVar("Kind", bound="DataclassInstance")


def make_settings(kind: type[Kind], values: Mapping[str, Any], owner: str) -> Kind:
    """A dataclass of settings from what a configuration gives.

    `owner` has them, for error messages, e.g. `algorithm 'grpo'`.
    """
    _refuse_undecorated(kind)
    known = {one.name: one for one in fields(kind) if one.init}
    check_names(values, known, owner)
    for name, one in known.items():
        if name not in values and _is_required(one):
            raise SettingError(f"{owner} needs the setting {name!r}, which has no default")
    annotations = _annotations(kind)
    return kind(**{name: _as_annotated(value, annotations[name]) for name, value in values.items()})


def check_names(given: Iterable[str], known: Collection[str], owner: str) -> None:
    """Raise for a setting that its owner has not."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise WrongSettingError(f"{owner} has no setting {name!r}{hint} (it has: {', '.join(known)})", name)


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Those that are not at their defaults: `make_settings` makes an equal object of them."""
    values = {one: getattr(settings, one.name) for one in fields(settings) if one.init}
    return {one.name: value for one, value in values.items() if _is_required(one) or value != _default(one)}


def _is_required(one: dataclasses.Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


class _Check:
    """What one field may be."""

    def __init__(self, name: str, annotation: Any) -> None:
        self._name = name
        self._allowed = _allowed(annotation)
        self._choices = [choice for choice in get_args(annotation) if isinstance(choice, str)]
        self._adapter = _adapter(annotation)

    def refuse(self, value: Any) -> None:
        """Raise where a value is not what the annotation says."""
        try:
            self._adapter.validate_python(value)
        except ValidationError as error:
            problem, name, allowed = error.errors()[0], self._name, self._allowed
            if not allowed:  # what is wrong may be deep inside
                name, value = ".".join([name, *map(str, problem["loc"])]), problem["input"]
                allowed = must_be(problem) or ""
            wrong = f" must be {allowed}" if allowed else f": {problem['msg']}"
            raise WrongSettingError(f"{name}{wrong}, not {value!r}{self._hint(value)}", self._name) from None

    def _hint(self, value: Any) -> str:
        if not isinstance(value, str):
            return ""
        if self._allowed.startswith("a number"):  # PyYAML reads 3e-5 as a text
            return " (a text: in YAML write 3.0e-5, with the point)"
        return did_you_mean(value, self._choices)


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    except PydanticUserError:  # a model or a dataclass, which says itself how strict it is
        return TypeAdapter(annotation)


@cache
def _checks(kind: type[Any]) -> dict[str, _Check]:
    annotations = _annotations(kind)
    _refuse_undecorated(kind)
    return {one.name: _Check(one.name, annotations[one.name]) for one in fields(kind)}


def _annotations(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise SettingError(f"the settings of {kind.__name__} cannot be read: {error}") from error


def _refuse_undecorated(kind: type[Any]) -> None:
    """Raise for settings of a class that is not a dataclass itself: nothing would read them."""
    names = [one.name for one in fields(kind)]
    for name, annotation in vars(kind).get("__annotations__", {}).items():
        if name not in names and "ClassVar" not in str(annotation):
            raise SettingError(
                f"{kind.__name__}.{name} looks like a setting, and {kind.__name__} is not a dataclass: write "
                f"@dataclass(frozen=True, kw_only=True) above it"
            )


def _as_annotated(value: Any, annotation: Any) -> Any:
    """A list as the tuple or set that an annotation wants: YAML and JSON have lists alone.

    >>> _as_annotated([[1, 2]], tuple[tuple[int, int], ...] | None)
    ((1, 2),)
    """
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if not isinstance(value, list) or kind is list:
        return value
    if kind is Annotated:
        return _as_annotated(value, parts[0])
    if kind in (Union, UnionType):
        found = (_as_annotated(value, part) for part in parts)
        return next((one for one in found if one is not value), value)
    if kind not in (tuple, set, frozenset):
        return value
    each = parts if kind is tuple and parts[1:] != (...,) and parts else parts[:1] * len(value)
    return kind(map(_as_annotated, value, each)) if len(each) == len(value) else kind(value)


_TYPES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def _allowed(annotation: Any) -> str:
    """What an annotation allows, in words; empty where there are none for it.

    >>> _allowed(Annotated[float, Field(gt=0, le=1)])
    'a number, more than 0 and at most 1'
    >>> _allowed(Literal["a", "b"]), _allowed(int | None)
    ('one of a, b', 'a whole number, or null')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (Union, UnionType) and NoneType in parts and len(parts) == 2:
        inner = _allowed(next(part for part in parts if part is not NoneType))
        return f"{inner}, or null" if inner else ""
    if origin is Annotated:
        inner, found = _allowed(parts[0]), [one for part in parts[1:] for one in _constraints(part)]
        bounds = [
            f"{words} {getattr(one, key):g}" for key, words in _BOUNDS.items() for one in found if hasattr(one, key)
        ]
        return inner + (", " if inner and bounds else "") + (" and ".join(bounds) if inner else "")
    return _TYPES.get(annotation, "")


def _constraints(part: Any) -> list[Any]:
    return part.metadata if isinstance(part, FieldInfo) else [part]
