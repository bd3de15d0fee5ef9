"""A benchmark: the prompts of a task, completions of them, and how good each is."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config import ConfigError
from ..config.run_config import EngineSection, EvalSection
from ..data.lease import Prompt, sample_seed
from ..data.results import EvalResult
from ..data.sampling import Sampling
from ..engines import build_engine
from ..model_shape import context_length
from ..policy.lora_policy import policy_of
from ..policy.trainable import Trainable
from ..rewards import InlineRewards
from ..rollouts import Progress, Sample, SingleTurn, VersionedEngine
from ..spelling import did_you_mean
from ..statistics import summarise
from ..tasks import Task
from ..tasks.builtin import BUILTIN
from ..tasks.prompts import tokenise
from ..tasks.task import TaskRow, check_columns

DEFAULT_NEW_TOKENS = 256
_OF_EVERY_ROW = ("task_id", "sample", "correct", "error", "finish_reason")
"""What scores may be broken down by beside the task's columns."""


@dataclass(frozen=True)
class Scored:
    """What came of a benchmark: its scores, and a row for every completion."""

    result: EvalResult
    predictions: list[dict[str, Any]]


class EvalEngine:
    """An engine of an eval's own: built at the first use, kept for the next, with weights as they were when loaded."""

    def __init__(self, policy: Trainable, section: EngineSection) -> None:
        self._policy = policy
        self._section = section
        self._engine: VersionedEngine | None = None

    def load(self, model: PreTrainedModel, version: int) -> VersionedEngine:
        """Take the model's weights as they are now."""
        if self._engine is None:
            end_ids = self._policy.end_ids
            engine = build_engine(self._section.kind, model, end_ids=end_ids, slots=self._section.slots)
            self._engine = VersionedEngine(engine)
        self._engine.load(policy_of(model).whole(), version)
        return self._engine


class Benchmark:
    """Scores a model's completions of a task. What is wrong with the task is found when it is built."""

    def __init__(
        self,
        section: EvalSection,
        task: Task,
        policy: Trainable,
        *,
        engine: EngineSection,
        max_new_tokens: int | None,
        seed: int,
    ) -> None:
        self.section = section
        self._policy = policy
        self._id = section.source or task.name
        self._rows = task.rows[: section.count]
        self._check(task)
        scorer = InlineRewards(metric_of(section, task))
        scorer.check(self._rows[0].columns)
        self.metric = scorer.functions[0].name
        self._prompts = eval_prompts(self._rows, policy.tokenizer, where=f"eval {section.name}")
        self._seeds = eval_seeds(seed, len(self._rows), section.samples)
        longest = max(len(prompt.tokens) for prompt in self._prompts)
        most = max_new_tokens or _room(policy, longest)
        _check_room(section, policy, longest + most)
        sampling = Sampling(section.samples, most, temperature=section.sampling_temperature)
        self._rollout = SingleTurn(policy.tokenizer, sampling, scorer=scorer)
        self._engine = EvalEngine(policy, engine)

    def _check(self, task: Task) -> None:
        section = self.section
        if not self._rows:
            raise ConfigError(f"eval {section.name}: the task {task.name} has no rows")
        check_columns(replace(task, rows=self._rows))
        known = [*self._rows[0].columns, *_OF_EVERY_ROW]
        for key in section.breakdown:
            if key not in known:
                hint = did_you_mean(key, known) or f": its rows have {', '.join(known)}"
                raise ConfigError(f"eval {section.name}: there is no {key!r} to break down by{hint}")

    def begin(self, *, version: int, step: int | None) -> Callable[[], Scored]:
        """Take the model's weights as they are; what is returned scores them, now or later, in any thread."""
        began = perf_counter()
        engine = self._engine.load(self._policy.model, version)
        spent = perf_counter() - began

        def score() -> Scored:
            began = perf_counter()
            samples = self._rollout.run(engine, self._prompts, self._seeds, Progress(f"eval {self.section.name}"))
            predictions = [self._prediction(sample, version) for sample in samples]
            metrics, breakdowns = self._summary(predictions)
            seconds = spent + perf_counter() - began
            result = EvalResult(
                self.section.name, self._id, metrics, breakdowns, seconds, step, list(self.section.tags)
            )
            return Scored(result, predictions)

        return score

    def score(self, *, version: int, step: int | None) -> Scored:
        """The scores of the model's weights as they are."""
        return self.begin(version=version, step=step)()

    def _summary(
        self, predictions: list[dict[str, Any]]
    ) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
        """The mean under the name of what scored it first, then what else there is to say."""
        several = self.section.samples > 1
        judged = Counter(row["task_id"] for row in predictions if row["correct"] is not None)
        enough = several and max(judged.values(), default=0) >= self.section.samples
        rows = [{**row["columns"], **row} for row in predictions]
        found, breakdowns = summarise(rows, k=self.section.samples if enough else (), keys=self.section.breakdown)
        tokens = sum(row["tokens"] for row in predictions) / len(predictions)
        metrics = {self.metric: found["mean_reward"], "completion_tokens": tokens}
        more = [f"pass@{self.section.samples}", f"mean@{self.section.samples}"] if several else []
        metrics |= {name: found.get(name, math.nan) for name in more}
        if enough and (over := found[f"pass@{self.section.samples}_tasks"]) < found["tasks"]:
            metrics[f"pass@{self.section.samples}_tasks"] = over  # of the others some completions were not judged
        return metrics | ({"errors": found["errors"]} if found["errors"] else {}), breakdowns

    def _prediction(self, sample: Sample, version: int) -> dict[str, Any]:
        prompt, score = sample.prompt, sample.score
        return {
            "task_id": _task_id(prompt),
            "sample": sample.index,
            "prompt": prompt.text,
            "completion": sample.text,
            "reward": score.value,
            "correct": None if score.value is None else score.value >= self.section.correct_at,
            "error": score.error,
            "tokens": sample.tokens,
            "finish_reason": sample.finish_reason,
            "policy_version": version,
            "seed": sample.seed,
            "columns": prompt.columns,
        }


