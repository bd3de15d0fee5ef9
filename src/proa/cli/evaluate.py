"""`proa eval`: scores a model, or a run's weights, on a task."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging

from ..config import ConfigError, RunConfig, load_run_config
from ..config.sections import GIVEN, EvalSection
from ..evals.benchmark import Scored
from ..evals.evaluation import weights_version
from ..private_files import make_private_folder
from ..record.checkpoints import CheckpointManager
from ..record.evals import AFTER_TRAINING, write_predictions
from ..record.run_folder import json_text, read_json
from ..resume.resuming import saved_config_in
from ..run.evaluate import evaluate_folder
from ..run.start import beginning_of
from ..spelling import did_you_mean
from ..tasks.builtin import BUILTIN
from ..tasks.template_date import pinned_to
from ..terminal import Console
from ..visible import print_visible, single_line
from .endings import ending
from .words import counted

_FORMS = "package.module:name"
MODEL_NAME = "model"
"""Where a run keeps its final weights."""


def evaluate(
    source: str, settings: dict[str, Any], *, checkpoint: str | None, output: str | None, as_json: bool
) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that tasks and metrics there can be named
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def work() -> int:
        found = _find(Path(source), settings, checkpoint)
        section = _section(found, settings)
        if output is not None:
            _refuse_unwritable(Path(output))  # before the work, not after it
        # Templates write the date that they wrote in the run, so that its evals can be repeated.
        trained_by = found.run or found.trained_by
        with nullcontext() if trained_by is None else pinned_to(beginning_of(trained_by)):
            scored = evaluate_folder(
                found.folder,
                section,
                found.config,
                version=found.version,
                steps=found.steps,
                any_length=found.run is None,  # a run says how long completions are
            )
        if output is not None:
            write_predictions(Path(output), scored.predictions)
        _show(scored, found.folder, as_json)
        return 1 if _unscored(scored) == len(scored.predictions) > 0 else 0

    return ending(work, given=[output, source])


@dataclass(frozen=True)
class _Found:
    """The folder of the weights, and a configuration that says how they are used: that of their run, if it is known."""

    folder: Path
    config: RunConfig
    run: Path | None = None
    version: int = 0
    steps: int = 0
    trained_by: Path | None = None
    """The run that they are of, also where they are scored as any other model."""


def _find(source: Path, settings: dict[str, Any], checkpoint: str | None) -> _Found:
    run = source.resolve().parent.parent
    if (run / "run.json").is_file() and source.resolve().parent == CheckpointManager(run).folder.resolve():
        rows = {CheckpointManager(run).path(row).name: row.name for row in CheckpointManager(run).rows}
        if source.resolve().name in rows:  # one of a run's checkpoints
            source, checkpoint = run, checkpoint or rows[source.resolve().name]
    return _in_run(source, checkpoint) if (source / "run.json").is_file() else _by_itself(source, settings, checkpoint)


def _in_run(run: Path, checkpoint: str | None) -> _Found:
    config = saved_config_in(run)
    manager = CheckpointManager(run)
    row = manager.row(checkpoint) if checkpoint else manager.final() or manager.latest()
    if row is None or row.sampler_path is None:
        raise ConfigError(f"{run} has no checkpoint yet: there are no weights to score")
    manager.verify(row)
    return _Found(run / row.sampler_path, config, run, weights_version(config, row.step), row.step)


def _by_itself(source: Path, settings: dict[str, Any], checkpoint: str | None) -> _Found:
    """Of a model or an adapter that lies in a folder."""
    if not source.is_dir():
        raise ConfigError(f"there is no folder {source}: give a run's folder, or one with a model or an adapter")
    if checkpoint is not None:
        raise ConfigError(f"{source} is no run's folder: it has no checkpoints")
    if settings.get("source") is None:
        raise ConfigError("say what it is to be scored on: --task NAME, a JSONL file, or package.module:name")
    # The rest of a run is not asked for; it only must fit together.
    rest: dict[str, Any] = {"total_steps": 1, "train_batch_size": 2, "sampling": {"group_size": 2}}
    config = load_run_config(None, (), model=str(source), task=settings["source"], **rest)
    above = source.resolve().parent
    if source.resolve().name != MODEL_NAME or not (above / "run.json").is_file():
        return _Found(source, config)
    steps = int(read_json(above / "run.json").get("steps_run", 0))
    return _Found(source, config, None, weights_version(saved_config_in(above), steps), steps, above)


def _section(found: _Found, settings: dict[str, Any]) -> EvalSection:
    given = {key: value for key, value in settings.items() if value is not None}
    evals = {one.name: one for one in found.config.eval}
    says_what = "source" in given or "evaluator" in given
    if found.run is not None:
        _check_says_what(found.run, found.config, given.get("name"), says_what)
    named = evals.get(given.get("name", ""))
    base = {} if named is None else named.model_dump()
    base.setdefault("name", AFTER_TRAINING)
    if named is not None and named.evaluator is not None and "source" in given and "evaluator" not in given:
        raise ConfigError(f"the eval {named.name} is the function {named.evaluator}, which has no --task: leave it out")
    try:
        section = EvalSection(**{**base, **given})
    except ValidationError as error:
        raise ConfigError("\n".join(map(_explained, error.errors()))) from None
    _refuse_what_was_given(found, section)
    return section


def _refuse_what_was_given(found: _Found, section: EvalSection) -> None:
    """Of a run that was begun in Python, what this eval needs and only that process had."""
    needed = {"--evaluator": section.evaluator}
    if section.evaluator is None:
        needed = {"--task": section.source or found.config.task.source, "--metric": section.metric}
    for flag, value in needed.items():
        if value is not None and GIVEN in value:
            raise ConfigError(f"{found.run}: what its evals use was given in Python: name it here, as {flag} {_FORMS}")


def _check_says_what(run: Path, config: RunConfig, name: str | None, says_what: bool) -> None:
    """A name is that of one of the run's evals; without one, something else says what the weights are scored on."""
    evals = [one.name for one in config.eval]
    there_are = f"its evals are {', '.join(evals)}" if evals else "it has no evals"
    if name is not None and name not in evals:
        slip = did_you_mean(name, evals)
        if slip or not says_what:  # else it is what the result is to be called
            raise ConfigError(f"{run} has no eval {name!r}{slip or f': {there_are}'}")
    if name is None and not says_what and config.task.source not in BUILTIN:
        choice = "give --name NAME for one of them, or --task" if evals else "give --task"
        raise ConfigError(
            f"say what {run} is to be scored on: {there_are}; {choice} with what was held out of training, a JSONL "
            "file or package.module:name"
        )


