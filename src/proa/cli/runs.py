"""`proa runs`: the runs and experiments below a folder, what each has come to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ProaError
from ..record.reading import RunRecord, read_run
from .words import number

DEEPEST = 4
"""Runs lie in experiments, which lie in a folder of them: further down nobody looks."""


def runs(folder: str, *, as_json: bool) -> int:
    """Exit code: 0 done, 2 wrong use."""
    root = Path(folder)
    if not root.is_dir():
        print(f"there is no folder {root}: give the output_dir of your runs", file=sys.stderr)
        return 2
    rows = [_described(root, found) for found in sorted(_found(root, DEEPEST), key=lambda path: path.stat().st_mtime)]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print(f"there is no run in {root}")
    else:
        _show(rows)
    return 0


def _found(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a run's or an experiment's header; below a run's own folder there is none."""
    if (folder / "run.json").is_file():
        yield folder
        return
    if (folder / "experiment.json").is_file():
        yield folder
    if depth:
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
                yield from _found(inner, depth - 1)


def _described(root: Path, folder: Path) -> dict[str, Any]:
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    try:
        if not (folder / "run.json").is_file():
            return {"name": name, "kind": "experiment", **_experiment(folder)}
        return {"name": name, "kind": "run", **_run(read_run(folder))}
    except (ProaError, OSError, ValueError) as error:
        return {"name": name, "kind": "run", "status": "broken", "error": str(error)}


def _run(record: RunRecord) -> dict[str, Any]:
    scores = {f"{name}.{metric}": value for name, metrics in record.evals.items() for metric, value in metrics.items()}
    return {
        "status": "cut off" if record.cut_off else record.header["status"],
        "algorithm": record.config.get("algorithm", {}).get("name"),
        "steps": record.steps_done,
        "of": record.total_steps,
        "started": record.header.get("started"),
        "scores": scores,
    }


def _experiment(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    done = sum(arm.get("status") == "completed" for arm in content.get("arms", []))
    return {
        "status": content.get("status"),
        "steps": done,
        "of": len(content.get("runs", [])),
        "started": (folder / "experiment.json").stat().st_mtime,
        "scores": {"best": content["best_arm"]} if content.get("best_arm") else {},
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table()
    for column in ("name", "status", "done", "when", "scores"):
        table.add_column(column, no_wrap=column in ("name", "when"))
    for row in rows:
        what = "runs" if row["kind"] == "experiment" else "steps"
        done = f"{row['steps']} of {row['of']} {what}" if "steps" in row else ""
        when = datetime.fromtimestamp(row["started"]).strftime("%Y-%m-%d %H:%M") if row.get("started") else ""
        told = {name: value for name, value in row.get("scores", {}).items() if "completion_tokens" not in name}
        scores = ", ".join(f"{name} {number(value)}" for name, value in told.items()) or row.get("error", "")
        table.add_row(*(Text(str(cell)) for cell in (row["name"], row["status"], done, when, scores)))
    Console().print(table)
