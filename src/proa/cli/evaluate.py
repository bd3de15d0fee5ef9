"""`proa eval`: scores a model, or a run's weights, on a task."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging

from ..config import ConfigError, RunConfig
from ..config.eval_section import EvalSection
from ..config.sections import GIVEN
from ..evals.scoring import Scored
from ..private_files import make_private_folder
from ..record.evals import AFTER_TRAINING, write_predictions
from ..record.run_folder import json_text
from ..run.evaluate import evaluate_folder
from ..run.start import template_start
from ..run.weights import FoundWeights, model_weights, run_of, run_weights
from ..spelling import did_you_mean
from ..tasks.builtin import BUILTIN
from ..tasks.template_date import pinned_to
from ..terminal import Console
from ..visible import print_visible, single_line
from .exit_codes import exit_code
from .text import count


@dataclass(frozen=True, kw_only=True)
class EvalFlags:
    """The flags that change the settings of an eval; None where one was not given."""

    source: str | None = None
    """`--task`."""
    split: str | None = None
    columns: dict[str, str] | None = None
    name: str | None = None
    metric: str | None = None
    evaluator: str | None = None
    count: int | None = None
    samples: int | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    breakdown: list[str] | None = None

    def section(self, base: EvalSection | None) -> EvalSection:
        """The eval with these settings; the others are those of `base`, or the defaults."""
        settings = {"name": AFTER_TRAINING} if base is None else base.model_dump()
        settings |= {key: value for key, value in asdict(self).items() if value is not None}
        try:
            return EvalSection.model_validate(settings)
        except ValidationError as error:
            raise ConfigError("\n".join(map(_describe_problem, error.errors()))) from None


def evaluate(source: str, flags: EvalFlags, *, checkpoint: str | None, output: str | None, as_json: bool) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that tasks and metrics there can be named
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def work() -> int:
        weights = _find_weights(Path(source), flags, checkpoint)
        section = _settle_section(weights, flags)
        if output is not None:
            _check_writable(Path(output))  # before the work, not after it
        # Templates write the same date as in the run, so that its evals can be repeated.
        trained_by = weights.trained_by
        with nullcontext() if trained_by is None else pinned_to(template_start(trained_by)):
            scored = evaluate_folder(
                weights.folder,
                section,
                weights.config,
                version=weights.version,
                steps=weights.steps,
                any_length=weights.run is None,  # a run's configuration says how long completions are
            )
        if output is not None:
            write_predictions(Path(output), scored.predictions)
        unscored = sum(row.get("error") is not None for row in scored.predictions)
        _show(scored, weights.folder, unscored, as_json)
        return 1 if unscored == len(scored.predictions) > 0 else 0

    return exit_code(work, paths=[output, source])


def _find_weights(source: Path, flags: EvalFlags, checkpoint: str | None) -> FoundWeights:
    if (found := run_of(source, checkpoint)) is not None:
        return run_weights(*found)
    if flags.source is None and source.is_dir() and checkpoint is None:
        raise ConfigError("say what to score it on: --task NAME, a file, hf:NAME of the Hub, or package.module:name")
    return model_weights(source, checkpoint, task=flags.source or "sort_digits")


def _settle_section(weights: FoundWeights, flags: EvalFlags) -> EvalSection:
    if weights.run is not None:
        _check_flags(weights.run, weights.config, flags)
    base = next((section for section in weights.config.eval if section.name == flags.name), None)
    if base is not None and base.evaluator is not None and flags.source is not None and flags.evaluator is None:
        raise ConfigError(
            f"the eval {base.name} is the function {base.evaluator}, which does not take --task: leave it out"
        )
    section = flags.section(base)
    needed = {"--task": section.source or weights.config.task.source, "--metric": section.metric}
    for flag, value in ({"--evaluator": section.evaluator} if section.evaluator is not None else needed).items():
        if value is not None and GIVEN in value:  # an object that only the process of the run had
            raise ConfigError(
                f"{weights.run}: this part of its evals was given in Python: name it here, with {flag} "
                "package.module:name"
            )
    return section


def _check_flags(run: Path, config: RunConfig, flags: EvalFlags) -> None:
    """Raise unless the flags name one of the run's evals or something else to score the weights on."""
    evals = [section.name for section in config.eval]
    known = f"its evals are {', '.join(evals)}" if evals else "it has no evals"
    has_subject = flags.source is not None or flags.evaluator is not None
    if flags.name is not None and flags.name not in evals:
        hint = did_you_mean(flags.name, evals)
        if hint or not has_subject:  # otherwise it is a name for the result
            raise ConfigError(f"{run} has no eval {flags.name!r}{hint or f': {known}'}")
    if flags.name is None and not has_subject and config.task.source not in BUILTIN:
        choice = "give --name NAME for one of them, or --task" if evals else "give --task"
        raise ConfigError(
            f"say what to score {run} on: {known}; {choice} with data that was held out of training, a JSONL file or "
            "package.module:name"
        )


def _describe_problem(problem: ErrorDetails) -> str:
    """A validation error as a sentence about the flag."""
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    key = str(problem["loc"][0])
    flag = "task" if key == "source" else key.replace("_", "-")
    return f"--{flag}: {message[:1].lower()}{message[1:]}, not {problem['input']!r}"


def _check_writable(output: Path) -> None:
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder: give a file")
    make_private_folder(output.resolve().parent)
    if not os.access(output if output.exists() else output.resolve().parent, os.W_OK):
        raise ConfigError(f"--output {output} cannot be written: permission denied")


def _show(scored: Scored, folder: Path, unscored: int, as_json: bool) -> None:
    result = scored.result
    first_error = next((row["error"] for row in scored.predictions if row.get("error") is not None), None)
    completions = count(len(scored.predictions), "completion")
    if first_error is not None:
        print_visible(
            f"{unscored} of {completions} could not be scored; the first: {single_line(str(first_error))}",
            file=sys.stderr,
        )
    if as_json:
        content: dict[str, Any] = {"model": str(folder), "metrics": result.metrics, "breakdowns": result.breakdowns}
        content |= {"rows": len(scored.predictions), "seconds": result.eval_seconds, "first_error": first_error}
        print(json_text(content), end="")
        return
    console = Console()
    counted = f", {completions}" if scored.predictions else ""
    # Not the table's title, which would be wrapped to the table's width.
    console.print(Text(f"{folder}: {result.name}{counted}"), soft_wrap=True)
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
