"""All that a report is about: a run, or the arms of an experiment with their runs, from what their folders hold."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.loop import ManifestRow
from ..data.results import EvalResult, latest_evals
from ..errors import ProaError
from ..record.checkpoints import CheckpointManager
from ..record.evals import EvalRecord, predictions_path
from ..record.reading import RunNotFoundError, RunSummary, read_run
from ..record.run_folder import BrokenRecordError, read_json
from ..statistics.evals import task_means
from .curves import Series
from .lines import objects_in
from .metrics import Metrics, number_in, read_metrics
from .samples import (
    MOST_SAMPLE_TOKENS,
    NO_SAMPLES,
    SAMPLES,
    SAMPLES_OF_A_REPEAT,
    Budget,
    Predictions,
    Rollout,
    Samples,
    read_predictions,
    read_rollouts,
)
from .spans import Timeline, read_timeline

EXPERIMENT_NAME = "experiment.json"
ARM_NAME = "arm.json"


@dataclass(slots=True, eq=False)
class RunData:
    """What is known of one run; `record` is None where it has not begun or cannot be read, and `problem` says why."""

    key: str
    arm: str
    seed: int | None = None
    record: RunSummary | None = None
    problem: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    """What an experiment wrote down of it."""
    metrics: Metrics = field(default_factory=Metrics)
    evals: list[EvalResult] = field(default_factory=list)
    checkpoints: list[ManifestRow] = field(default_factory=list)
    """All that there ever were."""
    kept: set[str] = field(default_factory=set)
    """The names of those whose files are there."""
    timeline: Timeline | None = None
    rollouts: list[Rollout] = field(default_factory=list)
    rollout_steps: int = 0
    predictions: list[Predictions] = field(default_factory=list)

    @property
    def status(self) -> str:
        if self.record is None:
            return str(self.result.get("status") or ("cannot be read" if self.problem else "not begun"))
        if self.record.cut_off:
            return "cut off"
        said = str(self.record.header["status"])
        ended = self.result.get("status")
        return said if said == "running" or not ended else str(ended)

    @property
    def error(self) -> str:
        header = {} if self.record is None else self.record.header
        failure = header.get("stop_reason") if header.get("status") == "failed" else None
        return str(self.result.get("error") or self.problem or failure or "")

    @property
    def title(self) -> str:
        """How it is called among the runs of an experiment."""
        return f"{self.arm}: run {self.key}"

    @property
    def config(self) -> dict[str, Any]:
        return {} if self.record is None else self.record.config

    def score(self, metric: str) -> float | None:
        """The last value of a metric of training, or of an eval's as `eval.metric`."""
        benchmark, _, name = metric.rpartition(".")
        of_evals = [self.result.get("eval_metrics"), None if self.record is None else self.record.evals]
        found = [(self.result.get("metrics"), metric), *((_inner(evals, benchmark), name) for evals in of_evals)]
        for values, key in found:
            if isinstance(values, Mapping) and key in values:
                return number_in(values[key])
        series = self.metrics.evals.get(metric) or self.metrics.training.get(metric)
        return series.last if series else None

    def task_scores(self, metric: str) -> dict[str, float | None] | None:
        """The mean reward of each task, where `metric` is the main one of an eval whose predictions are there.

        As an experiment itself compares its arms, so that the page says the same.
        """
        benchmark, _, name = metric.rpartition(".")
        result = latest_evals(self.evals).get(benchmark)
        is_main = result is not None and next(iter(_mapping(result.metrics)), None) == name
        if self.record is None or result is None or not is_main or Path(benchmark).name != benchmark:
            return None
        rows = objects_in(self.record.folder / predictions_path(benchmark, result.step))
        try:
            return task_means({**row, "reward": number_in(row.get("reward"))} for row in rows) or None
        except BrokenRecordError:  # which is said among the runs
            return None


@dataclass(slots=True)
class Arm:
    """The repeats of one configuration."""

    name: str
    runs: list[RunData] = field(default_factory=list)


@dataclass(slots=True)
class Subject:
    """What a page is about. A run by itself is one arm with one run."""

    name: str
    folder: Path
    arms: list[Arm]
    read_at: float
    experiment: dict[str, Any] | None = None

    @property
    def runs(self) -> list[RunData]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def told(self) -> Iterator[RunData]:
        """The runs whose spans were read: the first of each arm that has a record."""
        for arm in self.arms:
            run = next((run for run in arm.runs if run.record is not None), None)
            if run is not None:
                yield run


def read_subject(folder: Path) -> Subject:
    """Whatever is in this folder: an experiment or a run. `RunNotFoundError` if it is neither."""
    if (folder / EXPERIMENT_NAME).is_file():
        return _experiment(folder)
    try:
        run = _whole_run(folder, folder.resolve().name)
    except RunNotFoundError as error:
        raise RunNotFoundError(f"{error}{_experiments_in(folder)}") from None
    run.timeline = read_timeline(folder / "spans.jsonl")
    _add_texts(run, Budget(), SAMPLES)
    return Subject(run.key, folder, [Arm(run.key, [run])], time.time())