def eval_prompts(rows: Sequence[TaskRow], tokenizer: PreTrainedTokenizerBase, *, where: str) -> list[Prompt]:
    """The prompts of an eval, as generation continues them; what cannot be is refused with its place."""
    return [
        Prompt(place, tokenise(row, tokenizer, where=f"{where}, prompt {place}"), row.prompt, row.columns)
        for place, row in enumerate(rows)
    ]


def eval_seeds(seed: int, prompts: int, samples: int) -> list[list[int]]:
    """Seeds of its own for each sample: an eval must not repeat what training saw, whose ordinals count from 0 up."""
    return [[sample_seed(seed, -1 - place, sample) for sample in range(samples)] for place in range(prompts)]


def _task_id(prompt: Prompt) -> str:
    """What the data calls it, or its place."""
    for name in ("task_id", "id"):
        if name in prompt.columns:
            return str(prompt.columns[name])
    return str(prompt.ordinal)


def _room(policy: Trainable, longest: int) -> int:
    """What is left of the context, where nobody says how long completions may be."""
    context = context_length(policy.model.config)
    return DEFAULT_NEW_TOKENS if context is None else max(1, min(DEFAULT_NEW_TOKENS, context - longest))


def _check_room(section: EvalSection, policy: Trainable, longest: int) -> None:
    context = context_length(policy.model.config)
    if context is not None and longest > context:
        raise ConfigError(
            f"eval {section.name}: its longest prompt with max_new_tokens is {longest} tokens, and the model's context "
            f"is {context}"
        )


def metric_of(section: EvalSection, task: Task) -> Any:
    """What scores a completion: as the section says, or as the task does."""
    if section.metric is not None:
        return section.metric
    if task.name in BUILTIN:
        return importlib.import_module(f"proa.tasks.builtin.{task.name}").exact
    if task.reward is None:
        raise ConfigError(f"eval {section.name}: the task {task.name} brings no score; give eval.metric")
    return task.reward
