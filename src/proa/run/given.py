"""Objects handed over from Python where a configuration file could only name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config import ConfigError, DetachedConfig, RunConfig, SupervisedConfig, change_run_config, load_run_config
from ..config.sections import GIVEN
from ..dotted import name_of
from ..spelling import did_you_mean, nearest

RUN_ARGUMENTS = ("callbacks", "resume", "allow_changes", "overwrite")
"""What whoever starts a run may say beside its configuration."""


@dataclass(frozen=True)
class Given:
    """A model, a tokenizer, data, reward functions; None where the configuration names it."""

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    data: Any = None
    rewards: tuple[Callable[..., Any], ...] | None = None
    evaluators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """By the name of their eval."""


def configured(
    config: RunConfig | Path | str | None, recipe: str | None, changes: Mapping[str, Any]
) -> tuple[RunConfig, Given]:
    """A recipe's arguments as a configuration, and the objects among them.

    `model=` may be a folder, a configuration or a model; `task=` a name, a file or data, or a section whose `source` is
    one of these; `reward=` a function or several. (An algorithm that is an object stays in the configuration, which
    knows what it needs.) `recipe` is the algorithm where the configuration names none.
    """
    _check_keywords(changes)
    given, rest = _take_objects(changes)
    if isinstance(config, RunConfig):
        return change_run_config(config, recipe=recipe, **rest), given
    return load_run_config(config, recipe=recipe, **rest), given


def _check_keywords(changes: Mapping[str, Any]) -> None:
    """Raise for a keyword that is no key of a configuration and is meant to be an argument of the run itself."""
    keys = {*DetachedConfig.model_fields, *SupervisedConfig.model_fields, "tokenizer"}
    for name in changes:
        meant = [] if name.partition(".")[0] in keys else nearest(name, {*RUN_ARGUMENTS, *keys})
        if set(meant) & set(RUN_ARGUMENTS):
            raise ConfigError(f"unknown argument {name!r}{did_you_mean(name, meant)}")


def _take_objects(changes: Mapping[str, Any]) -> tuple[Given, dict[str, Any]]:
    rest: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in changes.items()}
    tokenizer = rest.pop("tokenizer", None)
    model = data = rewards = None
    if isinstance(rest.get("model"), PreTrainedModel):
        # Training mode would mean dropout; here no step is random.
        model, rest["model"] = rest["model"].eval(), GIVEN
    if "task" in rest:
        data, rest["task"] = _take_data(rest["task"])
    if "reward" in rest:
        section, rewards = _take_functions(rest.pop("reward"))
        rest |= {f"reward.{name}": value for name, value in section.items()}  # what is not said stays as it is
    if isinstance(tokenizer, str):
        tokenizer, rest["model.tokenizer"] = None, tokenizer
    if "eval" in rest:
        rest["eval"], evaluators = _take_evaluators(rest["eval"])
    else:
        evaluators = {}
    return Given(model, tokenizer, data, rewards, evaluators), rest


def _take_data(task: Any) -> tuple[Any, Any]:
    """Data that was given, as it is or as the `source` of a section, and what the configuration says of it."""
    if isinstance(task, str):
        return None, task
    if isinstance(task, Mapping) and not hasattr(task, "column_names"):  # a dataset may be a mapping of its splits
        source = task.get("source")
        if isinstance(source, str | Path | None):
            return None, task if source is None else {**task, "source": str(source)}
        return source, {**task, "source": GIVEN}
    return task, GIVEN


def _take_evaluators(sections: Any) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """Evals whose evaluator is a function, each described by its name, and the functions by their evals' names."""
    if not isinstance(sections, Sequence) or isinstance(sections, str):
        return sections, {}
    described: list[Any] = []
    functions: dict[str, Callable[..., Any]] = {}
    for section in sections:
        given = section.get("evaluator") if isinstance(section, Mapping) else None
        if callable(given):
            functions[str(section.get("name"))] = given
            section = {**section, "evaluator": f"{name_of(given)} {GIVEN}"}
        described.append(section)
    return described, functions


def _take_functions(reward: Any) -> tuple[dict[str, Any], tuple[Callable[..., Any], ...] | None]:
    """A section in which functions are described, and the functions; paths and functions are not mixed."""
    section = dict(reward) if isinstance(reward, Mapping) else {"functions": reward}
    functions = section.get("functions", ())
    functions = [functions] if callable(functions) or isinstance(functions, str) else functions
    if not any(callable(function) for function in functions):
        return section | ({"functions": list(functions)} if functions else {}), None
    section["functions"] = [f"{name_of(function)} {GIVEN}" for function in functions]
    return section, tuple(functions)
