"""How a policy is scored: by a benchmark, or by a function of the user's own that is given the policy."""

from __future__ import annotations

import copy
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from ..config import ConfigError
from ..config.run_config import EvalSection, RunConfig
from ..data.lease import sample_seed
from ..data.results import EvalResult
from ..data.sampling import Sampling
from ..engines.protocol import Request
from ..errors import ProaError
from ..policy.measuring import measuring
from ..policy.trainable import Trainable
from ..rewards.calling import await_result
from ..rewards.dotted import resolve
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.prompts import tokenise
from ..tasks.task import TaskRow
from .benchmark import Benchmark, EvalEngine, Scored

Scoring = Callable[[], Callable[[], Scored]]
"""Takes the weights as they are; what it returns scores them, now or later."""


@dataclass(frozen=True, slots=True)
class At:
    """Where training stands: optimizer steps done, and the version of the weights."""

    steps: int
    version: int


def scoring(
    section: EvalSection,
    config: RunConfig,
    policy: Trainable,
    now: Callable[[], At],
    called: Callable[..., Any] | None = None,
    *,
    any_length: bool = False,
) -> Scoring:
    """Scores the model as it is `now`, each time it is called. What is wrong with the eval is found at once.

    With `any_length`, completions may be as long as the model's context allows where the eval does not say; so may
    those of a supervised run, which does not say how long completions are.
    """
    if section.evaluator is not None:
        return _calling(section, config, policy, now, called)
    unsaid = None if any_length or config.is_supervised else config.sampling.max_new_tokens
    benchmark = Benchmark(
        section,
        eval_task(section, config),
        policy,
        engine=config.engine,
        max_new_tokens=section.max_new_tokens or unsaid,
        seed=config.seed,
    )
    return lambda: benchmark.begin(version=now().version, step=now().steps - 1)


