"""Checks of an experiment before its first run."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import ConfigError, ExperimentConfig
from ..config.eval_section import BenchmarkSection
from ..config.sections import TRAINING_PREFIXES
from ..errors import ProaError
from ..run.checks import check_named, score_names
from ..spelling import did_you_mean
from .plan import Chain, PlannedRun


def check_arms(config: ExperimentConfig, chains: Sequence[Chain]) -> None:
    """Raise if a run names a task, a reward or an eval that does not exist. Of repeats only the first is checked."""
    firsts = {run.arm: run for chain in reversed(chains) for run in chain}
    for run in reversed(firsts.values()):
        try:
            check_named(run.config, config.metadata.benchmark)
        except ProaError as error:
            raise ConfigError(f"arm {run.arm}: {error}") from error
    if firsts:
        _check_success_metric(config, next(iter(reversed(firsts.values()))))


def _check_success_metric(config: ExperimentConfig, run: PlannedRun) -> None:
    """Catch a misspelt metric before the runs, not after them. Metrics of training itself are not known here."""
    metric = config.metadata.success_metric or ""
    source, _, name = metric.rpartition(".")
    # Where both have one name, the benchmark comes last, and its score is what counts.
    sections: dict[str, BenchmarkSection] = {one.name: one for one in (*run.config.eval, *config.metadata.benchmark)}
    if source in sections:
        known = score_names(sections[source], run.config)
        if known is not None and name not in known:
            raise ConfigError(
                f"metadata.success_metric is {metric}, and {source} has no {name!r}{did_you_mean(name, known)}"
            )
    elif source and source.partition(".")[0] not in TRAINING_PREFIXES:
        hint = did_you_mean(source, sections) or (f": it has {', '.join(sections)}" if sections else ": it has none")
        raise ConfigError(f"metadata.success_metric is {metric}, and the experiment has no eval {source!r}{hint}")
