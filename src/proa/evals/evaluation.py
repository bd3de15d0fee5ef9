"""How a policy is scored: by a benchmark, or by a function of the user's own that is given the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config import ConfigError, DetachedConfig, RunConfig
from ..config.sections import BenchmarkSection
from ..policy.trainable import Trainable
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from .benchmark import Benchmark, Scored
from .own_evaluator import OwnEvaluator

Scoring = Callable[[], Callable[[], Scored]]
"""Takes the weights as they are, and returns a function that scores them, now or later."""


@dataclass(frozen=True, slots=True)
class At:
    """Where training stands: optimizer steps done, and the version of the weights."""

    steps: int
    version: int


def scoring(
    section: BenchmarkSection,
    config: RunConfig,
    policy: Trainable,
    now: Callable[[], At],
    called: Callable[..., Any] | None = None,
    *,
    any_length: bool = False,
) -> Scoring:
    """Scores the model as it is `now`, each time it is called. Mistakes in the eval's settings are found at once.

    With `any_length`, completions may be as long as the model's context allows, unless the eval limits them; so may
    those of a supervised run, which has no setting for their length.
    """
    if section.evaluator is not None:
        own = OwnEvaluator(section, config, policy, called)
        return lambda: own.begin(version=now().version, steps=now().steps)
    most = config.sampling.max_new_tokens if isinstance(config, DetachedConfig) and not any_length else None
    benchmark = Benchmark(
        section,
        eval_task(section, config),
        policy,
        engine=config.engine,
        max_new_tokens=section.max_new_tokens or most,
        seed=config.seed,
    )
    return lambda: benchmark.begin(version=now().version, step=now().steps - 1)


def weights_version(config: RunConfig, steps: int) -> int:
    """The version of the weights after so many steps: the one they are pushed as, or between two pushes the one before.

    Not `state.policy_version`, which is what makers have so far: evals come before the push.
    """
    if not isinstance(config, DetachedConfig):
        return 0
    if steps >= config.total_steps * config.train_epochs:
        return -(-config.total_steps // config.update_steps)  # the last episode may be shorter
    return steps // (config.update_steps * config.train_epochs)


def eval_task(section: BenchmarkSection, config: RunConfig) -> Task:
    source = eval_source(section, config)
    if source in BUILTIN:
        return builtin_task(source, "test", section.count)  # the same for every seed: repeats are compared on it
    return load_task(source, prompt_column=config.task.prompt_column)


def eval_source(section: BenchmarkSection, config: RunConfig) -> str:
    """Data that is not trained on: what the section names, or the test split of a built-in task."""
    source = section.source or config.task.source
    if section.source is None and source not in BUILTIN:
        raise ConfigError(f"eval {section.name} has no data of its own: give source, what is held out of training")
    return source
