"""A summary of a run from its folder, while it runs or long after."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..errors import ProaError
from ..spelling import did_you_mean
from .evals import EvalRecord
from .live import LiveFile, LiveView
from .run_folder import BrokenRecordError, check_regular_file, quoted, read_json
from .times import RunningTime, is_time, last_resumed, running_time

TAIL_BYTES = 1 << 18
"""How much of the end of metrics.jsonl is read: hundreds of rows, however long the run."""
RATE_STEPS = 50
"""How many of the last steps a rate is measured over."""
QUIET_SECONDS = 30.0
"""A run that updates its live view every second and has not for so long has probably died."""
_MOST_LISTED = 20


class RunNotFoundError(ProaError, ValueError):
    """The path is not a run's folder; the message says what is there instead."""


class Process(StrEnum):
    """What is known about the process that a run's header names."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """On another machine, or not recorded."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run's folder says about the run."""

    folder: Path
    header: dict[str, Any]
    config: dict[str, Any]
    live: LiveView | None
    """The last view written by the process that the header names."""
    rows: list[dict[str, Any]]
    """The last rows of metrics.jsonl, or all of them."""
    all_rows: bool
    scores: dict[str, dict[str, Any]]
    """The last scores of each eval in evals.jsonl, including benchmarks after training."""
    process: Process
    read_at: float

    @property
    def total_steps(self) -> int:
        """Optimizer steps that the configuration asks for; 0 if not known."""
        return int(self.config.get("total_steps", 0) * self.config.get("train_epochs", 1))

    @property
    def running(self) -> bool:
        return bool(self.header["status"] == "running")

    @property
    def cut_off(self) -> bool:
        """Whether the run did not end and its process is certainly gone."""
        return self.running and self.process is Process.GONE

    @property
    def quiet_seconds(self) -> float:
        """Seconds since the last sign of life: a live view, a row, the start or a resume."""
        signs = [self.header.get("started", 0.0), last_resumed(self.header) or 0.0]
        signs += [row.get("time", 0.0) for row in self.rows[-1:]]
        if self.live is not None:
            signs.append(self.live.time)
        return max(0.0, self.read_at - float(max(signs)))

    @property
    def is_starting(self) -> bool:
        """Whether the process that the header names has not shown any progress yet."""
        since = last_resumed(self.header) or 0.0
        return self.running and self.live is None and not any(row.get("time", 0.0) >= since for row in self.rows[-1:])

    @property
    def running_time(self) -> RunningTime | None:
        """How long the run has been running, without the pauses before it was resumed."""
        last = self.header.get("ended", self.read_at - (self.quiet_seconds if self.cut_off else 0.0))
        found = running_time(self.header, last)
        return RunningTime(found.seconds, is_approximate=True) if found is not None and self.cut_off else found

    @property
    def last_metrics(self) -> dict[str, Any] | None:
        """Everything recorded for the last step, including its evals."""
        merged: dict[str, Any] = {}
        for row in self.rows:
            if row["step"] == self._last_step:
                merged |= row
        return merged or None

    @property
    def _last_step(self) -> int:
        """Not the step of the last row, which may be an eval of an earlier step that ran in the background."""
        return max((row["step"] for row in self.rows), default=-1)

    @property
    def evals(self) -> dict[str, dict[str, Any]]:
        """The last scores of each eval, from evals.jsonl; for an eval missing there, from the header or the rows."""
        found: dict[str, dict[str, Any]] = {}
        names = self.eval_names
        for row in self.rows:
            row_scores: dict[str, dict[str, Any]] = {}
            for key, value in row.items():
                name = eval_name(key, names)
                if name is not None:
                    row_scores.setdefault(name, {})[key.removeprefix(f"{name}.")] = value
            found |= row_scores
        for name, scores in self.header.get("evals", {}).items():
            own = {key: value for key, value in scores.items() if eval_name(f"{name}.{key}", names) in (None, name)}
            found |= {name: own} if own else {}
        return found | self.scores

    @property
    def eval_names(self) -> list[str]:
        return _eval_names(self.config)

    @property
    def steps_done(self) -> int:
        if "steps_run" in self.header:
            return int(self.header["steps_run"])
        return max(self._last_step + 1, self.live.step if self.live else 0)

    @property
    def steps_per_second(self) -> float | None:
        """Over the last steps since the run was resumed, with evals and waits; None if there are too few."""
        ends: dict[int, float] = {}
        since = last_resumed(self.header) or 0.0
        for row in self.rows:
            # Not the row of an eval that ran in the background, long after its step.
            if row.get("time", -1.0) >= since and row["step"] > next(reversed(ends), -1):
                ends[row["step"]] = row["time"]
        last = sorted(ends)[-RATE_STEPS:]
        if len(last) < 2 or ends[last[-1]] <= ends[last[0]]:
            return None
        return float((last[-1] - last[0]) / (ends[last[-1]] - ends[last[0]]))


def eval_name(metric: str, names: Iterable[str]) -> str | None:
    """The eval that a metric of a row belongs to; names may contain dots, the longest match wins.

    >>> eval_name("a.b.exact", ["a", "a.b"]), eval_name("a.exact", ["a", "a.b"]), eval_name("loss", ["a"])
    ('a.b', 'a', None)
    """
    return max((name for name in names if metric.startswith(f"{name}.")), key=len, default=None)


