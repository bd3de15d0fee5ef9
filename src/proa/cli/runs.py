"""`proa runs`: the runs and experiments below a folder, with their status and scores."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import ProaError
from ..record.reading import RunSummary, read_run
from ..record.run_folder import read_json
from ..record.times import is_time
from ..report.text import ended, squeezed
from ..statistics.conclusions import FOUND_BEST, parse_finding
from ..terminal import Console
from ..visible import print_visible, single_line, visible
from .exit_codes import describe_os_error
from .show_experiment import experiment_status
from .text import count, day, json_text, number

DEEPEST = 4
"""Levels of folders to search: runs are in experiments, which are in a folder of them."""
WIDE = 100
"""Columns that a terminal needs for long dates."""
GAP = 2
"""Columns of the terminal between two columns of the table."""
LEAST_OF_NAME = 24
LEAST_OF_SCORES = len("no difference seen")


class Row(TypedDict):
    """A run or an experiment, as `--json` prints it; one that cannot be read has an `error` and no numbers."""

    name: str
    kind: Literal["run", "experiment"]
    status: str
    algorithm: NotRequired[Any]
    steps: NotRequired[int]
    """Steps of a run, runs of an experiment."""
    of: NotRequired[int]
    started: NotRequired[float | None]
    scores: NotRequired[dict[str, Any]]
    finding: NotRequired[str]
    """Of an experiment: whether an arm was found to be best."""
    error: NotRequired[str]


def runs(folder: str, *, as_json: bool) -> int:
    """Exit code: 0 done, 2 wrong use."""
    root = Path(folder)
    if not root.is_dir():
        print_visible(f"there is no folder {root}: give the output_dir of your runs", file=sys.stderr)
        return 2
    # The newest last, next to the prompt; by when it started, which reports and other readers do not change.
    rows = [_read_row(root, *found) for found in _find_folders(root, DEEPEST)]
    rows.sort(key=lambda row: (float(row.get("started") or 0.0), row["name"]))
    if as_json:
        print(json_text(rows))
    elif not rows:
        print_visible(f"there is no run in {root}")
    else:
        _show(rows)
    return 0


def _find_folders(folder: Path, depth: int) -> Iterator[tuple[Path, OSError | None]]:
    """Folders with the header of a run or an experiment, and unreadable ones with the error. A run's own folder is not
    searched."""
    try:
        is_run = (folder / "run.json").is_file()
        is_experiment = (folder / "experiment.json").is_file()
        inside = [
            inner
            for inner in (folder.iterdir() if depth and not is_run else ())
            if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith(".")
        ]
    except OSError as error:
        yield folder, error
        return
    if is_run or is_experiment:
        yield folder, None
    for inner in inside:
        yield from _find_folders(inner, depth - 1)


def _read_row(root: Path, folder: Path, unreadable: OSError | None) -> Row:
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    try:
        if unreadable is not None:
            raise unreadable
        is_run = (folder / "run.json").is_file()
        return _run_row(name, read_run(folder)) if is_run else _experiment_row(name, folder)
    except OSError as error:
        return {"name": name, "kind": "run", "status": "unreadable", "error": describe_os_error(error)}
    except (ProaError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"name": name, "kind": "run", "status": "broken", "error": str(error)}


def _run_row(name: str, record: RunSummary) -> Row:
    scores = {f"{one}.{metric}": value for one, metrics in record.evals.items() for metric, value in metrics.items()}
    algorithm = record.config.get("algorithm")
    return {
        "name": name,
        "kind": "run",
        "status": "cut off" if record.cut_off else record.header["status"],
        "algorithm": algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm,
        "steps": record.steps_done,
        "of": record.total_steps,
        "started": record.header.get("started"),
        "scores": scores,
    }


def _experiment_row(name: str, folder: Path) -> Row:
    content = read_json(folder / "experiment.json")
    completed = sum(arm.get("status") == "completed" for arm in content.get("arms", []))
    finding = parse_finding(str(content.get("conclusion") or ""), content.get("best_arm"))
    starts = []
    for header in folder.glob("*/run.json"):
        with suppress(ProaError, OSError):  # reported in the run's own row
            starts.append(read_json(header).get("started"))
    created = (folder / "experiment.json").stat().st_mtime
    return {
        "name": name,
        "kind": "experiment",
        "status": experiment_status(folder, content),
        "steps": completed,
        "of": len(content.get("runs", [])),
        "started": min((float(start) for start in starts if is_time(start)), default=created),
        "scores": {"best": content["best_arm"]} if finding == FOUND_BEST else {},
        "finding": finding,
    }


def _show(rows: list[Row]) -> None:
    """One line per row: on a narrow terminal columns are left out and names shortened in the middle."""
    console = Console()
    columns = {
        "status": [visible(str(row["status"])) for row in rows],
        "done": [_progress(row) for row in rows],
        "began": [_day(row.get("started"), short=console.width < WIDE) for row in rows],
    }
    while columns and _width(columns) + LEAST_OF_NAME > console.width:
        columns.popitem()
    names = [visible(row["name"]) for row in rows]
    longest = max(map(len, names))
    name_width = max(LEAST_OF_NAME, min(longest, console.width - _width(columns) - LEAST_OF_SCORES - GAP))
    scores_width = console.width - _width(columns) - name_width - GAP
    columns = {"name": [squeezed(name, name_width) for name in names], **columns}
    if scores_width >= LEAST_OF_NAME // 2:  # less would be unreadable
        columns["scores"] = [ended(visible(_scores(row)), scores_width) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, cells))
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(Text(single_line(f"{row['name']}: {row['error']}")), soft_wrap=True)


def _width(columns: Mapping[str, list[str]]) -> int:
    return sum(max(len(name), *map(len, cells)) + GAP for name, cells in columns.items())


def _progress(row: Row) -> str:
    if "of" not in row:
        return ""
    total = count(row["of"], "run") if row["kind"] == "experiment" else str(row["of"])
    return f"{row['steps']}/{total}"


def _day(seconds: float | None, *, short: bool) -> str:
    """As in `ls`: this year's with the time, if there is room for it, others with the year."""
    if not seconds:
        return ""
    if day(seconds, "%Y") != str(datetime.now().year):
        return day(seconds, "%b %Y" if short else "%b %d %Y")
    return day(seconds, "%b %d" if short else "%b %d %H:%M")


def _scores(row: Row) -> str:
    scores = row.get("scores", {})
    if "finding" in row:
        return f"best {scores['best']}" if scores.get("best") else row["finding"]
    return ", ".join(f"{name} {number(value)}" for name, value in scores.items() if "completion_tokens" not in name)
