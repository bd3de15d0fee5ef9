"""What an experiment reports: one context for its loggers, and results from eval up to experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .loop import LoopArtifacts

Status = Literal["pending", "running", "completed", "failed", "cancelled"]


@dataclass
class LogContext:
    """What a logger needs to know of the run it logs. Concurrent runs have one each.

    `ids` is where loggers keep what their service calls things: `experiment_id`,
    `group:<name>`, `run_id`.
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
    run_config: Any = None
    status: Status = "pending"
    metrics: dict[str, float] = field(default_factory=dict)
    eval_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    eval_breakdowns: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    evals: list[EvalResult] = field(default_factory=list)
    run_id: str | None = None
    error: str | None = None
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    run_result: RunResult | None = None
    group_id: str | None = None
    group_name: str | None = None

    def eval(self, name: str, step: int | None = None) -> EvalResult | None:
        """The result of benchmark `name` at `step`, by default the one after training."""
        return next((e for e in self.evals if e.name == name and e.step == step), None)

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


@dataclass
class ExperimentResult:
    """All arms of an experiment, and which was best by its success metric."""

    name: str
    status: Status = "pending"
    arms: list[ArmResult] = field(default_factory=list)
    best_arm: str | None = None
    best_score: float | None = None
    conclusion: str = ""
    experiment_id: str | None = None
    hypothesis: str | None = None
