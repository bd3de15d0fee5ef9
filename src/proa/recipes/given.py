"""Objects handed over from Python where a configuration file could only name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config import RunConfig, change_run_config, load_run_config
from ..config.run_config import GIVEN


@dataclass(frozen=True)
class Given:
    """A model, a tokenizer, data, reward functions; None where the configuration names it."""

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    data: Any = None
    rewards: tuple[Callable[..., Any], ...] | None = None


def configured(
    config: RunConfig | Path | str | None, algorithm: str | None, changes: Mapping[str, Any]
) -> tuple[RunConfig, Given]:
    """A recipe's arguments as a configuration, and the objects among them.

    `model=` may be a folder, a configuration or a model; `task=` a name, a file or data; `reward=` a function or
    several. `algorithm` is what a recipe is for: used where the configuration names none.
    """
    given, rest = _take_objects(changes)
    if isinstance(config, RunConfig):
        return (change_run_config(config, **rest) if rest else config), given
    if config is None and algorithm is not None and not any(key.startswith("algorithm.name") for key in rest):
        rest = _with_algorithm(rest, algorithm)
    return load_run_config(config, **rest), given


def _take_objects(changes: Mapping[str, Any]) -> tuple[Given, dict[str, Any]]:
    rest = dict(changes)
    tokenizer = rest.pop("tokenizer", None)
    model = data = rewards = None
    if isinstance(rest.get("model"), PreTrainedModel):
        model, rest["model"] = rest["model"], GIVEN
    if "task" in rest and not isinstance(rest["task"], str | Mapping):
        data, rest["task"] = rest["task"], GIVEN
    if "reward" in rest:
        rest["reward"], rewards = _take_functions(rest["reward"])
    return Given(model, tokenizer, data, rewards), rest


def _take_functions(reward: Any) -> tuple[dict[str, Any], tuple[Callable[..., Any], ...] | None]:
    """A section in which functions are described, and the functions; paths and functions are not mixed."""
    section = dict(reward) if isinstance(reward, Mapping) else {"functions": reward}
    functions = section.get("functions", ())
    functions = [functions] if callable(functions) else functions
    if not any(callable(function) for function in functions):
        return section, None
    section["functions"] = [f"{getattr(function, '__name__', function)} {GIVEN}" for function in functions]
    return section, tuple(functions)


def _with_algorithm(changes: dict[str, Any], name: str) -> dict[str, Any]:
    section = changes.get("algorithm")
    if isinstance(section, str):
        return changes
    return {**changes, "algorithm": {"name": name, **(section or {})}}
