"""Checks that everything a configuration names exists: tasks, rewards, data and metrics of evals. Loads no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..config import ConfigError, DetachedConfig, RunConfig, SupervisedConfig
from ..config.eval_section import BenchmarkSection, EvalSection
from ..dotted import resolve
from ..evals.benchmark import metric_of, score_name
from ..evals.evaluation import eval_task, run_length, with_named_reward
from ..evals.given_eval import GivenEval
from ..lifecycle.placement import check_portable_part
from ..rewards import InlineRewards
from .given import Given
from .loading import load_training_task
from .maker_side import select_rewards
from .supervised_kinds import supervised_kind


def check_named(config: RunConfig, benchmarks: Sequence[BenchmarkSection] = ()) -> None:
    """Raise the errors that a run would raise when it is built, so that of several runs in sequence a mistake in the
    last is found before the first."""
    if isinstance(config, SupervisedConfig):
        supervised_kind(config, Given())
    elif isinstance(config, DetachedConfig):
        _check_rewards(config)
    for section in (*config.eval, *benchmarks):
        _check_eval(section, config)


def check_portable_algorithm(config: RunConfig, dumps: Callable[[Any], bytes]) -> None:
    """Raise if an algorithm was given as an object that cannot be sent to another process; `dumps` pickles it."""
    if isinstance(config, DetachedConfig) and config.algorithm.given is not None:
        name_it = "name the class instead, as algorithm: package.module:Class"
        check_portable_part(config.algorithm.given, dumps, f"make that in a method, or {name_it}", name_it)


def score_names(section: BenchmarkSection, config: RunConfig) -> list[str] | None:
    """The names of an eval's scores, in their order; None if only its own function knows them."""
    if section.evaluator is not None or _is_loss(section, config):
        return None
    scorer = InlineRewards(metric_of(section, eval_task(section, config), with_named_reward(GivenEval(), config)))
    several = [f"pass@{section.samples}", f"mean@{section.samples}"] if section.samples > 1 else []
    return [score_name(scorer), "completion_tokens", *several, "errors"]


def _check_rewards(config: DetachedConfig) -> None:
    task = load_training_task(config, Given())
    rewards = select_rewards(config, Given(), task)
    if rewards is not None:
        scorer = InlineRewards(rewards, weights=config.reward.weights, length=run_length(config))
        if task.rows:
            scorer.check(task.rows[0].columns)


def _check_eval(section: BenchmarkSection, config: RunConfig) -> None:
    if section.evaluator is not None:
        if not callable(resolve(section.evaluator)):
            raise ConfigError(f"eval {section.name}: {section.evaluator} is not a function of the policy")
    elif not _is_loss(section, config):
        InlineRewards(metric_of(section, eval_task(section, config), with_named_reward(GivenEval(), config)))


def _is_loss(section: BenchmarkSection, config: RunConfig) -> bool:
    """Benchmarks of an experiment generate, also those of a supervised run."""
    return (
        isinstance(section, EvalSection) and section.kind != "generate" and isinstance(config, SupervisedConfig)
    )  # fmt: skip
