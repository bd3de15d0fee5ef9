"""The keyword arguments of recipes as typed dictionaries, written from the configuration: so editors complete and check
them.

    python -m proa.config.typed_arguments > src/proa/recipes/arguments.py
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .run_config import DetachedConfig, SupervisedConfig

_HEADER = '''\
"""The keyword arguments of recipes: every setting of a run, and the objects that Python may give in its place.

Written by `python -m proa.config.typed_arguments` from the configuration, which says the same of files and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..algorithms import Algorithm
    from ..engines import EngineFactory
'''
_RUN = ""
_OBJECTS = {
    (_RUN, "model"): ("str", "Path", "PreTrainedModel"),
    (_RUN, "task"): ("str", "Path", "Any"),  # rows in a list, a dataset, or whatever gives rows
    (_RUN, "algorithm"): ("str", "Algorithm"),
    (_RUN, "engine"): ("str", "EngineFactory"),
    (_RUN, "critic"): ("str",),
    (_RUN, "reward"): ("str", "Callable[..., Any]", "Sequence[Callable[..., Any] | str]"),
    (_RUN, "tools"): ("Sequence[Callable[..., Any] | str]",),
    (_RUN, "environment"): ("str", "Callable[..., Any]", "Any"),  # a class, or an object
    (_RUN, "agent"): ("Callable[..., Any]",),
    ("RewardArguments", "functions"): ("Callable[..., Any]", "Sequence[Callable[..., Any]]"),
    ("RewardArguments", "model"): ("str",),
    ("EvalArguments", "evaluator"): ("Callable[..., Any]",),
    ("EvalArguments", "source"): ("Path", "Any"),
    ("EvalArguments", "metric"): ("Callable[..., Any]", "Sequence[Callable[..., Any]]"),
    ("TaskArguments", "source"): ("Path", "Any"),
    ("DetachedTaskArguments", "source"): ("Path", "Any"),
}
"""What a key of a section may be given as besides what a file can say."""
_BESIDE = {
    "tokenizer": ("str | Path | PreTrainedTokenizerBase", "a folder, or a tokenizer"),
    "resume": ("str | Path | None", "auto continues the run that is in its folder; or a checkpoint, or an address"),
    "allow_changes": ("bool", "resume although data, rewards or models have changed"),
    "overwrite": ("bool", "replace the run that is in the folder"),
}
"""What recipes take beside the configuration."""
_NAMES = {int: "int", float: "float", str: "str", bool: "bool", Path: "str | Path", type(None): "None", Any: "Any"}


def as_python() -> str:
    """The module `proa.recipes.arguments`."""
    written: dict[str, str] = {}
    for config, name in ((SupervisedConfig, "SupervisedArguments"), (DetachedConfig, "DetachedArguments")):
        _write(config, name, written)
    return "\n\n".join([_HEADER.rstrip(), *written.values()]) + "\n"


def _write(section: type[BaseModel], name: str, written: dict[str, str]) -> None:
    """Add the dictionary of a section, after those of the sections inside it."""
    is_run = section in (SupervisedConfig, DetachedConfig)
    lines = [f"\nclass {name}(TypedDict, total=False):"]
    for key, field in section.model_fields.items():
        if is_run and key == "callbacks":
            continue  # an argument of its own
        for inner in _sections(field.annotation):
            _write(inner, _dictionary(inner), written)
        objects = _OBJECTS.get((_RUN if is_run else name, key), ())
        types_ = _unique([*_types(field), *objects])
        types_.sort(key=lambda name: name == "None")  # last, and the others as they are
        lines += _field(key, " | ".join(types_), field.description or "")
    if is_run:
        for key, (type_, meaning) in _BESIDE.items():
            lines += _field(key, type_, meaning)
    written[name] = "\n".join(lines)


def _field(key: str, type_: str, meaning: str) -> list[str]:
    return [
        f"    {key}: {type_}",
        *textwrap.wrap(f'"""{meaning}"""', 116, initial_indent=" " * 4, subsequent_indent=" " * 4),
    ]


def _dictionary(section: type[BaseModel]) -> str:
    return section.__name__.removesuffix("Section") + "Arguments"


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    for part in get_args(annotation):
        yield from _sections(part)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _types(field: FieldInfo) -> list[str]:
    return _unique(_type(field.annotation).split(" | "))


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type(get_args(annotation)[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, get_args(annotation)))}]".replace("'", '"')
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type, get_args(annotation)))
    if origin in (list, tuple):
        return f"Sequence[{_type(get_args(annotation)[0])}]"
    if origin is dict:
        return "Mapping[str, Any]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _dictionary(annotation)
    return _NAMES[annotation]


def _unique(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


if __name__ == "__main__":
    print(as_python(), end="")
