"""`proa train`: runs a configuration, shows its progress, then its results."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..callbacks.console import sparkline
from ..config import RunConfig
from ..data.messages import in_words
from ..data.state import LoopState
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import ErrorPolicy, Priority
from ..record.checkpoints import CheckpointManager
from ..record.evals import EvalRecord
from ..record.run_folder import BrokenRecordError, read_json
from ..run.given import Given
from ..terminal import JobConsole, tolerate_lost_output
from ..visible import print_visible
from .exit_codes import exit_code
from .text import count, curve, ledger_line, metric_values


@tolerate_lost_output()
def run_to_end(
    config: RunConfig,
    *,
    resume: str | None = None,
    allow_changes: bool = False,
    overwrite: bool = False,
    announced: str = "",
) -> int:
    """Start a run, or resume one, and show its results. Exit code: 0 done, 1 failed, 2 wrong use."""
    from transformers.utils import logging as transformers_logging  # slow to import, as what follows

    from ..run.start import start_configured

    # A progress bar for writing one file would appear among the results.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    console = JobConsole()
    shown = [] if resume is None else [_ResumeMessage(console)]

    def work() -> int:
        start_configured(
            config, Given(), callbacks=shown, resume=resume, allow_changes=allow_changes, overwrite=overwrite,
            announced=announced,
        )  # fmt: skip
        _show_result(console, config)
        return 0

    try:
        return exit_code(work, paths=[config.folder])
    except KeyboardInterrupt:
        last = CheckpointManager(config.folder).latest() if config.folder.exists() else None
        if last is not None:
            saved = f"{count(last.step, 'step')} {'is' if last.step == 1 else 'are'} saved"
            print_visible(f"{saved}: resume with proa resume {config.folder}", file=sys.stderr)
        raise


@tolerate_lost_output()
def show_run(config: RunConfig) -> int:
    """Show the results of a run that is complete. Returns the exit code."""
    console = JobConsole()

    def work() -> int:
        _show_result(console, config)
        return 0

    return exit_code(work, paths=[config.folder])


class _ResumeMessage(Callback):
    """Prints where a run resumes, before anything else is shown."""

    priority = Priority.LOGGING + 1
    error_policy = ErrorPolicy.DISABLE
    uses_asyncio = False

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_train_start(self, state: LoopState) -> None:
        if state.resumed_from is None:
            line = "there is no checkpoint to resume from: the run starts again"
        else:
            line = f"resuming from checkpoint {state.resumed_from}, after {count(state.global_step, 'step')}"
        self._console.print(Text(line), soft_wrap=True)


def _show_result(console: Console, config: RunConfig) -> None:
    """Evals before and after, the ledger, and where the record is."""
    folder = config.folder
    header = read_json(folder / "run.json")
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [dict(json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:  # removed or damaged; the run is complete all the same
        print_visible(f"{folder / 'metrics.jsonl'} cannot be read, so no curves are shown: {error}", file=sys.stderr)
        rows = []
    curves = _eval_curves(rows, header["evals"])
    if curves:
        table = Table(title=f"{config.name}: {count(header['steps_run'], 'step')}", title_justify="left")
        for column in ("eval", "before", "after", "over the run"):
            table.add_column(column)
        for name, values in curves.items():
            table.add_row(name, f"{values[0]:.4g}", f"{values[-1]:.4g}", sparkline(values))
        console.print(table)
    for name in header["evals"]:
        show_samples(console, folder, name)
    shown = "loss" if "ledger" not in header else "reward"
    lines = [f"{shown} over the run: {curve(rows, shown)}"]
    weights = f"weights {header['weights_digest'][:16]}"
    if "ledger" in header:
        lines.append(ledger_line(header["ledger"]))
        weights += f", version {header['policy_version']}"
    lines += [weights, f"record: {folder}", f"model: {folder / 'model'}"]
    for line in lines:
        is_path = line.startswith(("record", "model"))
        console.print(line, soft_wrap=is_path or not console.is_terminal)


def show_samples(console: Console, run: Path, name: str, most: int = 6) -> None:
    """The same prompts at an eval's first time and at its last; an evaluator of one's own may have none."""
    steps = sorted(int(file.stem.removeprefix("step_")) for file in (run / "evals" / name).glob("step_*.jsonl"))
    if not steps:
        return
    try:
        first, last = ([*map(_sample, EvalRecord(run).predictions(name, step - 1))] for step in (steps[0], steps[-1]))
    except (BrokenRecordError, OSError) as error:  # damaged or removed; the run is complete all the same
        print_visible(f"the samples of {name} cannot be shown: {error}", file=sys.stderr)
        return
    before = {sample.key: sample for sample in first if sample is not None}
    both = [(before[after.key], after) for after in last if after is not None and after.key in before]
    if not both:
        return
    table = Table(title=f"{name}: samples", title_justify="left")
    for column in ("prompt", _after(steps[0]), _after(steps[-1]), "answer"):
        table.add_column(column)
    for one, other in both[:most]:
        table.add_row(*map(in_words, (other.prompt, one.completion, other.completion, other.answer)))
    console.print(table)


def _after(steps: int) -> str:
    return f"after {count(steps, 'step')}" if steps else "before training"


@dataclass(frozen=True)
class _Sample:
    """What is shown of one prediction."""

    key: str
    """The same at every eval: which prompt it is, and which of its completions."""
    prompt: Any
    completion: Any
    answer: Any


def _sample(row: Any) -> _Sample | None:
    """None if the row has no prompt or no completion."""
    if not isinstance(row, dict) or "prompt" not in row or "completion" not in row:
        return None
    columns = row.get("columns")
    answer = (columns if isinstance(columns, dict) else row).get("answer", "")
    key = json.dumps([row.get("task_id"), row.get("sample"), row["prompt"]])
    return _Sample(key, row["prompt"], row["completion"], answer)


def _eval_curves(rows: list[dict[str, Any]], evals: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    curves: dict[str, list[float]] = {}
    for name, metrics in evals.items():
        for metric in metrics:
            key = f"{name}.{metric}"
            if values := metric_values(rows, key):
                curves[key] = values
    return curves
