"""A benchmark: the prompts of a task, completions of them, and how good each is."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from ..config import ConfigError
from ..config.sections import EngineSection, EvalSection
from ..data.lease import sample_seed
from ..data.results import EvalResult
from ..data.sampling import Completion, Sampling
from ..engines import build_engine
from ..engines.protocol import Engine, Request
from ..model_shape import context_length
from ..policy.material import Material
from ..policy.whole import whole_weights
from ..rewards import InlineRewards
from ..rewards.score import Score
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

    def __init__(self, material: Material, section: EngineSection) -> None:
        self._material = material
        self._section = section
        self._engine: Engine | None = None

    def load(self, model: PreTrainedModel) -> EvalEngine:
        """Take the model's weights as they are now."""
        if self._engine is None:
            end_ids = self._material.end_ids
            self._engine = build_engine(self._section.kind, model, end_ids=end_ids, slots=self._section.slots)
        self._engine.load(whole_weights(model))
        return self

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        assert self._engine is not None, "it has no weights before they are loaded"
        return self._engine.generate(requests, sampling)

    def text(self, completion: Completion) -> str:
        return str(self._material.tokenizer.decode(completion.tokens.tolist(), skip_special_tokens=True))


class Benchmark:
    """Scores a model's completions of a task. What is wrong with the task is found when it is built."""

    def __init__(
        self,
        section: EvalSection,
        task: Task,
        material: Material,
        *,
        engine: EngineSection,
        max_new_tokens: int | None,
        seed: int,
    ) -> None:
        self.section = section
        self._material = material
        self._id = section.source or task.name
        self._rows = task.rows[: section.count]
        self._check(task)
        self._scorer = InlineRewards(metric_of(section, task))
        self._scorer.check(self._rows[0].columns)
        self.metric = self._scorer.functions[0].name
        self._requests = [self._request(place, row, seed) for place, row in enumerate(self._rows)]
        longest = max(len(request.tokens) for request in self._requests)
        most = max_new_tokens or _room(material, longest)
        _check_room(section, material, longest + most)
        self._sampling = Sampling(section.samples, most, temperature=section.sampling_temperature)
        self._engine = EvalEngine(material, engine)

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
        self._engine.load(self._material.model)
        spent = perf_counter() - began

        def score() -> Scored:
            began = perf_counter()
            predictions = self._predictions(self._engine.generate(self._requests, self._sampling), version)
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

    def _predictions(self, groups: list[list[Completion]], version: int) -> list[dict[str, Any]]:
        pairs = [(place, sample) for place in range(len(groups)) for sample in range(len(groups[place]))]
        completions = [groups[place][sample] for place, sample in pairs]
        texts = [self._engine.text(one) for one in completions]
        rows = [self._rows[place] for place, _ in pairs]
        columns = {name: [row.columns[name] for row in rows] for name in self._rows[0].columns}
        scores = self._scorer.score([row.prompt for row in rows], texts, columns)
        return [
            self._prediction(place, sample, completion, text, score, version)
            for (place, sample), completion, text, score in zip(pairs, completions, texts, scores, strict=True)
        ]

    def _prediction(
        self, place: int, sample: int, completion: Completion, text: str, score: Score, version: int
    ) -> dict[str, Any]:
        row = self._rows[place]
        return {
            "task_id": _task_id(row, place),
            "sample": sample,
            "prompt": row.prompt,
            "completion": text,
            "reward": score.value,
            "correct": None if score.value is None else score.value >= self.section.correct_at,
            "error": score.error,
            "tokens": len(completion),
            "finish_reason": completion.finish_reason,
            "policy_version": version,
            "seed": self._requests[place].seeds[sample],
            "columns": row.columns,
        }

    def _request(self, place: int, row: TaskRow, seed: int) -> Request:
        tokens = tokenise(row, self._material.tokenizer, where=f"eval {self.section.name}")
        # Seeds of its own: an eval that samples must not repeat what training saw.
        seeds = tuple(sample_seed(seed, -1 - place, sample) for sample in range(self.section.samples))
        return Request(tokens, seeds)


def _task_id(row: TaskRow, place: int) -> str:
    """What the data calls it, or its place."""
    for name in ("task_id", "id"):
        if name in row.columns:
            return str(row.columns[name])
    return str(place)


def _room(material: Material, longest: int) -> int:
    """What is left of the context, where nobody says how long completions may be."""
    context = context_length(material.model.config)
    return DEFAULT_NEW_TOKENS if context is None else max(1, min(DEFAULT_NEW_TOKENS, context - longest))


def _check_room(section: EvalSection, material: Material, longest: int) -> None:
    context = context_length(material.model.config)
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