def _experiment(folder: Path) -> Subject:
    content = read_json(folder / EXPERIMENT_NAME)
    planned = [run for run in _list(content, "runs") if isinstance(run, Mapping) and isinstance(run.get("key"), str)]
    results = {arm.get("name"): arm for arm in _list(content, "arms") if isinstance(arm, Mapping)}
    arms: dict[str, Arm] = {}
    for run in planned:
        name = str(run.get("arm") or run["key"])
        arms.setdefault(name, Arm(name)).runs.append(_run_of(folder, run, dict(results.get(run["key"], {}))))
    name = str(content.get("name") or folder.resolve().name)
    subject = Subject(name, folder, list(arms.values()), time.time(), dict(content))
    _tell_of_runs(subject)
    return subject


def _tell_of_runs(subject: Subject) -> None:
    """The timeline of each arm's first run; and texts of every run, the first of each arm's in full, as far as the page
    has room. What of a run cannot be read is said on the page."""
    first = list(subject.told)
    others = [run for run in subject.runs if run.record is not None and run not in first]
    budget, tokens = Budget(share=len(first) + len(others)), 0
    for run in [*first, *others]:
        assert run.record is not None
        samples = NO_SAMPLES if tokens >= MOST_SAMPLE_TOKENS else SAMPLES if run in first else SAMPLES_OF_A_REPEAT
        try:
            _add_texts(run, budget.one_share(), samples)
            if run in first:
                run.timeline = read_timeline(run.record.folder / "spans.jsonl")
        except (ProaError, ValueError, OSError) as error:
            run.problem = f"{error}"
        tokens += sum(len(rollout.tokens) for rollout in run.rollouts)


def _add_texts(run: RunData, budget: Budget, samples: Samples) -> None:
    assert run.record is not None
    run.rollouts, run.rollout_steps = read_rollouts(run.record.folder / "rollouts", samples)
    run.predictions = read_predictions(run.record.folder / "evals", run.key, budget)


def _run_of(folder: Path, planned: Mapping[str, Any], result: dict[str, Any]) -> RunData:
    """One run of an experiment. What cannot be read of it is said on the page, and the others are still shown."""
    key, seed = planned["key"], planned.get("seed")
    inside = folder / key
    run = RunData(key, str(planned.get("arm") or key), result=result)
    if Path(key).name != key or key in (".", ".."):
        run.problem = f"{key!r} does not name a folder of the experiment"
    elif (inside / "run.json").is_file():
        try:
            run = _whole_run(inside, key)
            run.arm = str(planned.get("arm") or key)
            run.result = result or _saved(inside / ARM_NAME)
        except (ProaError, ValueError, OSError) as error:
            run.problem = f"{error}"
    run.seed = seed if isinstance(seed, int) else None
    return run


def _whole_run(folder: Path, key: str) -> RunData:
    """Everything in a run's folder but spans and texts, which a page has no room for of many runs."""
    record = read_run(folder)
    results = EvalRecord(folder).read()
    run = RunData(key, key, record=record, evals=results)
    names = dict.fromkeys([*record.eval_names, *(result.name for result in results)])
    run.metrics = read_metrics(folder / "metrics.jsonl", list(names))
    _add_scores(run)
    manager = CheckpointManager(folder)
    run.kept = {row.name for row in manager.rows}
    run.checkpoints = manager.history
    seed = record.config.get("seed")
    run.seed = seed if isinstance(seed, int) else None
    return run


def _add_scores(run: RunData) -> None:
    """Evals that metrics.jsonl has no rows of. Those after training stand at the last step, or one after it where the
    same eval was in the loop, as loggers have them."""
    assert run.record is not None
    written, found = set(run.metrics.evals), run.metrics.evals
    for result in run.evals:
        for metric, said in _mapping(result.metrics).items():
            name, value = f"{result.name}.{metric}", number_in(said)
            if value is None or (result.step is not None and name in written):
                continue
            series = found.setdefault(name, Series())
            last = series.steps[-1] if len(series) else -1
            series.add(max(run.record.steps_done, last + 1) if result.step is None else result.step + 1, value)


def _saved(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (FileNotFoundError, BrokenRecordError):
        return {}


def _experiments_in(folder: Path) -> str:
    inside = sorted(path.parent for path in folder.glob(f"*/{EXPERIMENT_NAME}"))[:20] if folder.is_dir() else []
    return f"; experiments in it: {', '.join(map(str, inside))}" if inside else ""


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    found = content.get(key)
    return found if isinstance(found, list) else []


def _inner(content: Any, key: str) -> Any:
    return content.get(key) if isinstance(content, Mapping) else None


def _mapping(content: Any) -> Mapping[str, Any]:
    return content if isinstance(content, Mapping) else {}
