"""`proa runs`: the runs and experiments below a folder, what each has come to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import ProaError
from ..record.reading import RunRecord, read_run
from ..record.run_folder import read_json
from ..record.times import is_time
from ..terminal import Console
from ..visible import in_one_line, print_visible, visible
from .endings import told
from .show_experiment import standing_of
from .words import counted, day, number, written

DEEPEST = 4
"""Runs lie in experiments, which lie in a folder of them: further down nobody looks."""

WIDE = 100
"""Columns of a terminal, from which on there is room for more."""


def runs(folder: str, *, as_json: bool) -> int:
    """Exit code: 0 done, 2 wrong use."""
    root = Path(folder)
    if not root.is_dir():
        print_visible(f"there is no folder {root}: give the output_dir of your runs", file=sys.stderr)
        return 2
    # The newest last, where one looks: by when it began, which no report and no look at it changes.
    rows = sorted((_described(root, *found) for found in _found(root, DEEPEST)), key=_order)
    if as_json:
        print(written(rows))
    elif not rows:
        print_visible(f"there is no run in {root}")
    else:
        _show(rows)
    return 0


def _order(row: dict[str, Any]) -> tuple[float, str]:
    return float(row.get("started") or 0.0), row["name"]


def _found(folder: Path, depth: int) -> Iterator[tuple[Path, OSError | None]]:
    """Folders with a run's or an experiment's header, and those that cannot be looked into, with the reason; below a
    run's own folder there is none."""
    try:
        is_run = (folder / "run.json").is_file()
        is_experiment = (folder / "experiment.json").is_file()
        inside = [inner for inner in folder.iterdir() if _may_hold_runs(inner)] if depth and not is_run else []
    except OSError as error:
        yield folder, error
        return
    if is_run or is_experiment:
        yield folder, None
    for inner in inside:
        yield from _found(inner, depth - 1)


def _may_hold_runs(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not folder.name.startswith(".")


def _described(root: Path, folder: Path, unreadable: OSError | None) -> dict[str, Any]:
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    try:
        if unreadable is not None:
            raise unreadable
        if not (folder / "run.json").is_file():
            return {"name": name, "kind": "experiment", **_experiment(folder)}
        return {"name": name, "kind": "run", **_run(read_run(folder))}
    except OSError as error:
        return {"name": name, "kind": "run", "status": "unreadable", "error": told(error)}
    except (ProaError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"name": name, "kind": "run", "status": "broken", "error": str(error)}


def _run(record: RunRecord) -> dict[str, Any]:
    scores = {f"{name}.{metric}": value for name, metrics in record.evals.items() for metric, value in metrics.items()}
    return {
        "status": "cut off" if record.cut_off else record.header["status"],
        "algorithm": _algorithm(record),
        "steps": record.steps_done,
        "of": record.total_steps,
        "started": record.header.get("started"),
        "scores": scores,
    }


def _algorithm(record: RunRecord) -> Any:
    section = record.config.get("algorithm")
    return section.get("name") if isinstance(section, Mapping) else section


def _experiment(folder: Path) -> dict[str, Any]:
    content = read_json(folder / "experiment.json")
    done = sum(arm.get("status") == "completed" for arm in content.get("arms", []))
    return {
        "status": standing_of(folder, content),
        "steps": done,
        "of": len(content.get("runs", [])),
        "started": _began(folder),
        "scores": {"best": content["best_arm"]} if content.get("best_arm") else {},
    }


def _began(experiment: Path) -> float:
    """When the first of its runs did; before there is one, when the experiment was written down."""
    began = []
    for header in experiment.glob("*/run.json"):
        with suppress(ProaError, OSError):  # it is told of in its own line
            began.append(read_json(header).get("started"))
    return min((float(one) for one in began if is_time(one)), default=(experiment / "experiment.json").stat().st_mtime)


def _show(rows: list[dict[str, Any]]) -> None:
    """A line for each, also on a narrow terminal: scores that do not fit are left out, a long name is folded."""
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    longest = max(len(visible(row["name"])) for row in rows)
    table.add_column("name", width=min(longest, max(24, console.width // 3)), overflow="fold")
    for column in ("status", "done", "began"):
        table.add_column(column, no_wrap=True)
    table.add_column("scores", ratio=1)
    for row in rows:
        began = _day(row.get("started"), short=console.width < WIDE)
        cells = (Text(str(cell)) for cell in (row["name"], row["status"], _done(row), began))
        table.add_row(*cells, Text(_scores(row), no_wrap=True, overflow="ellipsis"))
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(Text(in_one_line(f"{row['name']}: {row['error']}")), soft_wrap=True)


def _done(row: dict[str, Any]) -> str:
    """Steps of a run, runs of an experiment."""
    if "of" not in row:
        return ""
    return (
        f"{row['steps']}/{counted(row['of'], 'run')}" if row["kind"] == "experiment" else f"{row['steps']}/{row['of']}"
    )


def _day(seconds: float | None, *, short: bool) -> str:
    """As `ls` has it: this year's with the time, where there is room for it, and others with the year."""
    if not seconds:
        return ""
    if day(seconds, "%Y") != str(datetime.now().year):
        return day(seconds, "%b %Y" if short else "%b %d %Y")
    return day(seconds, "%b %d" if short else "%b %d %H:%M")


def _scores(row: dict[str, Any]) -> str:
    shown = {name: value for name, value in row.get("scores", {}).items() if "completion_tokens" not in name}
    return ", ".join(f"{name} {number(value)}" for name, value in shown.items())
