"""Reads a configuration: a YAML file, then flags. Mistakes are reported with their line and the nearest known name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..record.run_folder import decode_numbers
from ..spelling import did_you_mean
from ..wrong_values import likely_choice, must_be
from .algorithm_outlines import OUTLINES
from .experiment_config import ArmContent, ExperimentConfig, KeyPath
from .foreign_names import name_here, names_inside
from .run_config import OUTLINED, RESTORED, SHORT_FORMS, RunConfig, config_type, drop_foreign_keys
from .sections import MISTAKE
from .supervised_settings import SUPERVISED
from .yaml_text import ConfigError, YamlError, YamlSyntaxError, load, read_text, unshared

Model = TypeVar("Model", bound=BaseModel)


def load_run_config(
    file: Path | str | None = None, flags: Sequence[str] = (), *, recipe: str | None = None, **changes: Any
) -> RunConfig:
    """The configuration of `file`, changed by `--key value` flags and by keyword: a `DetachedConfig` or, for `sft`,
    `dpo` and `reward_model`, a `SupervisedConfig`.

    Keys may be dotted (`--sampling.group_size 16`); `-` and `_` are equivalent. `recipe` is the default algorithm; an
    algorithm with another recipe is an error.
    """
    return _load(file, flags, recipe, changes, None)


def outline_run_config(
    file: Path | str | None = None, flags: Sequence[str] = (), *, recipe: str | None = None, **changes: Any
) -> RunConfig:
    """The same without a look at its algorithm and engine, which may import torch: enough to know its folder."""
    return _load(file, flags, recipe, changes, OUTLINED)


def _load(
    file: Path | str | None,
    flags: Sequence[str],
    recipe: str | None,
    changes: Mapping[str, Any],
    context: dict[str, bool] | None,
) -> RunConfig:
    content, lines = _read(Path(file)) if file is not None else ({}, {})
    for key in changes:
        lines = _lines_without(key, lines)
    return _build(content, flags, changes, lines, str(file) if file else "", recipe, context)


def change_run_config(config: RunConfig, *, recipe: str | None = None, **changes: Any) -> RunConfig:
    """A configuration with some keys changed, checked like a new one."""
    content = config.model_dump() | {"algorithm": config.algorithm.source(), "engine": config.engine.source()}
    return _build(content, (), changes, {}, "", recipe)


def load_experiment_config(
    file: Path | str | None = None, flags: Sequence[str] = (), **changes: Any
) -> ExperimentConfig:
    """The configuration of an experiment, changed by flags and by keyword. Its arms are validated too."""
    content, lines = _read(Path(file)) if file is not None else ({}, {})
    for key, value in {**_parse_flags(flags), **changes}.items():
        _put(content, key, unshared(value))
        lines = _lines_without(key, lines)
    name = str(file) if file else ""
    lines |= _named_lines(content.get("runs"), lines)
    config = _validate(ExperimentConfig, content, lines, name)
    for outline in (True, False):  # what can be wrong without a look at algorithms, which imports torch, comes first
        for arm, arm_content in config.arms.items():
            try:
                arm_config(config, arm, lines=_arm_lines(arm_content, lines), file=name, outline=outline)
            except ConfigError as error:
                raise ConfigError(f"arm {arm}: {error}") from None
    return config


def arm_config(
    config: ExperimentConfig,
    arm: str,
    *,
    lines: Mapping[KeyPath, int] | None = None,
    file: str = "",
    outline: bool = False,
    **changes: Any,
) -> RunConfig:
    """The configuration of one run of an arm; `changes` are its name, its seed and its stage. An `outline` is without a
    look at its algorithm and engine."""
    source = config.arms[arm]
    content = unshared(source.content)
    common: dict[str, Any] = {"name": arm, "output_dir": str(config.folder)}
    if config.continual is not None and "task" not in content:
        common["task"] = config.continual.datasets[0]  # each stage has its own task
    context = OUTLINED if outline else None
    return _build(content, (), {**source.changes, **common, **changes}, lines or {}, file, None, context)


def _named_lines(runs: Any, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    """The lines of arms that are written as a list, by the names of the arms."""
    if not isinstance(runs, list):
        return {}
    names: dict[Any, Any] = {index: run.get("name") for index, run in enumerate(runs) if isinstance(run, dict)}
    return {
        ("runs", str(names[path[1]]), *path[2:]): line
        for path, line in lines.items()
        if len(path) > 1 and path[0] == "runs" and path[1] in names
    }


def _arm_lines(arm: ArmContent, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    """The lines of one arm's keys: in its own section, or in the matrix."""
    own = _lines_under(arm.where, lines)
    for dotted, place in arm.changed_at.items():
        key: KeyPath = tuple(dotted.split("."))
        own |= {(*key, *path): line for path, line in _lines_under(place, lines).items()}
        if (line := lines.get(place[:-1])) is not None:
            own[key] = line  # the line of the key in the matrix
    return own