def _explained(problem: Any) -> str:
    """What is wrong with a flag, as it is told of a configuration's keys."""
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return str(message)
    key = str(problem["loc"][0])
    flag = "task" if key == "source" else key.replace("_", "-")
    return f"--{flag}: {message[:1].lower()}{message[1:]}, and is {problem['input']!r}"


def _refuse_unwritable(output: Path) -> None:
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder: give a file")
    make_private_folder(output.resolve().parent)
    if not os.access(output if output.exists() else output.resolve().parent, os.W_OK):
        raise ConfigError(f"--output {output} cannot be written: permission denied")


def _unscored(scored: Scored) -> int:
    return sum(row.get("error") is not None for row in scored.predictions)


def _show(scored: Scored, folder: Path, as_json: bool) -> None:
    result = scored.result
    first_error = next((row["error"] for row in scored.predictions if row.get("error") is not None), None)
    if first_error is not None:
        count = counted(len(scored.predictions), "completion")
        print_visible(
            f"{_unscored(scored)} of {count} could not be scored; the first: {single_line(str(first_error))}",
            file=sys.stderr,
        )
    if as_json:
        content: dict[str, Any] = {"model": str(folder), "metrics": result.metrics, "breakdowns": result.breakdowns}
        content |= {"rows": len(scored.predictions), "seconds": result.eval_seconds, "first_error": first_error}
        print(json_text(content), end="")
        return
    console = Console()
    count = f", {counted(len(scored.predictions), 'completion')}" if scored.predictions else ""
    # Not the table's title, which would be broken to the table's width.
    console.print(Text(f"{folder}: {result.name}{count}"), soft_wrap=True)
    table = Table()
    for column in ("metric", "value"):
        table.add_column(column)
    for name, value in result.metrics.items():
        table.add_row(Text(name), f"{value:.4g}")
    console.print(table)
    for key, values in result.breakdowns.items():
        parts = Table(title=Text(f"by {key}"), title_justify="left")
        for column in (key, "n", "mean reward", "pass rate"):
            parts.add_column(Text(column))
        for part, row in values.items():
            parts.add_row(Text(part), str(int(row["n"])), f"{row['mean_reward']:.4g}", f"{row['pass_rate']:.4g}")
        console.print(parts)
