"""What is wrong with an experiment and can be seen before its first run."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import ConfigError, ExperimentConfig
from ..config.sections import TRAINING_PREFIXES, EvalSection
from ..errors import ProaError
from ..run.checks import check_named, score_names
from ..spelling import did_you_mean
from .plan import Chain, PlannedRun


def check_arms(config: ExperimentConfig, chains: Sequence[Chain]) -> None:
    """Raise if a run names a task, a reward or an eval that is not there. Repeats name what the first of them does."""
    firsts = {run.arm: run for chain in reversed(chains) for run in chain}
    for run in reversed(firsts.values()):
        try:
            check_named(run.config, config.metadata.benchmark)
        except ProaError as error:
            raise ConfigError(f"arm {run.arm}: {error}") from error
    if firsts:
        _check_success_metric(config, next(iter(reversed(firsts.values()))))


def _check_success_metric(config: ExperimentConfig, run: PlannedRun) -> None:
    """A misspelt one would be noticed when everything is over. What training itself measures is not known here."""
    metric = config.metadata.success_metric or ""
    of, _, name = metric.rpartition(".")
    sections: dict[str, EvalSection] = {one.name: one for one in (*run.config.eval, *config.metadata.benchmark)}
    if of in sections:
        known = score_names(sections[of], run.config)
        if known is not None and name not in known:
            raise ConfigError(
                f"metadata.success_metric is {metric}, and {of} has no {name!r}{did_you_mean(name, known)}"
            )
    elif of and of.partition(".")[0] not in TRAINING_PREFIXES:
        hint = did_you_mean(of, sections) or (f": there are {', '.join(sections)}" if sections else ": there is none")
        raise ConfigError(f"metadata.success_metric is {metric}, and there is no eval {of!r}{hint}")
