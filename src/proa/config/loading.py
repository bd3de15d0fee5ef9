"""Reads a configuration: a YAML file, then flags; mistakes are reported with the line and the right name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ..record.run_folder import decode_numbers
from ..spelling import did_you_mean
from .experiment_config import ArmContent, ExperimentConfig
from .run_config import RESTORED, SHORT_FORMS, RunConfig, kind_of, without_other_keys
from .sections import MISTAKE
from .supervised_settings import SUPERVISED
from .yaml_text import ConfigError, NotYamlError, YamlError, load, read_text, unshared

KeyPath: TypeAlias = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


def load_run_config(
    file: Path | str | None = None, flags: Sequence[str] = (), *, recipe: str | None = None, **changes: Any
) -> RunConfig:
    """The configuration of `file`, changed by `--key value` flags and by keyword: a `DetachedConfig` or, for `sft`,
    `dpo` and `reward_model`, a `SupervisedConfig`.

    Keys may be dotted (`--sampling.group_size 16`); `-` and `_` are alike. `recipe` is the algorithm where none is
    named; one that has a recipe of its own is an error.
    """
    content, lines = _read(Path(file)) if file is not None else ({}, {})
    for key in changes:
        lines = _lines_without(key, lines)
    return _validated(content, flags, changes, lines, str(file) if file else "", recipe)


def change_run_config(config: RunConfig, *, recipe: str | None = None, **changes: Any) -> RunConfig:
    """A configuration with some keys changed, checked like a new one."""
    content = config.model_dump() | {"algorithm": config.algorithm.written()}
    return _validated(content, (), changes, {}, "", recipe)


def load_experiment_config(
    file: Path | str | None = None, flags: Sequence[str] = (), **changes: Any
) -> ExperimentConfig:
    """The configuration of an experiment, changed by flags and by keyword. Its arms are checked too."""
    content, lines = _read(Path(file)) if file is not None else ({}, {})
    for key, value in {**_parse_flags(flags), **changes}.items():
        _put(content, key, unshared(value))
        lines = _lines_without(key, lines)
    name = str(file) if file else ""
    lines |= _lines_by_name(content.get("runs"), lines)
    config = _checked(ExperimentConfig, content, lines, name)
    for arm, written in config.arms.items():
        try:
            arm_config(config, arm, lines=_lines_of(written, lines), file=name)
        except ConfigError as error:
            raise ConfigError(f"arm {arm}: {error}") from None
    return config


def arm_config(
    config: ExperimentConfig, arm: str, *, lines: Mapping[KeyPath, int] | None = None, file: str = "", **changes: Any
) -> RunConfig:
    """The configuration of one run of an arm; `changes` are what makes it this run: its name, its seed, its stage."""
    written = config.arms[arm]
    content = unshared(written.content)
    where: dict[str, Any] = {"name": arm, "output_dir": str(config.folder)}
    if config.continual is not None and "task" not in content:
        where["task"] = config.continual.datasets[0]  # it is the stages that have tasks
    return _validated(content, (), {**written.changes, **where, **changes}, lines or {}, file, None)


def _lines_by_name(runs: Any, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    """Where the keys of arms stand that are written as a list."""
    if not isinstance(runs, list):
        return {}
    names: dict[Any, Any] = {place: run.get("name") for place, run in enumerate(runs) if isinstance(run, dict)}
    return {
        ("runs", str(names[path[1]]), *path[2:]): line
        for path, line in lines.items()
        if len(path) > 1 and path[0] == "runs" and path[1] in names
    }


def _lines_of(arm: ArmContent, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    """Where the keys of one arm stand: in what is written of it, or in the matrix."""
    own = _lines_under(arm.where, lines)
    for dotted, place in arm.changed_at.items():
        key: KeyPath = tuple(dotted.split("."))
        own |= {(*key, *path): line for path, line in _lines_under(place, lines).items()}
        if (line := lines.get(place[:-1])) is not None:
            own[key] = line  # where its name stands
    return own


def _lines_under(place: KeyPath, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    return {path[len(place) :]: line for path, line in lines.items() if path[: len(place)] == place}


def _lines_without(key: str, lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    """Where the keys stand, but for those that are not taken from the file any more."""
    given = key.split(".")
    return {path: line for path, line in lines.items() if list(map(str, path[: len(given)])) != given}


def restore_run_config(content: Mapping[str, Any], flags: Sequence[str] = ()) -> RunConfig:
    """A configuration that a run has written down, changed by flags; those may also name places in lists.

    It was checked when it was written, so its algorithm is not imported. Keys that runs of its kind do not have, which
    older versions wrote too, are left out.
    """
    changed = without_other_keys(unshared(content))
    if isinstance(section := changed.get("algorithm"), dict):
        section["params"] = decode_numbers(section.get("params", {}))  # a clip may be infinite
    for key, value in _parse_flags(flags).items():
        _put(changed, key, value)
    return _checked(kind_of(changed), changed, {}, "", RESTORED)


def _validated(
    content: dict[str, Any],
    flags: Sequence[str],
    changes: Mapping[str, Any],
    lines: Mapping[KeyPath, int],
    file: str,
    recipe: str | None,
) -> RunConfig:
    for key, value in _parse_flags(flags).items():
        _put(content, key, value)
        lines = _lines_without(key, lines)
    for name, value in changes.items():
        try:
            _put(content, name, unshared(value))  # what the caller holds stays as it is
        except ConfigError as error:
            raise ConfigError(f"{_where(file, lines.get(tuple(name.split('.'))))}{error}") from None
    if recipe is not None:
        _settle_algorithm(content, recipe)
    return _checked(kind_of(content), content, lines, file)


def _checked(
    model: type[Model],
    content: dict[str, Any],
    lines: Mapping[KeyPath, int],
    file: str,
    context: dict[str, bool] | None = None,
) -> Model:
    try:
        return model.model_validate(content, context=context)
    except ValidationError as error:
        raise ConfigError(_explain(model, error, lines, file)) from None


def _settle_algorithm(content: dict[str, Any], recipe: str) -> None:
    """A recipe's algorithm is that of its name, or in a detached run one of the user's own."""
    from ..algorithms import ALGORITHMS  # recipes have imported torch already

    section = content.get("algorithm")
    named = section.get("name") if isinstance(section, dict) else section
    named = next((name for name, kind in ALGORITHMS.items() if type(named) is kind), named)
    if named is None:
        _put(content, "algorithm.name", recipe)
        return
    has_recipe = isinstance(named, str) and (named in SUPERVISED or named in ALGORITHMS)
    if named != recipe and (has_recipe or recipe in SUPERVISED):
        other = "that recipe" if has_recipe else "recipes.run"
        raise ConfigError(f"the recipe {recipe} was given a configuration for algorithm {named}: use {other}")


def _read(file: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    text = read_text(file)
    lines: dict[KeyPath, int] = {}
    try:
        content, node = load(text)
        if not isinstance(content, dict):
            raise ConfigError("line 1: there must be keys and values here, e.g. 'total_steps: 100'")
        _note_lines(node, (), lines)
        short = [section for section in SHORT_FORMS if isinstance(content.get(section), str)]
        lines |= {(section, SHORT_FORMS[section]): lines[section,] for section in short if (section,) in lines}
    except ConfigError as error:
        raise ConfigError(f"{file}, {error}") from None
    return content, lines


def _note_lines(node: Any, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Where in the file each key stands."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            first = lines.get((*path, key.value))
            if first is not None and key.value != "<<":  # one of the two would be lost
                raise ConfigError(f"line {line}: {'.'.join(map(str, (*path, key.value)))} stands in line {first} too")
            lines[*path, key.value] = line
            _note_lines(value, (*path, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            lines[*path, place] = value.start_mark.line + 1
            _note_lines(value, (*path, place), lines)


def _parse_flags(flags: Sequence[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"{flag!r} is no flag: write --key value, e.g. --total_steps 100")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key} needs a value")
            value = rest.pop(0)
        try:
            parsed[key.replace("-", "_")] = load(value)[0]
        except NotYamlError:
            parsed[key.replace("-", "_")] = value  # a text, then
        except YamlError as error:
            raise ConfigError(f"--{key}: {str(error).partition(': ')[2]}") from None
    return parsed


def _put(content: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, name = dotted.split(".")
    place: Any = content
    for section in sections:
        if isinstance(place, list):
            place = place[_index(section, place, dotted)]
            continue
        inner = place.get(section)
        if not isinstance(inner, dict | list):
            inner = place[section] = {} if inner is None else _spread(section, inner, dotted)
        place = inner
    place[_index(name, place, dotted) if isinstance(place, list) else name] = value


def _index(name: str, place: list[Any], dotted: str) -> int:
    if not name.isdecimal() or int(name) >= len(place):
        raise ConfigError(f"{dotted}: {name!r} is no place in a list of {len(place)}, which are counted from 0")
    return int(name)


def _spread(section: str, short: Any, dotted: str) -> dict[str, Any]:
    """A short form (`algorithm: grpo`) as a section, so that a flag can add to it."""
    key = SHORT_FORMS.get(section)
    if key is None or not (isinstance(short, str) or section == "algorithm"):
        raise ConfigError(f"{section} is {short!r}, so {dotted} cannot be set: there are no keys inside it")
    return {key: short}


def _explain(model: type[BaseModel], error: ValidationError, lines: Mapping[KeyPath, int], file: str) -> str:
    return "\n".join(_explain_one(model, problem, lines, file) for problem in error.errors())


def _explain_one(model: type[BaseModel], problem: Any, lines: Mapping[KeyPath, int], file: str) -> str:
    path: KeyPath = tuple(problem["loc"])
    if path[-1:] == ("[key]",):  # it is the key itself that is wrong
        path = (*path[:-2], str(path[-2]))
    if problem["type"] == MISTAKE:
        return f"{_where(file, lines.get((*path, *problem['ctx']['place'])))}{problem['msg']}"
    dotted = ".".join(map(str, path))
    where = _where(file, lines.get(path))
    if problem["type"] == "extra_forbidden":
        known = _keys_at(model, path[:-1])
        return f"{where}there is no key {dotted!r}{did_you_mean(str(path[-1]), known)} (known: {', '.join(known)})"
    if problem["type"] == "missing":
        return f"{file + ': ' if file else ''}{dotted!r} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if not path or isinstance(problem["input"], (dict, BaseModel)) else f", and is {problem['input']!r}"
    return f"{where}{dotted + ': ' if dotted else ''}{message}{given}"


def _where(file: str, line: int | None) -> str:
    return f"{file}, line {line}: " if file and line else ""


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that a section has."""
    for part in path:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = next((t for t in _types_in(annotation) if issubclass(t, BaseModel)), model)
    return list(model.model_fields)


def _types_in(annotation: Any) -> list[type]:
    inner = getattr(annotation, "__args__", ())
    return [annotation] if isinstance(annotation, type) and not inner else [t for a in inner for t in _types_in(a)]
