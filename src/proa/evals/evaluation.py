"""How a policy is scored: by a benchmark, or by a function of the user's own that is given the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config import ConfigError, DetachedConfig, RunConfig
from ..config.sections import BenchmarkSection
from ..policy.trainable import Trainable
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from .benchmark import Benchmark
from .own_evaluator import OwnEvaluator
from .scoring import Eval


def build_eval(
    section: BenchmarkSection,
    config: RunConfig,
    policy: Trainable,
    called: Callable[..., Any] | None = None,
    *,
    any_length: bool = False,
) -> Eval:
    """The eval that a section describes; mistakes in its settings are found at once. `called` is its function, if that
    was given in Python.

    With `any_length`, completions may be as long as the model's context allows, unless the eval limits them; so may
    those of a supervised run, which has no setting for their length.
    """
    if section.evaluator is not None:
        return OwnEvaluator(section, config, policy, called)
    most = config.sampling.max_new_tokens if isinstance(config, DetachedConfig) and not any_length else None
    return Benchmark(
        section,
        eval_task(section, config),
        policy,
        engine=config.engine,
        max_new_tokens=section.max_new_tokens or most,
        seed=config.seed,
    )


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
    return load_task(source, columns=config.task.named_columns)


def eval_source(section: BenchmarkSection, config: RunConfig) -> str:
    """Data that is not trained on: what the section names, or the test split of a built-in task."""
    source = section.source or config.task.source
    if section.source is None and source not in BUILTIN:
        raise ConfigError(f"eval {section.name} has no data of its own: give source, what is held out of training")
    return source