def _lines_under(place: KeyPath, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    return {path[len(place) :]: line for path, line in lines.items() if path[: len(place)] == place}


def _lines_without(key: str, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    """The lines without those of a key that a flag or keyword replaces: it is at line 0, which is none."""
    parts = key.split(".")
    kept = {path: line for path, line in lines.items() if list(map(str, path[: len(parts)])) != parts}
    return {**kept, tuple(parts): 0}


def _nearest_line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """The line of a key, or of the section that should have it; 0 if that may not be in the file's words alone."""
    if path in lines:
        return lines[path]
    replaced = [key for key, line in lines.items() if line == 0]
    for length in range(len(path) - 1, 0, -1):
        section = path[:length]
        if any(key[:length] == section for key in replaced):
            return 0
        if section in lines:
            return lines[section]
    return 0


def restore_run_config(content: Mapping[str, Any], flags: Sequence[str] = ()) -> RunConfig:
    """The saved configuration of a run, changed by flags.

    It was validated when it was saved, so its algorithm is not imported. Keys that runs of its kind do not have, which
    older versions wrote, are dropped.
    """
    changed = drop_foreign_keys(unshared(content))
    if isinstance(section := changed.get("algorithm"), dict):
        section["params"] = decode_numbers(section.get("params", {}))  # a clip may be infinite
    for key, value in _parse_flags(flags).items():
        _put(changed, key, value)
    return _validate(config_type(changed), changed, {}, "", RESTORED)


def _build(
    content: dict[str, Any],
    flags: Sequence[str],
    changes: Mapping[str, Any],
    lines: Mapping[KeyPath, int],
    file: str,
    recipe: str | None,
    context: dict[str, bool] | None = None,
) -> RunConfig:
    for key, value in _parse_flags(flags).items():
        _put(content, key, value)
        lines = _lines_without(key, lines)
    for name, value in changes.items():
        try:
            _put(content, name, unshared(value))  # never change the caller's objects
        except ConfigError as error:
            raise ConfigError(f"{_location(file, lines.get(tuple(name.split('.'))))}{error}") from None
    if recipe is not None:
        _set_algorithm(content, recipe)
    return _validate(config_type(content), content, lines, file, context)


def _validate(
    model: type[Model],
    content: dict[str, Any],
    lines: Mapping[KeyPath, int],
    file: str,
    context: dict[str, bool] | None = None,
) -> Model:
    try:
        return model.model_validate(content, context=context)
    except ValidationError as error:
        problems = [one for one in error.errors() if one["loc"][-1:] != _AUTO]  # what else it may be is said with it
        problems.sort(key=lambda one: one["type"] == "missing")  # perhaps it is there, by another name
        raise ConfigError("\n".join(_explain(model, one, lines, file) for one in problems)) from None


def _set_algorithm(content: dict[str, Any], recipe: str) -> None:
    """Set the recipe's algorithm where none is named. A detached recipe also takes the user's own algorithm."""
    section = content.get("algorithm")
    named = section.get("name") if isinstance(section, dict) else section
    if not isinstance(named, str | None):  # an object
        from ..algorithms import ALGORITHMS  # its own module has imported torch already

        named = next((name for name, kind in ALGORITHMS.items() if type(named) is kind), named)
    if named is None:
        _put(content, "algorithm.name", recipe)
        return
    has_recipe = isinstance(named, str) and (named in SUPERVISED or named in OUTLINES)
    if named != recipe and (has_recipe or recipe in SUPERVISED):
        other = "that recipe" if has_recipe else "recipes.run"
        raise ConfigError(f"the recipe {recipe} was given a configuration for algorithm {named}: use {other}")


def _read(file: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    text = read_text(file)
    lines: dict[KeyPath, int] = {}
    try:
        content, node = load(text)
        if not isinstance(content, dict):
            raise ConfigError("line 1: expected keys and values, e.g. 'total_steps: 100'")
        _note_lines(node, (), lines)
        short = [section for section in SHORT_FORMS if isinstance(content.get(section), str)]
        lines |= {(section, SHORT_FORMS[section]): lines[section,] for section in short if (section,) in lines}
    except ConfigError as error:
        raise ConfigError(f"{file}, {error}") from None
    return content, lines


def _note_lines(node: yaml.Node | None, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Add the line of each key in the file to `lines`."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            first = lines.get((*path, key.value))
            if first is not None and key.value != "<<":  # one of the two would be lost
                raise ConfigError(f"line {line}: {'.'.join(map(str, (*path, key.value)))} is already in line {first}")
            lines[*path, key.value] = line
            _note_lines(value, (*path, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[*path, index] = value.start_mark.line + 1
            _note_lines(value, (*path, index), lines)


def _parse_flags(flags: Sequence[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"{flag!r} is not a flag: write --key value, e.g. --total_steps 100")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key} needs a value")
            value = rest.pop(0)
        try:
            parsed[key.replace("-", "_")] = load(value)[0]
        except YamlSyntaxError:
            parsed[key.replace("-", "_")] = value  # a plain string
        except YamlError as error:
            raise ConfigError(f"--{key}: {str(error).partition(': ')[2]}") from None
    return parsed


def _put(content: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a key, creating sections as needed; parts of the key may be places in lists."""
    *sections, name = dotted.split(".")
    place: Any = content
    for section in sections:
        if isinstance(place, list):
            place = place[_index(section, place, dotted)]
            continue
        inner = place.get(section)
        if not isinstance(inner, dict | list) or (isinstance(inner, list) and section in SHORT_FORMS):
            inner = place[section] = {} if inner is None else _expand(section, inner, dotted)
        place = inner
    place[_index(name, place, dotted) if isinstance(place, list) else name] = value


def _index(name: str, place: list[Any], dotted: str) -> int:
    if not name.isdecimal() or int(name) >= len(place):
        raise ConfigError(
            f"{dotted}: {name!r} is not an index of the list, which has {len(place)} entries, counted from 0"
        )
    return int(name)


def _expand(section: str, short: Any, dotted: str) -> dict[str, Any]:
    """A short form (`algorithm: grpo`) as a section, so that a key can be added."""
    key = SHORT_FORMS.get(section)
    if key is None or not (isinstance(short, str | list) or section == "algorithm"):
        raise ConfigError(f"{section} is {short!r}, so {dotted} cannot be set: it is not a section")
    return {key: short}


def _explain(model: type[BaseModel], problem: ErrorDetails, lines: Mapping[KeyPath, int], file: str) -> str:
    """A mistake as a sentence with its place in the file."""
    path: KeyPath = problem["loc"]
    if path[-1:] == ("[key]",):  # the key itself is wrong
        path = (*path[:-2], str(path[-2]))
    if may_be_auto := path[-1:] in _BESIDE_AUTO:
        path = path[:-1]
    if problem["type"] == MISTAKE:
        place = (*path, *problem["ctx"]["place"])
        here = name_here(str(place[-1])) if place[:2] == _PARAMS and "has no setting" in problem["msg"] else None
        hint = f"; what others call {place[-1]}: {here}" if here is not None else ""
        return f"{_location(file, _nearest_line(place, lines))}{problem['msg']}{hint}"
    dotted = ".".join(map(str, path))
    location = _location(file, lines.get(path))
    if problem["type"] == "extra_forbidden":
        known = _known_keys(model, path[:-1])
        if issubclass(model, RunConfig):
            if isinstance(problem["input"], Mapping) and (inside := names_inside(dotted, problem["input"])):
                return f"{location}unknown key {dotted!r}: it has {'; '.join(inside)}"
            if (here := name_here(str(path[-1]))) is not None:
                return f"{location}unknown key {dotted!r}: {here}"
        hint = did_you_mean(str(path[-1]), known) or f" (known: {', '.join(known)})"
        return f"{location}unknown key {dotted!r}{hint}"
    if problem["type"] == "model_type":
        value = "null" if problem["input"] is None else repr(problem["input"])
        keys = ", ".join(_known_keys(model, path))
        short = f", or the {SHORT_FORMS[dotted]} alone" if dotted in SHORT_FORMS else ""
        return f"{location}{dotted} must be a section with keys of its own ({keys}){short}, not {value}"
    if problem["type"] == "missing":
        return f"{file + ': ' if file else ''}{dotted!r} is missing"
    given = "" if not path or isinstance(problem["input"], (dict, BaseModel)) else f", not {problem['input']!r}"
    words = must_be(problem)
    if words is not None and path:
        either = ", or auto" if may_be_auto else ""
        return f"{location}{dotted} must be {words}{either}{given}{likely_choice(problem)}"
    return f"{location}{dotted + ': ' if dotted else ''}{problem['msg'].removeprefix('Value error, ')}{given}"


_PARAMS = ("algorithm", "params")
_AUTO = ("literal['auto']",)
_BESIDE_AUTO = (("bool",), ("constrained-int",))
"""How pydantic names the members of `bool | "auto"` and `int | "auto"`, each of which has a mistake of its own."""


def _location(file: str, line: int | None) -> str:
    return f"{file}, line {line}: " if file and line else ""


def _known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys of the section at a path."""
    for part in path:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = next((t for t in _member_types(annotation) if issubclass(t, BaseModel)), model)
    return list(model.model_fields)


def _member_types(annotation: object) -> list[type]:
    """The classes that an annotation names, also inside unions and lists."""
    inner = getattr(annotation, "__args__", ())
    return [annotation] if isinstance(annotation, type) and not inner else [t for a in inner for t in _member_types(a)]
