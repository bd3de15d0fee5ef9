"""Objects handed over from Python where a configuration file could only name them.

Nothing here imports torch, as the run prints its first line before that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import (
    ConfigError,
    DetachedConfig,
    RunConfig,
    SupervisedConfig,
    change_run_config,
    load_run_config,
    outline_run_config,
)
from ..config.sections import GIVEN
from ..dotted import name_of
from ..evals.given_eval import GivenEval
from ..roles.given_surroundings import NOTHING_GIVEN, GivenSurroundings
from ..spelling import did_you_mean, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RUN_ARGUMENTS = ("callbacks", "resume", "allow_changes", "overwrite")
"""Arguments of a run that are not part of its configuration."""


@dataclass(frozen=True)
class Given:
    """A model, a tokenizer, data, reward functions; None where the configuration names it."""

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    data: Any = None
    rewards: tuple[Callable[..., Any], ...] | None = None
    surroundings: GivenSurroundings = NOTHING_GIVEN
    evals: Mapping[str, GivenEval] = field(default_factory=dict)
    """Parts of evals, by their names."""

    def eval_of(self, name: str, reward: Any = None, weights: Sequence[float] | None = None) -> GivenEval:
        """The objects given for an eval; `reward` is the run's own, which may score it."""
        own = self.evals.get(name, GivenEval())
        return replace(own, reward=reward, weights=weights, surroundings=self.surroundings)


def configured(
    config: RunConfig | Path | str | None, recipe: str | None, changes: Mapping[str, Any]
) -> tuple[RunConfig, Given]:
    """A recipe's arguments as a configuration, and the objects among them.

    `model=` may be a folder, a configuration or a model; `task=` a name, a file or data, or a section whose `source` is
    one of these; `reward=` and `tools=` a function or several; `environment=` a class, an object, or a section whose
    `path` is one of these; `agent=` a function; in `eval=`, `source`, `metric` and `evaluator` may be objects. (An
    algorithm that is an object stays in the configuration, which knows what it needs.) `recipe` is the algorithm where
    the configuration names none.
    """
    _check_keywords(changes)
    given, rest = _take_objects(changes)
    if isinstance(config, RunConfig):
        return change_run_config(config, recipe=recipe, **rest), given
    return load_run_config(config, recipe=recipe, **rest), given


def outlined(config: Path | str | None, recipe: str | None, changes: Mapping[str, Any]) -> tuple[RunConfig, Given]:
    """The same, checked only as far as that is possible without torch."""
    _check_keywords(changes)
    given, rest = _take_objects(changes)
    return outline_run_config(config, recipe=recipe, **rest), given


def _check_keywords(changes: Mapping[str, Any]) -> None:
    """Raise for an unknown keyword that looks like a misspelt argument of the run itself."""
    keys = {*DetachedConfig.model_fields, *SupervisedConfig.model_fields, "tokenizer"}
    for name in changes:
        meant = [] if name.partition(".")[0] in keys else nearest(name, {*RUN_ARGUMENTS, *keys})
        if set(meant) & set(RUN_ARGUMENTS):
            raise ConfigError(f"unknown argument {name!r}{did_you_mean(name, meant)}")


def _take_objects(changes: Mapping[str, Any]) -> tuple[Given, dict[str, Any]]:
    rest: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in changes.items()}
    tokenizer = rest.pop("tokenizer", None)
    model = data = rewards = None
    if _is_model(rest.get("model")):
        # Training mode would mean dropout; here no step is random.
        model, rest["model"] = rest["model"].eval(), GIVEN
    if rest.get("task", ...) is None:
        raise ConfigError("task is None: give data, a file or a name")
    if "task" in rest:
        data, rest["task"] = _take_data(rest["task"])
    if "reward" in rest:
        section, rewards = _take_functions(rest.pop("reward"))
        rest |= {f"reward.{name}": value for name, value in section.items()}  # other keys of the section stay
    if isinstance(tokenizer, str):
        tokenizer, rest["model.tokenizer"] = None, tokenizer
    if "eval" in rest:
        rest["eval"], evals = _take_evals(rest["eval"])
    else:
        evals = {}
    surroundings = GivenSurroundings(_take_tools(rest), _take_environment(rest), _take_agent(rest))
    return Given(model, tokenizer, data, rewards, surroundings, evals), rest


