"""Evals in the loop: on the trainer's weights after a step, with an engine of their own, while the makers go on."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ..config import ConfigError
from ..config.run_config import EvalSection, RunConfig
from ..data.results import EvalResult
from ..data.sampling import Sampling
from ..data.state import LoopState
from ..engines import build_engine
from ..engines.protocol import Request
from ..errors import ProaError
from ..loop import Evaluator
from ..policy.whole import whole_weights
from ..rewards.calling import run_to_end
from ..rewards.dotted import resolve
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.prompts import tokenise
from ..tasks.task import TaskRow
from .benchmark import Benchmark, Scored
from .material import Material

Report = Callable[[EvalResult, list[dict[str, Any]]], None]
"""Takes the scores of an eval, and its predictions, to the run's driver."""


def evaluator_for(
    section: EvalSection,
    config: RunConfig,
    material: Material,
    state: Callable[[], LoopState],
    report: Report,
    called: Callable[..., Any] | None = None,
) -> Evaluator:
    """An evaluator as configured: a benchmark, or a function of one's own that is given the policy."""
    score = scoring(section, config, material, state, called)
    last: list[Scored] = []

    def metrics() -> dict[str, float]:
        last[:] = [score()]
        return last[0].result.metrics

    return Evaluator(
        section.name,
        metrics,
        run_every=section.run_every,
        baseline=section.baseline,
        report=lambda: report(last[0].result, last[0].predictions),
    )


def scoring(
    section: EvalSection,
    config: RunConfig,
    material: Material,
    state: Callable[[], LoopState],
    called: Callable[..., Any] | None = None,
    *,
    any_length: bool = False,
) -> Callable[[], Scored]:
    """Scores the model as it is, each time it is called. What is wrong with the eval is found now.

    With `any_length`, completions may be as long as the model's context allows where the eval does not say."""
    if section.evaluator is not None:
        return _calling(section, config, material, state, called)
    benchmark = Benchmark(
        section,
        eval_task(section, config),
        material,
        engine=config.engine,
        max_new_tokens=section.max_new_tokens or (None if any_length else config.sampling.max_new_tokens),
        seed=config.seed,
    )
    return lambda: benchmark.score(version=state().policy_version, step=state().global_step - 1)


# -- functions of one's own ----------------------------------------------------------------------------


class EvaluatorError(ProaError, RuntimeError):
    """An evaluator of one's own raised; the message says what and where, and the cause is what it raised."""


@dataclass(frozen=True)
class Policy:
    """What an evaluator of one's own is given: the weights as they are after a step."""

    model: Any
    tokenizer: Any
    step: int
    """Optimizer steps done."""
    version: int
    _material: Material
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
        engine = build_engine(
            self._config.engine.kind, self.model, end_ids=self._material.end_ids, slots=self._config.engine.slots
        )
        engine.load(whole_weights(self.model))
        requests = [
            Request(
                tokenise(TaskRow(prompt), self.tokenizer, where=f"prompt {place}"),
                tuple(seed + sample for sample in range(samples)),
            )
            for place, prompt in enumerate(prompts)
        ]
        most = max_new_tokens or self._config.sampling.max_new_tokens
        groups = engine.generate(requests, Sampling(samples, most, temperature=temperature))
        decode = self.tokenizer.decode
        return [[str(decode(one.tokens.tolist(), skip_special_tokens=True)) for one in group] for group in groups]


def _calling(
    section: EvalSection,
    config: RunConfig,
    material: Material,
    state: Callable[[], LoopState],
    called: Callable[..., Any] | None,
) -> Callable[[], Scored]:
    function = called or resolve(str(section.evaluator))
    _check_takes_policy(section, function)

    def score() -> Scored:
        now, began = state(), perf_counter()
        policy = Policy(material.model, material.tokenizer, now.global_step, now.policy_version, material, config)
        given = _called(section, function, policy)
        predictions: list[dict[str, Any]] = list(given.pop("predictions", [])) if isinstance(given, dict) else []
        metrics = _numbers(section, given)
        seconds = perf_counter() - began
        result = EvalResult(
            section.name, str(section.evaluator), metrics, {}, seconds, now.global_step - 1, list(section.tags)
        )
        return Scored(result, predictions)

    return score


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


def _called(section: EvalSection, function: Callable[..., Any], policy: Policy) -> Any:
    try:
        given = function(policy)
        return run_to_end(given) if inspect.isawaitable(given) else given
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


def _numbers(section: EvalSection, given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or not all(isinstance(value, int | float) for value in given.values()):
        raise ConfigError(
            f"eval {section.name}: an evaluator returns numbers by name, e.g. {{'accuracy': 0.5}}, and this one gave "
            f"{given!r:.80}"
        )
    return {str(name): float(value) for name, value in given.items()}


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
