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
from ..record.reading import RunSummary, read_run
from ..record.run_folder import read_json
from ..record.times import is_time
from ..statistics.conclusions import FOUND_BEST, parse_finding
from ..terminal import Console
from ..visible import print_visible, single_line, visible
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


def _run(record: RunSummary) -> dict[str, Any]:
    scores = {f"{name}.{metric}": value for name, metrics in record.evals.items() for metric, value in metrics.items()}
    return {
        "status": "cut off" if record.cut_off else record.header["status"],
        "algorithm": _algorithm(record),
        "steps": record.steps_done,
        "of": record.total_steps,
        "started": record.header.get("started"),
        "scores": scores,
    }


def _algorithm(record: RunSummary) -> Any:
    section = record.config.get("algorithm")
    return section.get("name") if isinstance(section, Mapping) else section


def _experiment(folder: Path) -> dict[str, Any]:
    content = read_json(folder / "experiment.json")
    done = sum(arm.get("status") == "completed" for arm in content.get("arms", []))
    finding = parse_finding(str(content.get("conclusion") or ""), content.get("best_arm"))
    return {
        "status": standing_of(folder, content),
        "steps": done,
        "of": len(content.get("runs", [])),
        "started": _began(folder),
        "scores": {"best": content["best_arm"]} if finding == FOUND_BEST else {},
        "finding": finding,
    }


def _began(experiment: Path) -> float:
    """When the first of its runs did; before there is one, when the experiment was written down."""
    began = []
    for header in experiment.glob("*/run.json"):
        with suppress(ProaError, OSError):  # it is told of in its own line
            began.append(read_json(header).get("started"))
    return min((float(one) for one in began if is_time(one)), default=(experiment / "experiment.json").stat().st_mtime)


def _show(rows: list[dict[str, Any]]) -> None:
    """A line for each, also on a narrow terminal, where names are cut in their middle and columns left out."""
    console = Console()
    columns = {
        "status": [visible(str(row["status"])) for row in rows],
        "done": [_done(row) for row in rows],
        "began": [_day(row.get("started"), short=console.width < WIDE) for row in rows],
    }
    while columns and _width(columns) + LEAST_OF_NAME > console.width:
        columns.popitem()
    names = [visible(row["name"]) for row in rows]
    longest = max(map(len, names))
    of_name = max(LEAST_OF_NAME, min(longest, console.width - _width(columns) - LEAST_OF_SCORES - GAP))
    of_scores = console.width - _width(columns) - of_name - GAP
    columns = {"name": [_shortened(name, of_name) for name in names], **columns}
    if of_scores >= LEAST_OF_NAME // 2:  # else they would say nothing
        columns["scores"] = [_cut(visible(_scores(row)), of_scores) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, cells))
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(Text(single_line(f"{row['name']}: {row['error']}")), soft_wrap=True)


GAP = 2
"""Columns of the terminal between two of the table's."""
LEAST_OF_NAME = 24
LEAST_OF_SCORES = len("no difference seen")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shortened(name: str, most: int) -> str:
    """Cut in the middle: what tells names apart is mostly at one of their ends."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[-end:]}"


def _width(columns: Mapping[str, list[str]]) -> int:
    return sum(max(len(name), *map(len, cells)) + GAP for name, cells in columns.items())


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
    if row["kind"] == "experiment" and "finding" in row:
        best = row["scores"].get("best")
        return f"best {best}" if best else str(row["finding"])
    shown = {name: value for name, value in row.get("scores", {}).items() if "completion_tokens" not in name}
    return ", ".join(f"{name} {number(value)}" for name, value in shown.items())