def _is_model(given: Any) -> bool:
    module = sys.modules.get("transformers.modeling_utils")  # without it no model can exist
    return module is not None and isinstance(given, module.PreTrainedModel)


def _take_tools(rest: dict[str, Any]) -> tuple[Callable[..., Any] | str, ...] | None:
    tools = rest.get("tools")
    tools = [tools] if callable(tools) or isinstance(tools, str) else tools
    if not isinstance(tools, Sequence):
        return None
    rest["tools"] = [_describe(tool) for tool in tools]
    return tuple(tools) if any(map(callable, tools)) else None


def _take_environment(rest: dict[str, Any]) -> Any:
    given: Any = rest.get("environment")
    section = dict(given) if isinstance(given, Mapping) else {"path": given}
    environment = section.get("path")
    if isinstance(environment, str | None):
        return None
    rest["environment"] = {**section, "path": _describe(environment)}
    return environment


def _take_agent(rest: dict[str, Any]) -> Callable[..., Any] | None:
    agent: Any = rest.get("agent")
    if not callable(agent):
        return None
    rest["agent"] = _describe(agent)
    given: Callable[..., Any] = agent
    return given


def _describe(given: Any) -> str:
    """An object's description in the record."""
    if isinstance(given, str):
        return given
    return f"{name_of(given) if callable(given) else type(given).__name__} {GIVEN}"


def _take_data(task: Any) -> tuple[Any, Any]:
    """Data given directly or as the `source` of a section, and its description in the configuration."""
    if isinstance(task, str):
        return None, task
    if isinstance(task, Mapping) and not hasattr(task, "column_names"):  # a dataset may be a mapping of its splits
        source = task.get("source")
        if isinstance(source, str | Path | None):
            return None, task if source is None else {**task, "source": str(source)}
        return source, {**task, "source": GIVEN}
    return task, GIVEN


def _take_evals(sections: Any) -> tuple[Any, dict[str, GivenEval]]:
    """Sections with descriptions in place of objects, and the objects by the names of their evals."""
    if not isinstance(sections, Sequence) or isinstance(sections, str):
        return sections, {}
    taken = [_take_eval(section) if isinstance(section, Mapping) else (section, None) for section in sections]
    named = [(section.get("name"), given) for section, given in taken if given is not None]
    return [section for section, _ in taken], {str(name): given for name, given in named}


def _take_eval(section: Mapping[str, Any]) -> tuple[dict[str, Any], GivenEval]:
    described = dict(section)
    evaluator, source, metric = (section.get(key) for key in ("evaluator", "source", "metric"))
    if callable(evaluator):
        described["evaluator"] = f"{name_of(evaluator)} {GIVEN}"
    if isinstance(source, Path):
        source = described["source"] = str(source)
    if source is not None and not isinstance(source, str):
        described["source"] = GIVEN
    functions: list[Any] = list(metric) if isinstance(metric, list | tuple) else [metric]
    is_given = bool(functions) and all(map(callable, functions))
    if is_given:
        described["metric"] = f"{', '.join(map(name_of, functions))} {GIVEN}"
    return described, GivenEval(
        evaluator if callable(evaluator) else None,
        None if isinstance(source, str) else source,
        metric if is_given else None,
    )


def _take_functions(reward: Any) -> tuple[dict[str, Any], tuple[Callable[..., Any], ...] | None]:
    """A section with descriptions in place of functions, and the functions. Paths and functions are not mixed."""
    section = dict(reward) if isinstance(reward, Mapping) else {"functions": reward}
    functions = section.get("functions", ())
    functions = [functions] if callable(functions) or isinstance(functions, str) else functions
    if not any(callable(function) for function in functions):
        return section | ({"functions": list(functions)} if functions else {}), None
    section["functions"] = [_describe(function) for function in functions]
    return section, tuple(functions)
