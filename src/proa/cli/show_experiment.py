"""`proa show` of an experiment: how far each of its runs is, and what came of it."""

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
from .words import STYLES, counted_of, values_line, written


def show_experiment(folder: Path, console: Console, as_json: bool) -> int:
    """What an experiment has come to, as its header and those of its runs say."""
    path = folder / "experiment.json"
    content = read_json(path)
    try:
        content["status"] = standing_of(folder, content)
        table = _runs(folder, content)
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenRecordError(f"{path} is broken: {error!r}") from error
    if as_json:
        print(written(content))
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
        arm = ended.get(run["key"]) or {"status": _standing_of_run(folder / run["key"]), "eval_metrics": {}}
        evals: Mapping[str, Any] = arm.get("eval_metrics") or {}
        scores = {f"{name}.{key}": value for name, found in evals.items() for key, value in found.items()}
        table.add_row(Text(run["key"]), Text(arm["status"], STYLES.get(arm["status"], "")), Text(values_line(scores)))
    return table


def standing_of(folder: Path, content: dict[str, Any]) -> str:
    """What an experiment's header says, unless whoever wrote it is gone."""
    is_left = content["status"] == "running" and is_abandoned(folder)
    return "cut off" if is_left else str(content["status"])


def _standing_of_run(folder: Path) -> str:
    """How far a run is that has not ended in its experiment."""
    if not (folder / "run.json").is_file():
        return "not begun"
    record = read_run(folder)
    status = "cut off" if record.cut_off else str(record.header.get("status"))
    return f"{status}, {counted_of(record.steps_done, record.total_steps, 'step')}"
