"""`proa show` of an experiment: the progress and scores of its runs, and the conclusion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..record.reading import read_run
from ..record.run_folder import BrokenRecordError, read_json
from ..record.run_lock import is_abandoned
from .text import STYLES, json_text, metrics_line, progress


def show_experiment(folder: Path, console: Console, as_json: bool) -> int:
    """Show what the header of an experiment and those of its runs say. Exit code: 0."""
    path = folder / "experiment.json"
    content = read_json(path)
    try:
        content["status"] = experiment_status(folder, content)
        table = _runs(folder, content)
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenRecordError(f"{path} is broken: {error!r}") from error
    if as_json:
        print(json_text(content))
        return 0
    console.print(
        Text.assemble((f"{content.get('name')}: ", "bold"), (content["status"], STYLES.get(content["status"], "")))
    )
    console.print(table)
    if content.get("conclusion"):
        console.print(Text(str(content["conclusion"])), soft_wrap=True)
    return 0


def _runs(folder: Path, content: dict[str, Any]) -> Table:
    table = Table()
    for column in ("run", "status", "scores"):
        table.add_column(column)
    ended = {arm["name"]: arm for arm in content["arms"]}
    for run in content["runs"]:
        arm = ended.get(run["key"]) or {"status": _run_status(folder / run["key"]), "eval_metrics": {}}
        evals: Mapping[str, Mapping[str, Any]] = arm.get("eval_metrics") or {}
        scores = {f"{name}.{key}": value for name, found in evals.items() for key, value in found.items()}
        table.add_row(Text(run["key"]), Text(arm["status"], STYLES.get(arm["status"], "")), Text(metrics_line(scores)))
    return table


def experiment_status(folder: Path, content: dict[str, Any]) -> str:
    """The status in the header of an experiment, or `cut off` if its process is gone."""
    is_cut_off = content["status"] == "running" and is_abandoned(folder)
    return "cut off" if is_cut_off else str(content["status"])


def _run_status(folder: Path) -> str:
    """The status and progress of a run that its experiment does not list as ended."""
    if not (folder / "run.json").is_file():
        return "not started"
    record = read_run(folder)
    status = "cut off" if record.cut_off else str(record.header.get("status"))
    return f"{status}, {progress(record.steps_done, record.total_steps, 'step')}"
