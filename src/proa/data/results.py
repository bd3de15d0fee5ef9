"""The context for loggers, and the results of evals, runs, arms and experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import SettingError
from ..spelling import did_you_mean
from ..statistics.comparison import Comparison, Mode
from ..statistics.intervals import Estimate
from ..statistics.runs import ArmScores, compare_runs
from .loop import LoopArtifacts

Status = Literal["pending", "running", "completed", "failed", "cancelled"]


@dataclass
class LogContext:
    """The context of a run for loggers. Concurrent runs have one each.

    `config` is the `ExperimentConfig`; a plain run is an experiment of one. In `ids` loggers keep the ids of their
    service: `experiment_id`, `group:<name>`, `run_id`. `extras["standalone"]` is true in a plain run; from
    `run_start` on, `extras["resumed_from"]` is the checkpoint that the run continues from, or None, and
    `extras["steps_done"]` the number of its steps.
    """

    output_dir: Path
    config: Any = None
    run_key: str = ""
    run_config: Any = None
    group_name: str | None = None
    ids: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass
class EvalResult:
    """The scores of one benchmark at one step (`step=None`: after training).

    `breakdowns[key][value]` is `{"n": …, "mean_reward": …, "pass_rate": …}`.
    """

    name: str
    benchmark_id: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    eval_seconds: float = 0.0
    step: int | None = None
    tags: list[str] = field(default_factory=list)


def latest_evals(evals: Iterable[EvalResult]) -> dict[str, EvalResult]:
    """The last result of each benchmark: the one after training if there is one, else that of the last step.

    >>> results = [EvalResult("sort", step=3), EvalResult("sort"), EvalResult("sum", step=1), EvalResult("sum", step=0)]
    >>> {name: result.step for name, result in latest_evals(results).items()}
    {'sort': None, 'sum': 1}
    """
    found: dict[str, EvalResult] = {}
    for result in evals:
        before = found.get(result.name)
        is_later = before is None or result.step is None or (before.step is not None and result.step >= before.step)
        if is_later:
            found[result.name] = result
    return found


@dataclass
class RunResult:
    """How one run ended; `status` is `completed`, `failed` or `cancelled`."""

    run_id: str
    status: Status = "completed"
    metrics: dict[str, float] = field(default_factory=dict)
    artifacts: LoopArtifacts | None = None
    error: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass
class ArmResult:
    """One arm of an experiment: its run, its scores, and how long they took."""

    name: str
    run_config: Any = field(default=None, repr=False)
    status: Status = "pending"
    metrics: dict[str, float] = field(default_factory=dict)
    eval_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    eval_breakdowns: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict, repr=False)
    evals: list[EvalResult] = field(default_factory=list, repr=False)
    run_id: str | None = None
    error: str | None = None
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    run_result: RunResult | None = field(default=None, repr=False)
    group_id: str | None = None
    group_name: str | None = None

    def eval(self, name: str, step: int | None = None) -> EvalResult | None:
        """The result of benchmark `name` at `step`; by default its last: after training, else at the last step."""
        if step is None:
            return latest_evals(self.evals).get(name)
        return next((result for result in self.evals if (result.name, result.step) == (name, step)), None)

    def score(self, metric: str) -> float | None:
        """A training metric by its name, or a benchmark's as `benchmark.metric`; None if there is none.

        >>> arm = ArmResult("a", metrics={"reward": 0.5}, eval_metrics={"sort": {"exact": 0.9}})
        >>> arm.score("reward"), arm.score("sort.exact"), arm.score("sort.nothing")
        (0.5, 0.9, None)
        """
        if metric in self.metrics:
            return self.metrics[metric]
        benchmark, _, name = metric.rpartition(".")
        return self.eval_metrics.get(benchmark, {}).get(name)

    def metric_names(self) -> list[str]:
        """The metrics that `score` accepts: those of benchmarks, then those of training."""
        evals = [f"{name}.{metric}" for name, metrics in self.eval_metrics.items() for metric in metrics]
        return [*evals, *(name for name in self.metrics if name not in evals)]


@dataclass
class GroupResult:
    """The repeats of one arm: their runs, including planned ones that were not run, and every score's mean with its
    interval."""

    name: str
    runs: list[str] = field(default_factory=list)
    metrics: dict[str, Estimate] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return asdict(self)


@dataclass
class ExperimentResult:
    """All runs of an experiment, their arms' statistics, and which arm was best by the success metric.

    `arms` are runs, one for each repeat and stage; `groups` collect the repeats.
    """

    name: str
    status: Status = "pending"
    arms: list[ArmResult] = field(default_factory=list)
    best_arm: str | None = None
    best_score: float | None = None
    conclusion: str = ""
    experiment_id: str | None = None
    hypothesis: str | None = None
    groups: dict[str, GroupResult] = field(default_factory=dict)
    success_metric: str | None = None
    mode: Mode = "max"
    task_scores: Callable[[ArmResult, str], dict[str, float | None] | None] | None = field(
        default=None, repr=False, compare=False
    )
    """Returns the scores of a run's tasks by a metric, if they were recorded."""

    def compare(self, a: str, b: str, metric: str | None = None, *, mode: Mode | None = None) -> Comparison:
        """Compare arm a with arm b in pairs: the same seeds, and the same tasks where both were scored on them.

        The metric is by default the success metric. `mode` says whether higher values are better (`max`) or lower ones
        (`min`); the default is the experiment's, which may not suit another metric.
        """
        metric = metric or self.success_metric
        if metric is None:
            raise SettingError("say by which metric: the experiment has no success_metric")
        for name in (a, b):
            if name not in self.groups:
                raise SettingError(f"no arm is called {name!r}{did_you_mean(name, self.groups)}")
        known = self.metric_names()
        if metric not in known:
            raise SettingError(f"no run has a metric {metric!r}{did_you_mean(metric, known)}")
        return compare_runs(self._scores(a, metric), self._scores(b, metric), mode=mode or self.mode, names=(a, b))

    def metric_names(self) -> list[str]:
        """Every metric that some run has."""
        return list(dict.fromkeys(name for arm in self.arms for name in arm.metric_names()))

    def _scores(self, group: str, metric: str) -> ArmScores:
        """The scores of completed runs; partial runs are not comparable."""
        runs = [arm for arm in self.arms if arm.name in self.groups[group].runs and arm.status == "completed"]
        return ArmScores.collect(
            (
                getattr(arm.run_config, "seed", arm.name),
                arm.score(metric),
                self.task_scores(arm, metric) if self.task_scores else None,
            )
            for arm in runs
        )
