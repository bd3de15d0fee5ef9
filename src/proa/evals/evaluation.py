"""How a policy is scored: by a benchmark, or by a function of the user's own that is given the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import DetachedConfig, RunConfig
from ..config.eval_section import BenchmarkSection
from ..config.sections import GIVEN
from ..policy.trainable import Trainable
from ..rewards.samples import RunLength
from ..roles.surroundings import Surroundings, surroundings_of
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.chat import with_system_prompt
from .benchmark import Benchmark
from .generation import system_prompt_of
from .given_eval import GivenEval
from .own_evaluator import OwnEvaluator
from .scoring import Eval


def build_eval(
    section: BenchmarkSection,
    config: RunConfig,
    policy: Trainable,
    given: GivenEval | None = None,
    *,
    any_length: bool = False,
) -> Eval:
    """The eval that a section describes; mistakes in its settings are found at once. `given` is what of it was given in
    Python.

    With `any_length`, completions may be as long as the model's context allows, unless the eval limits them; so may
    those of a supervised run, which has no setting for their length.
    """
    given = given or GivenEval()
    if section.evaluator is not None:
        return OwnEvaluator(section, config, policy, given.evaluator)
    most = config.sampling.max_new_tokens if isinstance(config, DetachedConfig) and not any_length else None
    return Benchmark(
        section,
        eval_task(section, config, given),
        policy,
        engine=config.engine,
        max_new_tokens=section.max_new_tokens or most,
        seed=config.seed,
        stop=config.sampling.stop,
        given=_with_length(with_named_reward(given, config), config),
        surroundings=_surroundings(config, policy, given),
    )


def _with_length(given: GivenEval, config: RunConfig) -> GivenEval:
    return replace(given, length=run_length(config)) if isinstance(config, DetachedConfig) else given


def _surroundings(config: RunConfig, policy: Trainable, given: GivenEval) -> Surroundings | None:
    """Those of training, in processes of the eval's own."""
    if not isinstance(config, DetachedConfig):
        return None
    return surroundings_of(config, policy, replace(given.surroundings, recorded={}))


def with_named_reward(given: GivenEval, config: RunConfig) -> GivenEval:
    """With the reward functions that a run's configuration names, unless there is a reward, or these were objects."""
    if given.reward is not None or not isinstance(config, DetachedConfig):
        return given
    named = [function for function in config.reward.functions if GIVEN not in function]
    if len(named) < len(config.reward.functions):
        return given
    return replace(given, reward=named, weights=config.reward.weights)


def run_length(config: DetachedConfig) -> RunLength:
    """For rewards, which know the version of the weights: how many steps it has had."""
    return RunLength(config.update_steps * config.train_epochs, config.total_steps * config.train_epochs)


def weights_version(config: RunConfig, steps: int) -> int:
    """The version of the weights after so many steps: the one they are pushed as, or between two pushes the one before.

    Not `state.policy_version`, which is what makers have so far: evals come before the push.
    """
    if not isinstance(config, DetachedConfig):
        return 0
    if steps >= config.total_steps * config.train_epochs:
        return -(-config.total_steps // config.update_steps)  # the last episode may be shorter
    return steps // (config.update_steps * config.train_epochs)


def eval_task(section: BenchmarkSection, config: RunConfig, given: GivenEval | None = None) -> Task:
    source = eval_source(section, config, given)
    if isinstance(source, str) and source in BUILTIN:
        task = builtin_task(source, "test", section.count)  # the same for every seed: repeats are compared on it
    else:
        task = load_task(source, columns=eval_columns(section, config), split=section.split)
    return with_system_prompt(task, system_prompt_of(config))


def eval_source(section: BenchmarkSection, config: RunConfig, given: GivenEval | None = None) -> Any:
    """Data that is not trained on: what was given or the section names, or the test split of a built-in task."""
    if given is not None and given.source is not None:
        return given.source
    source = section.source or config.task.source
    section.check_data(has_test_split=source in BUILTIN)
    return source


def eval_columns(section: BenchmarkSection, config: RunConfig) -> dict[str, str]:
    """What the columns of an eval's data are called: what it says itself, or else what the task says."""
    return config.task.named_columns if section.columns is None else section.columns