def read_run(folder: Path) -> RunSummary:
    """Read the run in this folder, whatever state it is in."""
    check_run_folder(folder)
    try:
        record = _read(folder)
        # It may have ended after its header was read and before its process was looked up.
        return _read(folder) if record.cut_off else record
    except FileNotFoundError as error:
        raise RunNotFoundError(f"{folder} does not exist any more: {error}") from error
    except OSError as error:
        raise BrokenRecordError(f"the record in {folder} cannot be read: {error}") from error


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder or one level below, sorted by name."""
    return sorted(header.parent for depth in ("*", "*/*") for header in folder.glob(f"{depth}/run.json"))


def _read(folder: Path) -> RunSummary:
    header = read_header(folder / "run.json")
    rows, all_rows = _last_rows(folder / "metrics.jsonl")
    config = _config(folder / "config.json")
    latest = EvalRecord(folder).latest(_eval_names(config))
    live, resumed = LiveFile.read(folder), last_resumed(header)
    if live is not None and resumed is not None and live.time < resumed:
        live = None  # written by the previous process
    return RunSummary(
        folder,
        header,
        config=config,
        live=live,
        rows=rows,
        all_rows=all_rows,
        scores={name: dict(result.metrics) for name, result in latest.items()},
        process=_process(header),
        read_at=time.time(),
    )


_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {
    "status": str, "pid": int, "host": str, "steps_run": int, "evals": dict, "ledger": dict, "callback_errors": dict,
    "first_callback_errors": dict, "reward_failures": dict, "performance": dict, "resumed": list, "weights_digest": str,
    "policy_version": int,
}  # fmt: skip
_TIMES = ("started", "ended", "time")


def _check(path: Path, content: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise if a value has the wrong type. Missing keys are fine."""
    wrong = [name for name, kind in types.items() if name in content and not isinstance(content[name], kind)]
    wrong += [name for name in _TIMES if name in content and not is_time(content[name])]
    for name in wrong:
        raise BrokenRecordError(f"{path} is broken: {name} cannot be {quoted(content[name])}")


def read_header(path: Path) -> dict[str, Any]:
    """The content of `run.json`, with the types that a run writes."""
    header = read_json(path)
    _check(path, header, _HEADER_TYPES)
    if "status" not in header:
        raise BrokenRecordError(f"{path} is broken: it has no status")
    for name, scores in header.get("evals", {}).items():
        if not isinstance(scores, dict):
            raise BrokenRecordError(f"{path} is broken: the scores of eval {name} cannot be {quoted(scores)}")
    for name, measured in header.get("performance", {}).items():
        if not isinstance(measured, dict) or not isinstance(measured.get("shares"), dict):
            raise BrokenRecordError(f"{path} is broken: the performance of {name} cannot be {quoted(measured)}")
    return header


def _config(path: Path) -> dict[str, Any]:
    try:
        config = read_json(path)
    except FileNotFoundError:
        return {}
    _check(path, config, {"total_steps": int, "train_epochs": int, "eval": list})
    return config


def _eval_names(config: Mapping[str, Any]) -> list[str]:
    sections = config.get("eval", [])
    return [str(section["name"]) for section in sections if isinstance(section, Mapping) and "name" in section]


def _last_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows at the end of the file, and whether these are all."""
    check_regular_file(path)
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(begin)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return [], True
    # After the last line break may be a row that is still being written, or was when the run was killed.
    whole = lines[1 if begin else 0 : -1]
    return [_row(path, line) for line in whole], begin == 0


def _row(path: Path, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row["step"], int):
            raise TypeError("not a row of a step")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        beginning = line[:40].decode(errors="replace")
        raise BrokenRecordError(f"{path} is broken at the line {beginning!r}…: {error}") from error
    _check(path, row, {})
    return row


def _process(header: Mapping[str, Any]) -> Process:
    if "pid" not in header or header.get("host") != platform.node():
        return Process.UNKNOWN
    if header["pid"] < 1:  # would signal a group of processes
        return Process.GONE
    try:
        os.kill(header["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return Process.GONE
    except PermissionError:
        pass  # another user's process
    return Process.GONE if _is_zombie(header["pid"]) else Process.ALIVE


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and still exists because its parent has not waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no /proc on this system
        return False
    return state.rpartition(")")[2].split()[0] == "Z"


def check_run_folder(folder: Path) -> None:
    """Raise where there is no run."""
    if (folder / "run.json").is_file():
        return
    if not folder.exists():
        neighbours = [run.name for run in find_runs(folder.parent) if run.parent == folder.parent]
        raise RunNotFoundError(f"{folder} does not exist{did_you_mean(folder.name, neighbours)}")
    if not folder.is_dir():
        raise RunNotFoundError(f"{folder} is a file: give the folder of a run")
    inside = [str(run) for run in find_runs(folder)]
    if inside:
        more = f" and {len(inside) - _MOST_LISTED} more" if len(inside) > _MOST_LISTED else ""
        names = ", ".join(inside[:_MOST_LISTED]) + more
        raise RunNotFoundError(f"{folder} is not the folder of one run, but it holds some: {names}")
    raise RunNotFoundError(f"{folder} is not a run's folder: there is no run.json in it")