def weights_version(config: RunConfig, steps: int) -> int:
    """The version of the weights after so many steps: what they are pushed as, between two pushes the one before.

    Not `state.policy_version`, which says what makers have had so far: evals come before the push.
    """
    if config.is_supervised:
        return 0
    if steps >= config.total_steps * config.train_epochs:
        return -(-config.total_steps // config.update_steps)  # the last episode may be shorter
    return steps // (config.update_steps * config.train_epochs)


# -- functions of one's own ----------------------------------------------------------------------------


class EvaluatorError(ProaError, RuntimeError):
    """An evaluator of one's own raised; the message says what and where, and the cause is what it raised."""


@dataclass(frozen=True)
class EvaluatedPolicy:
    """What an evaluator of one's own is given: the weights as they are after a step. No gradient is kept."""

    model: Any
    tokenizer: Any
    step: int
    """Optimizer steps done."""
    version: int
    _engine: Callable[[], EvalEngine]
    _config: RunConfig

    def generate(
        self,
        prompts: Sequence[str | list[dict[str, str]]],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        samples: int = 1,
        seed: int = 0,
    ) -> list[list[str]]:
        """Completions of each prompt, greedy by default."""
        if samples > 1 and temperature == 0:
            raise ConfigError(f"with temperature 0 all {samples} samples would be the same: give a temperature")
        requests = [
            Request(
                tokenise(TaskRow(prompt), self.tokenizer, where=f"prompt {place}"),
                tuple(sample_seed(seed, -1 - place, sample) for sample in range(samples)),
            )
            for place, prompt in enumerate(prompts)
        ]
        most = max_new_tokens or self._config.sampling.max_new_tokens
        engine = self._engine()
        groups = engine.generate(requests, Sampling(samples, most, temperature=temperature))
        return [[engine.text(one) for one in group] for group in groups]


def _calling(
    section: EvalSection,
    config: RunConfig,
    policy: Trainable,
    now: Callable[[], At],
    called: Callable[..., Any] | None,
) -> Scoring:
    function = called or resolve(str(section.evaluator))
    _check_takes_policy(section, function)
    engine = EvalEngine(policy, config.engine)
    twin: list[PreTrainedModel] = []

    def begin() -> Callable[[], Scored]:
        at, began = now(), perf_counter()
        model = _copied_into(twin, policy.model) if section.apart else policy.model
        loaded = functools.cache(lambda: engine.load(model))  # only if it generates, and then once
        evaluated = EvaluatedPolicy(model, policy.tokenizer, at.steps, at.version, loaded, config)
        result = EvalResult(section.name, str(section.evaluator), step=at.steps - 1, tags=list(section.tags))

        def score() -> Scored:
            with measuring(model):
                metrics, predictions = _taken_apart(section, _called(section, function, evaluated))
            return Scored(replace(result, metrics=metrics, eval_seconds=perf_counter() - began), predictions)

        return score

    return begin


def _copied_into(twin: list[PreTrainedModel], model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model that training does not change, made once and then brought up to date."""
    if not twin:
        twin.append(copy.deepcopy(model).requires_grad_(False))
    twin[0].load_state_dict(model.state_dict())
    return twin[0]


def _check_takes_policy(section: EvalSection, function: Any) -> None:
    if not callable(function):
        raise ConfigError(f"eval {section.name}: {section.evaluator} is no function of the policy")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are not written in Python do not say
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise ConfigError(
            f"eval {section.name}: the evaluator {section.evaluator} is called with the policy alone, as in "
            f"'def evaluator(policy)', and takes {signature}: {error}"
        ) from None


def _called(section: EvalSection, function: Callable[..., Any], policy: EvaluatedPolicy) -> Any:
    try:
        given = function(policy)
        return await_result(given) if inspect.isawaitable(given) else given
    except Exception as error:  # the user's function runs here, and may raise anything
        raise EvaluatorError(
            f"eval {section.name}: the evaluator {section.evaluator} raised {type(error).__name__}: {error}"
            f"{_place_in(function, error)}"
        ) from error


def _place_in(function: Callable[..., Any], error: BaseException) -> str:
    """Where in the function's own file it was raised, or what it had called there."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if code and frame.filename == code.co_filename
    ]
    return f" ({code.co_filename}, line {lines[-1]})" if code and lines else ""


def _taken_apart(section: EvalSection, given: Any) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The numbers that an evaluator returned, and the rows beside them."""
    if not isinstance(given, Mapping):
        raise _no_numbers(section, given)
    metrics: dict[str, float] = {}
    for name, value in given.items():
        if name != "predictions":
            if (number := _number(value)) is None:
                raise _no_numbers(section, given)
            metrics[str(name)] = number
    return metrics, _rows_of(section, given.get("predictions", ()))


def _rows_of(section: EvalSection, given: Any) -> list[dict[str, Any]]:
    rows = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(
            f"eval {section.name}: an evaluator's predictions are a list of rows, e.g. "
            f"[{{'task_id': '0', 'reward': 1}}], and this one gave {given!r:.80}"
        )
    return [dict(row) for row in rows]


def _number(value: Any) -> float | None:
    """Of Python, or of an array or a tensor that holds one."""
    try:
        return float(value.item() if hasattr(value, "item") else value) if not isinstance(value, str) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _no_numbers(section: EvalSection, given: Any) -> ConfigError:
    return ConfigError(
        f"eval {section.name}: an evaluator returns numbers by name, e.g. {{'accuracy': 0.5}}, and this one gave "
        f"{given!r:.80}"
    )


# -- data ----------------------------------------------------------------------------------------------


def eval_task(section: EvalSection, config: RunConfig) -> Task:
    source = eval_source(section, config)
    if source in BUILTIN:
        return builtin_task(source, "test", section.count)  # the same for every seed: repeats are compared on it
    return load_task(source, prompt_column=config.task.prompt_column)


def eval_source(section: EvalSection, config: RunConfig) -> str:
    """Data that is not trained on: what the section names, or the test split of a built-in task."""
    source = section.source or config.task.source
    if section.source is None and source not in BUILTIN:
        raise ConfigError(f"eval {section.name} has no data of its own: give source, what is held out of training")
    return source
