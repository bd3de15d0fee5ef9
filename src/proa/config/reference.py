"""Every setting of a run: its key, type, default and meaning, read from the configuration itself."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .algorithm_outlines import OUTLINES
from .algorithm_settings import PARAMS, algorithm_settings
from .examples import EXAMPLES
from .run_config import DetachedConfig, SupervisedConfig
from .supervised_settings import SUPERVISED

RUN = ""
"""The section of keys that stand at the top."""
NONE = "none"
"""The default of a key that nothing stands for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a configuration."""

    key: str
    """Dotted; `eval[].name` is of each entry of a list."""
    type: str
    default: str
    example: str
    """A value other than the default, as YAML."""
    meaning: str
    kinds: str
    """`all` runs have it, or `detached` ones alone."""

    @property
    def section(self) -> str:
        if self.key.startswith(f"{PARAMS}."):
            return PARAMS
        return self.key.split(".")[0].removesuffix("[]") if "." in self.key else RUN


def settings(under: str = "") -> list[Setting]:
    """All settings, those at the top first; or those of one section, or one of them.

    >>> [setting.key for setting in settings("lora")][:3]
    ['lora.rank', 'lora.alpha', 'lora.target_modules']
    >>> settings("optimizer.learning_rate")[0].default
    '1e-05'
    """
    supervised = {key for key, _ in _walk(SupervisedConfig)}
    found = [_setting(key, field, supervised) for key, field in _walk(DetachedConfig)]
    found.sort(key=lambda setting: setting.section != RUN)  # stable: sections keep their order
    wanted = under.replace("-", "_")
    if not wanted:
        return found
    return [one for one in found if one.key.replace("[]", "") == wanted or _is_under(one, wanted)]


def params(wanted: str = "") -> list[Setting]:
    """The settings of algorithms, or one of them, as keys of `algorithm.params`; their meaning says of which."""
    found = [
        Setting(
            f"{PARAMS}.{one.name}", one.type, _shown(one.default), one.example,
            f"{one.meaning}; {one.of}".removesuffix("; "),
            "detached" if OUTLINES.keys() & one.defaults.keys() else "all",
        )
        for one in algorithm_settings()
    ]  # fmt: skip
    return [one for one in found if wanted in ("", one.key, one.key.removeprefix(f"{PARAMS}."))]


def sections() -> dict[str, str]:
    """The sections, with what each is about."""
    return {key: field.description or "" for key, field in DetachedConfig.model_fields.items() if _inner(field)}


def _is_under(setting: Setting, section: str) -> bool:
    return setting.key.replace("[]", "").startswith(f"{section}.")


def _walk(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = _inner(field)
        if inner is None:
            yield f"{before}{name}", field
        else:
            in_list = "[]" if _is_list(field.annotation) else ""
            yield from _walk(inner, f"{before}{name}{in_list}.")


def _inner(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a key holds, alone, in a list, or where it may also be None."""
    found = [one for one in _leaves(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
    return found[0] if found else None


def _leaves(annotation: Any) -> list[Any]:
    return [leaf for part in get_args(annotation) for leaf in _leaves(part)] or [annotation]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list


def _setting(key: str, field: FieldInfo, supervised: set[str]) -> Setting:
    default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
    kinds = "all" if key in supervised else "detached"
    example = EXAMPLES.get(key) or _alternative(field.annotation, default)
    return Setting(key, _type_words(field.annotation, field), default, example, field.description or "", kinds)


def _alternative(annotation: Any, default: str) -> str:
    """Another of the values that a type names."""
    choices = [str(choice) for leaf in _choices(annotation) for choice in leaf]
    return next(choice for choice in choices if choice != default)


def _choices(annotation: Any) -> Iterator[tuple[Any, ...]]:
    if annotation is bool:
        yield "true", "false"
    elif get_origin(annotation) is Literal:
        yield get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return NONE if value in ({}, []) else str(value)


_FAR = (2**63, 1e9, 4096)
"""Limits that nobody comes near to."""
_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path", dict: "mapping"}


def _type_words(annotation: Any, field: FieldInfo | None = None) -> str:
    """A type in words; what is allowed of a number with it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_words(get_args(annotation)[0])
    if origin is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if origin in (Union, types.UnionType):
        return " | ".join(_type_words(one) for one in get_args(annotation) if one is not type(None))
    if origin is list:
        return f"list of {_type_words(get_args(annotation)[0])}"
    if origin is tuple:
        return "two numbers"
    words = _WORDS.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))
    bounds = [] if field is None else [_bound(one) for one in field.metadata]
    limits = ", ".join(filter(None, bounds))
    return f"{words}, {limits}" if limits else words


def _bound(rule: Any) -> str:
    for name, sign in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most")):
        if getattr(rule, name, None) is not None:
            return "" if getattr(rule, name) in _FAR else f"{sign} {getattr(rule, name):g}"
    return ""


# -- as a page ---------------------------------------------------------------------------------------


def as_markdown() -> str:
    """`docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "Every key of a run's configuration: in YAML nested by the dots, on the command line",
        '`--optimizer.learning_rate 3e-5`, in Python `recipes.grpo(optimizer={"learning_rate": 3e-5})`.',
        "`proa config` prints the same, `proa config optimizer` a section, and `proa config --template grpo` a file",
        "to begin with. Keys marked *detached* are for runs that generate (GRPO, PPO, …), the others for supervised",
        "runs too. This page is generated: `proa config --markdown`.",
    ]
    about = {
        RUN: "the run",
        **sections(),
        PARAMS: "settings of the algorithms themselves ([algorithms.md](algorithms.md))",
    }
    section = None
    for setting in [*settings(), *params()]:
        if setting.section != section:
            section = setting.section
            title = f"`{section}`: {about[section]}" if section else "At the top"
            lines += [
                "",
                f"## {title}",
                "",
                "| key | type | default | e.g. | meaning |",
                "| --- | --- | --- | --- | --- |",
            ]
        cells = (
            f"`{setting.key}`", setting.type, f"`{setting.default}`", f"`{setting.example}`", _meaning(setting),
        )  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _meaning(setting: Setting) -> str:
    return setting.meaning + (" *(detached)*" if setting.kinds == "detached" else "")


# -- as a file to begin with -------------------------------------------------------------------------

_MODEL = """\
model:                           # or model: Qwen/Qwen3-0.6B, of the Hub; or a Hugging Face folder
  config:                        # a tiny model with weights from the seed
    model_type: llama
    vocab_size: 16
    hidden_size: 64
    intermediate_size: 128
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 4
    max_position_embeddings: 64
"""
_DETACHED = """\
sampling:
  group_size: 8                  # completions of each prompt
  max_new_tokens: 8
  temperature: 1.0
# reward: my_module:my_reward    # by default the task's own
"""


def template(recipe: str) -> str:
    """A commented YAML file to begin with: it trains a tiny model on a built-in task as it is."""
    is_detached = recipe not in SUPERVISED
    data = "a file with columns chosen and rejected" if recipe in ("dpo", "reward_model") else "a file"
    measured = "greedy completions of held-out prompts" if is_detached else "the loss on held-out data, and more"
    blocks = [
        f"# proa train FILE. Every other key: proa config\nname: {recipe}\noutput_dir: runs\nseed: 0\n"
        f"total_steps: 100                 # batches\ntrain_batch_size: 64             # samples of a batch\n",
        f"{_MODEL}task: sort_digits                # built in; or {data}, or hf:NAME of the Hub\n",
        f"algorithm: {recipe}\n{_DETACHED if is_detached else ''}",
        f"eval:\n  - name: held_out               # {measured}\n    run_every: 50\n",
        _optional("optimizer", {"learning_rate": "1e-3"}, is_detached),
        _optional("checkpoint", {"save_every": "50"}, is_detached),
    ]
    return "\n".join(blocks)


def _optional(section: str, said: dict[str, str], is_detached: bool) -> str:
    """A section with some keys set, and the others, as comments, at their defaults."""
    lines = [f"{section}:"]
    for setting in settings(section):
        if setting.kinds == "detached" and not is_detached:
            continue
        key = setting.key.partition(".")[2]
        mark, value = (
            ("  ", said[key]) if key in said else ("  # ", "null" if setting.default == NONE else setting.default)
        )
        lines.append(f"{mark}{key}: {value}".ljust(32) + f" # {setting.meaning}")
    return "\n".join(lines) + "\n"
