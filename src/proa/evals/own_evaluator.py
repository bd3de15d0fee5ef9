"""Evaluators of the user's own: functions that are given the policy and return numbers by name."""

from __future__ import annotations

import copy
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config import ConfigError, RunConfig
from ..config.eval_section import BenchmarkSection, EvalSection
from ..data.results import EvalResult
from ..data.sampling import Sampling
from ..dotted import resolve
from ..errors import ProaError
from ..policy.measuring import measuring
from ..policy.trainable import Trainable
from ..rewards.calling import await_result
from ..rollouts import Progress, SingleTurn, VersionedEngine
from ..tasks.chat import add_system_prompt
from ..tasks.task import TaskRow
from .generation import EvalEngine, eval_prompts, eval_seeds, system_prompt_of
from .scoring import At, Eval, Scored, WeightsScoring


class EvaluatorError(ProaError, RuntimeError):
    """The user's evaluator raised; the message says what and where, and the cause is the original exception."""


@dataclass(frozen=True)
class EvaluatedPolicy:
    """What an evaluator is given: the weights as they are after a step. No gradient is kept."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    step: int
    """Optimizer steps done."""
    version: int
    _policy: Trainable
    _engine: EvalEngine
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
        rows = [add_system_prompt(TaskRow(prompt), system_prompt_of(self._config)) for prompt in prompts]
        own = self._config.sampling
        most = max_new_tokens or own.max_new_tokens
        sampling = Sampling(samples, most, temperature=temperature, stop=tuple(own.stop))
        made = SingleTurn(self.tokenizer, sampling).run(
            self._loaded_engine,
            eval_prompts(rows, self.tokenizer, where="policy.generate"),
            eval_seeds(seed, len(rows), samples),
            Progress("an eval"),
        )
        texts: list[list[str]] = [[] for _ in rows]
        for sample in made:
            texts[sample.prompt.ordinal].append(sample.text)
        return texts

    @functools.cached_property
    def _loaded_engine(self) -> VersionedEngine:
        return self._engine.load(self._policy, self.version)  # only if it generates, and then once


class OwnEvaluator(Eval):
    """A function of the user's own as an eval. One that cannot be called with the policy is refused here."""

    def __init__(
        self,
        section: BenchmarkSection,
        config: RunConfig,
        policy: Trainable,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.section = section
        self._config = config
        self._policy = policy
        self._function: Any = function or resolve(str(section.evaluator))
        self._check_signature()
        self._engine = EvalEngine(config.engine)
        self._copy: PreTrainedModel | None = None  # which training does not change, for scoring beside it

    def begin(self, at: At) -> OwnScoring:
        began, policy = perf_counter(), self._policy.gathered()
        if isinstance(self.section, EvalSection) and self.section.apart:
            if self._copy is None:
                self._copy = copy.deepcopy(policy.model).requires_grad_(False)
            self._copy.load_state_dict(policy.model.state_dict())
            policy = policy.with_model(self._copy)
        return OwnScoring(
            self,
            EvaluatedPolicy(
                policy.model, policy.tokenizer, at.steps, at.version, policy, self._engine, self._config
            ),
            began,
        )  # fmt: skip

    def measure(self, policy: EvaluatedPolicy) -> Scored:
        """What the function says of the policy."""
        section = self.section
        with measuring(policy.model):
            metrics, predictions = self._split(self._call(policy))
        tags = list(section.tags)
        result = EvalResult(section.name, str(section.evaluator), metrics, step=policy.step - 1, tags=tags)
        return Scored(result, predictions)

    def _check_signature(self) -> None:
        section, function = self.section, self._function
        if not callable(function):
            raise ConfigError(f"eval {section.name}: {section.evaluator} is not a function of the policy")
        try:
            signature = inspect.signature(function)
        except ValueError:  # some that are not written in Python have none
            return
        try:
            signature.bind(object())
        except TypeError as error:
            raise ConfigError(
                f"eval {section.name}: the evaluator {section.evaluator} is called with the policy alone, as in "
                f"'def evaluator(policy)', and takes {signature}: {error}"
            ) from None

    def _call(self, policy: EvaluatedPolicy) -> Any:
        try:
            given = self._function(policy)
            return await_result(given) if inspect.isawaitable(given) else given
        except Exception as error:  # the user's function runs here, and may raise anything
            code = getattr(inspect.unwrap(self._function), "__code__", None)
            frames = [
                one for one in traceback.extract_tb(error.__traceback__) if code and one.filename == code.co_filename
            ]
            place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
            raise EvaluatorError(
                f"eval {self.section.name}: the evaluator {self.section.evaluator} raised {type(error).__name__}: "
                f"{error}{place}"
            ) from error

    def _split(self, given: Any) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """The numbers that an evaluator returned, and the rows beside them."""
        if not isinstance(given, Mapping):
            raise self._not_numbers(given)
        metrics: dict[str, float] = {}
        for name, value in given.items():
            if name != "predictions":
                if (number := _number(value)) is None:
                    raise self._not_numbers(given)
                metrics[str(name)] = number
        predictions = given.get("predictions", ())
        rows = list(predictions) if isinstance(predictions, Iterable) else [predictions]
        if not all(isinstance(row, Mapping) for row in rows):
            raise ConfigError(
                f"eval {self.section.name}: an evaluator's predictions are a list of rows, e.g. "
                f"[{{'task_id': '0', 'reward': 1}}], and this one gave {predictions!r:.80}"
            )
        return metrics, [dict(row) for row in rows]

    def _not_numbers(self, given: Any) -> ConfigError:
        return ConfigError(
            f"eval {self.section.name}: an evaluator returns numbers by name, e.g. {{'accuracy': 0.5}}, and this one "
            f"gave {given!r:.80}"
        )


class OwnScoring(WeightsScoring):
    """The user's function, to be called with the weights as they were."""

    def __init__(self, evaluator: OwnEvaluator, policy: EvaluatedPolicy, began: float) -> None:
        self._evaluator = evaluator
        self._policy = policy
        self._began = began

    def score(self) -> Scored:
        scored = self._evaluator.measure(self._policy)
        return replace(scored, result=replace(scored.result, eval_seconds=perf_counter() - self._began))


def _number(value: Any) -> float | None:
    """A number of Python, or of an array or a tensor that holds one; None if it is not a number."""
    try:
        return float(value.item() if hasattr(value, "item") else value) if not isinstance(value, str) else None
    except (TypeError, ValueError, RuntimeError):
        return None
