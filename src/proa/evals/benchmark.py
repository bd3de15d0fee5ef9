"""A benchmark: completions of a task's prompts, and their scores."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from ..config import ConfigError
from ..config.eval_section import BenchmarkSection
from ..config.sections import EngineSection
from ..data.lease import Prompt
from ..data.results import EvalResult
from ..data.sampling import Sampling
from ..model_shape import context_length
from ..policy.trainable import Trainable
from ..rewards import InlineRewards, load_rewards
from ..roles.surroundings import Surroundings
from ..rollouts import Progress, Rollout, Sample, SingleTurn, VersionedEngine
from ..spelling import did_you_mean
from ..statistics import summarise
from ..tasks import Task
from ..tasks.builtin import BUILTIN
from ..tasks.task import check_columns
from .generation import EvalEngine, eval_prompts, eval_seeds
from .given_eval import GivenEval
from .scoring import At, Eval, Scored, WeightsScoring

DEFAULT_NEW_TOKENS = 256
NOTHING_GIVEN = GivenEval()
_PREDICTION_KEYS = ("task_id", "sample", "correct", "error", "finish_reason")
"""What scores may be broken down by besides the task's columns."""


class Benchmark(Eval):
    """Scores a model's completions of a task. Mistakes in the task or the settings are found when it is built."""

    def __init__(
        self,
        section: BenchmarkSection,
        task: Task,
        policy: Trainable,
        *,
        engine: EngineSection,
        max_new_tokens: int | None,
        seed: int,
        stop: Sequence[str] = (),
        given: GivenEval = NOTHING_GIVEN,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.section = section
        self._policy = policy
        self._id = section.source or task.name
        self._rows = task.rows[: section.count]
        self._check(task, has_environment=surroundings is not None)
        scorer = scorer_of(section, task, given, surroundings)
        if scorer is not None:
            scorer.check(self._rows[0].columns)
        self.metric = score_name(scorer)
        self._seeds = eval_seeds(seed, len(self._rows), section.samples)
        sampling = partial(Sampling, section.samples, temperature=section.sampling_temperature, stop=tuple(stop))
        self._rollout: Rollout
        if surroundings is not None:
            self._prompts = [Prompt(place, (), row.prompt, row.columns) for place, row in enumerate(self._rows)]
            self._rollout = surroundings.rollout(
                sampling(max_new_tokens=max_new_tokens or DEFAULT_NEW_TOKENS),
                scorer=scorer,
                adds_given=_is_scored_as_the_run(section, task, given),
            )
        else:
            self._prompts = eval_prompts(self._rows, policy.tokenizer, where=f"eval {section.name}")
            longest = max(len(prompt.tokens) for prompt in self._prompts)
            most = max_new_tokens or _room(policy, longest)
            _check_room(section, policy, longest + most)
            self._rollout = SingleTurn(policy.tokenizer, sampling(max_new_tokens=most), scorer=scorer)
        self._engine = EvalEngine(engine)

    def _check(self, task: Task, *, has_environment: bool) -> None:
        section = self.section
        if not self._rows:
            raise ConfigError(f"eval {section.name}: the task {task.name} has no rows")
        check_columns(replace(task, rows=self._rows))
        known = [*self._rows[0].columns, *_PREDICTION_KEYS, *(("ending", "turns") if has_environment else ())]
        for key in section.breakdown:
            if key not in known:
                hint = did_you_mean(key, known) or f": its rows have {', '.join(known)}"
                raise ConfigError(f"eval {section.name}: there is no {key!r} to break down by{hint}")

    def begin(self, at: At) -> BenchmarkScoring:
        began = perf_counter()
        engine = self._engine.load(self._policy.gathered(), at.version)
        return BenchmarkScoring(self, engine, at, perf_counter() - began)

    def measure(self, engine: VersionedEngine, at: At) -> Scored:
        """The scores of the weights that an engine has."""
        began = perf_counter()
        samples = self._rollout.run(engine, self._prompts, self._seeds, Progress(f"eval {self.section.name}"))
        predictions = [self._prediction(sample) for sample in samples]
        metrics, breakdowns = self._summary(predictions)
        seconds = perf_counter() - began
        tags = list(self.section.tags)
        result = EvalResult(self.section.name, self._id, metrics, breakdowns, seconds, at.steps - 1, tags)
        return Scored(result, predictions)

    def _summary(
        self, predictions: list[dict[str, Any]]
    ) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
        """Metrics, first the mean under the name of the function that scored, and their breakdowns."""
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
        metrics |= {"errors": found["errors"]} if found["errors"] else {}
        means = _conversation_means(predictions) | _logged_means(predictions)
        # The score comes first: it is what the eval is judged by.
        return metrics | {name: mean for name, mean in means.items() if name not in metrics}, breakdowns

    def _prediction(self, sample: Sample) -> dict[str, Any]:
        prompt, score = sample.prompt, sample.score
        names = [name for name in ("task_id", "id") if name in prompt.columns]
        return {
            "task_id": str(prompt.columns[names[0]] if names else prompt.ordinal),  # as the data calls it, or its place
            "sample": sample.index,
            "prompt": prompt.text,
            "completion": sample.text,
            "reward": score.value,
            "correct": None if score.value is None else score.value >= self.section.correct_at,
            "error": sample.failure,
            **_conversation(sample),
            **({"logged": score.logged} if score.logged else {}),
            "tokens": sample.tokens,
            "finish_reason": sample.finish_reason,
            "policy_version": sample.version,
            "seed": sample.seed,
            "columns": prompt.columns,
        }


class BenchmarkScoring(WeightsScoring):
    """A benchmark of the weights that its engine has loaded."""

    def __init__(self, benchmark: Benchmark, engine: VersionedEngine, at: At, loading_seconds: float) -> None:
        self._benchmark = benchmark
        self._engine = engine
        self._at = at
        self._loading_seconds = loading_seconds

    def score(self) -> Scored:
        scored = self._benchmark.measure(self._engine, self._at)
        seconds = scored.result.eval_seconds + self._loading_seconds
        return replace(scored, result=replace(scored.result, eval_seconds=seconds))


def _room(policy: Trainable, longest: int) -> int:
    """How long completions may be where no setting says it: what is left of the context."""
    context = context_length(policy.model.config)
    return DEFAULT_NEW_TOKENS if context is None else max(1, min(DEFAULT_NEW_TOKENS, context - longest))


def _check_room(section: BenchmarkSection, policy: Trainable, longest: int) -> None:
    context = context_length(policy.model.config)
    if context is not None and longest > context:
        raise ConfigError(
            f"eval {section.name}: its longest prompt with max_new_tokens is {longest} tokens, and the model's context "
            f"is {context}"
        )


def _logged_means(predictions: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers that the functions logged, as means over the completions that have them."""
    values: dict[str, list[float]] = {}
    for row in predictions:
        for name, value in row.get("logged", {}).items():
            if not isinstance(value, str):
                values.setdefault(name, []).append(value)
    return {name: math.fsum(own) / len(own) for name, own in values.items()}


def _conversation(sample: Sample) -> dict[str, Any]:
    """Of a sample that had an environment: how it ended, and all that was said."""
    facts = sample.facts
    if facts is None:
        return {}
    return {
        "ending": facts.ending, "turns": facts.turns, "tool_calls": facts.tool_calls, "tool_errors": facts.tool_errors,
        "messages": list(facts.messages),
    }  # fmt: skip


def _conversation_means(predictions: list[dict[str, Any]]) -> dict[str, float]:
    """Turns of a conversation on average, and the share of each way in which conversations ended."""
    endings = Counter(row["ending"] for row in predictions if "ending" in row)
    if not endings:
        return {}
    turns = sum(row["turns"] for row in predictions) / len(predictions)
    return {"turns": turns} | {f"ending.{name}": n / len(predictions) for name, n in sorted(endings.items())}


def score_name(scorer: InlineRewards | None) -> str:
    """What the mean score is called: by its function, or `reward` where several add up, or an environment scores."""
    return scorer.functions[0].name if scorer is not None and len(scorer.functions) == 1 else "reward"


def scorer_of(
    section: BenchmarkSection, task: Task, given: GivenEval, surroundings: Surroundings | None
) -> InlineRewards | None:
    """What scores an eval's samples; None where an environment does, and nothing else is named."""
    if surroundings is not None and not given.reward and _is_scored_as_the_run(section, task, given):
        return None
    return InlineRewards(metric_of(section, task, given), length=given.length)


def _is_scored_as_the_run(section: BenchmarkSection, task: Task, given: GivenEval) -> bool:
    """Whether the eval has no metric of its own: what an environment gives is part of the run's reward only."""
    is_named = given.metric is not None or section.metric is not None
    return not is_named and task.name not in BUILTIN and task.reward is None


def metric_of(section: BenchmarkSection, task: Task, given: GivenEval = NOTHING_GIVEN) -> Any:
    """What scores a completion: the eval's own metric, or that of its task, or the run's reward."""
    if given.metric is not None:
        return given.metric
    if section.metric is not None:
        return section.metric
    if task.name in BUILTIN:
        return importlib.import_module(f"proa.tasks.builtin.{task.name}").exact
    if task.reward is not None:
        return task.reward
    if given.reward:
        return load_rewards(given.reward, given.weights)
    raise ConfigError(f"eval {section.name}: the task {task.name} brings no score; give eval.metric")
