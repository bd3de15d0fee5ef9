"""What the record costs: written at each step, and read when it is large.

The share of a step is taken in a real run of the demo's configuration, a few steps of it: everything that the record
writes (metrics, spans, completions, journal) is timed where it is written, and compared with what the steps took.
Completions are kept of as many of these steps as of the whole demo's. Then a record with so many predictions and metric
values is written, listed, shown and made a page of.

    python benchmarks/record.py [--json] [--steps N] [--predictions N] [--values N]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from proa.callbacks.metric_files import JsonlMetrics
from proa.cli.main import main as proa
from proa.config import load_run_config
from proa.data.results import EvalResult
from proa.recipes import run
from proa.record.evals import EvalRecord
from proa.run.step_record import KEPT_STEPS, TakeStepRecord

DEMO = Path(__file__).parent.parent / "examples" / "sort_digits.yaml"
SHARE_LIMIT = 0.01
SHOW_LIMIT = 2.0
REPORT_LIMIT = 10.0


@contextlib.contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Inside, what a method takes is noted."""
    method = getattr(owner, name)

    def within(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            spent.append(time.perf_counter() - begun)

    with mock.patch.object(owner, name, within):
        yield


def share_of_a_step(steps: int) -> dict[str, float]:
    """Of the time that the demo's steps take, the part that writing the record takes."""
    spent: list[float] = []
    every = load_run_config(DEMO).total_steps // KEPT_STEPS
    changes = ["--total_steps", str(steps), "--eval", "[]", "--record.rollouts_every", str(every)]
    with tempfile.TemporaryDirectory() as folder:
        config = load_run_config(DEMO, changes, output_dir=folder)
        with timed(JsonlMetrics, "on_step_end", spent), timed(TakeStepRecord, "on_step_end", spent):
            run(config)
        rows = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    seconds = rows[-1]["time"] - rows[0]["time"]
    per_step = sum(spent) / steps
    return {
        "step_seconds": seconds / (steps - 1),
        "record_seconds": per_step,
        "share": per_step * (steps - 1) / seconds,
    }


def write_large(folder: Path, predictions: int, values: int) -> float:
    """A record of that size; returns how long the predictions took to be written."""
    names = [f"metric_{number}" for number in range(20)]
    rows = values // len(names)
    (folder / "run.json").write_text(
        json.dumps({"status": "completed", "started": 0.0, "ended": 1.0, "steps_run": rows})
    )
    (folder / "config.json").write_text(json.dumps({"name": "large", "total_steps": rows, "eval": [{"name": "large"}]}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(rows):
            row = {"step": step, "epoch": 0, "time": step * 0.5} | dict.fromkeys(names, step % 97 / 97)
            file.write(json.dumps(row) + "\n")
    made = [
        {
            "task_id": str(number), "sample": 0, "prompt": f"{number}>", "completion": "1 2 3 " * 20, "reward": 0.5,
            "correct": False, "error": None, "tokens": 40, "finish_reason": "stop", "policy_version": 1, "seed": number,
            "columns": {"answer": str(number)},
        }
        for number in range(predictions)
    ]  # fmt: skip
    begun = time.perf_counter()
    EvalRecord(folder).append(EvalResult("large", "large", {"exact": 0.5}, {}, 1.0, rows - 1), made)
    return time.perf_counter() - begun


def seconds_of(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        call()
    return time.perf_counter() - begun


def large_record(predictions: int, values: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "large"
        folder.mkdir()
        written = write_large(folder, predictions, values)
        return {
            "write_predictions_seconds": written,
            "show_seconds": seconds_of(lambda: proa(["show", str(folder)])),
            "runs_seconds": seconds_of(lambda: proa(["runs", place])),
            "report_seconds": seconds_of(lambda: proa(["report", str(folder)])),
            "report_megabytes": (folder / "report.html").stat().st_size / 1e6,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description="What the record costs.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--steps", type=int, default=12, help="of the demo")
    parser.add_argument("--predictions", type=int, default=10_000)
    parser.add_argument("--values", type=int, default=1_000_000)
    options = parser.parse_args()
    found = share_of_a_step(options.steps) | large_record(options.predictions, options.values)
    checks = {
        f"writing takes less than {SHARE_LIMIT:.0%} of a step": found["share"] < SHARE_LIMIT,
        f"proa show takes less than {SHOW_LIMIT:g} s": found["show_seconds"] < SHOW_LIMIT,
        f"proa report takes less than {REPORT_LIMIT:g} s": found["report_seconds"] < REPORT_LIMIT,
    }
    if options.json:
        print(json.dumps(found | {"checks": checks}, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:28} {value:10.4g}")
        for name, holds in checks.items():
            print(f"{'holds' if holds else 'BROKEN':7} {name}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
