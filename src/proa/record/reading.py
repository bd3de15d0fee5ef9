"""What a run's folder tells, read by whoever looks at it: while the run goes on, or long after."""

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
from .evals import MOST_STEPS, EvalRecord
from .live import LiveFile, LiveView
from .run_folder import BrokenRecordError, quoted, read_json, refuse_pipe
from .times import Going, going, gone_on_at, is_time

TAIL_BYTES = 1 << 18
"""So much of the end of metrics.jsonl is read: hundreds of rows, however long the run."""
RATE_STEPS = 50
"""A rate is that of the last so many steps."""
QUIET_SECONDS = 30.0
"""A run that is looked at every second and was not for so long is probably gone."""


class NoRunError(ProaError, ValueError):
    """What was named is no run's folder; the message says what is there instead."""


class Process(StrEnum):
    """What can be told from here of the process that a run's header names."""

    THERE = "there"
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    """On another machine, or not written down."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that a look at a run's folder shows."""

    folder: Path
    header: dict[str, Any]
    config: dict[str, Any]
    live: LiveView | None
    """The last view of the process that the header names."""
    rows: list[dict[str, Any]]
    """The last rows of metrics.jsonl, or all of them."""
    all_rows: bool
    scores: dict[str, dict[str, Any]]
    """The last scores of each eval in evals.jsonl, of benchmarks after training too."""
    process: Process
    read_at: float

    @property
    def total_steps(self) -> int:
        """Optimizer steps that the configuration asks for; 0 is not known."""
        return int(self.config.get("total_steps", 0) * self.config.get("train_epochs", 1))

    @property
    def running(self) -> bool:
        return bool(self.header["status"] == "running")

    @property
    def cut_off(self) -> bool:
        """Whether the run never ended and its process is certainly gone."""
        return self.running and self.process is Process.GONE

    @property
    def quiet_seconds(self) -> float:
        """Since the last sign of life: a live view, a row, the start, or when the run was gone on with."""
        signs = [self.header.get("started", 0.0), gone_on_at(self.header) or 0.0]
        signs += [row.get("time", 0.0) for row in self.rows[-1:]]
        if self.live is not None:
            signs.append(self.live.time)
        return max(0.0, self.read_at - float(max(signs)))

    @property
    def getting_ready(self) -> bool:
        """Whether nothing was seen yet of the process that the header names."""
        since = gone_on_at(self.header) or 0.0
        return self.running and self.live is None and not any(row.get("time", 0.0) >= since for row in self.rows[-1:])

    @property
    def going(self) -> Going | None:
        """For how long the run went on, or has gone on, without the pauses before it was resumed."""
        last = self.header.get("ended", self.read_at - (self.quiet_seconds if self.cut_off else 0.0))
        found = going(self.header, last)
        return Going(found.seconds, is_about=True) if found is not None and self.cut_off else found

    @property
    def last_metrics(self) -> dict[str, Any] | None:
        """Everything that was written for the last step, its evals included."""
        merged: dict[str, Any] = {}
        for row in self.rows:
            if row["step"] == self._last_step:
                merged |= row
        return merged or None

    @property
    def _last_step(self) -> int:
        """Not that of the last row: an eval that went on in the background is of an earlier step."""
        return max((row["step"] for row in self.rows), default=-1)

    @property
    def evals(self) -> dict[str, dict[str, Any]]:
        """The last scores of each eval: those of evals.jsonl; of one that is not there, the header's or the rows'."""
        found: dict[str, dict[str, Any]] = {}
        names = self.eval_names
        for row in self.rows:
            of_row: dict[str, dict[str, Any]] = {}
            for key, value in row.items():
                name = eval_of(key, names)
                if name is not None:
                    of_row.setdefault(name, {})[key.removeprefix(f"{name}.")] = value
            found |= of_row
        for name, scores in self.header.get("evals", {}).items():
            own = {key: value for key, value in scores.items() if eval_of(f"{name}.{key}", names) in (None, name)}
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
        """Over the last steps since the run was gone on with, evals and waits included; None if there were too few."""
        ends: dict[int, float] = {}
        since = gone_on_at(self.header) or 0.0
        for row in self.rows:
            # Not a row of an eval: one that went on in the background comes long after its step.
            if row.get("time", -1.0) >= since and row["step"] > next(reversed(ends), -1):
                ends[row["step"]] = row["time"]
        last = sorted(ends)[-RATE_STEPS:]
        if len(last) < 2 or ends[last[-1]] <= ends[last[0]]:
            return None
        return float((last[-1] - last[0]) / (ends[last[-1]] - ends[last[0]]))


def eval_of(metric: str, names: Iterable[str]) -> str | None:
    """The eval that a metric in a row is of; a name may have a dot in it, and the longest counts.

    >>> eval_of("a.b.exact", ["a", "a.b"]), eval_of("a.exact", ["a", "a.b"]), eval_of("loss", ["a"])
    ('a.b', 'a', None)
    """
    return max((name for name in names if metric.startswith(f"{name}.")), key=len, default=None)


def read_run(folder: Path) -> RunRecord:
    """Read the record of the run in this folder, whatever state it is in."""
    _refuse_what_is_no_run(folder)
    try:
        record = _read(folder)
        # It may have ended between the look at its header and the look at its process.
        return _read(folder) if record.cut_off else record
    except FileNotFoundError as error:
        raise NoRunError(f"{folder} is not there any more: {error}") from error
    except OSError as error:
        raise BrokenRecordError(f"the record in {folder} cannot be read: {error}") from error


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, or one level below, in the order of their names."""
    found = (header.parent for depth in ("*", "*/*") for header in folder.glob(f"{depth}/run.json"))
    return sorted(found)


def _read(folder: Path) -> RunRecord:
    header = read_header(folder / "run.json")
    rows, all_rows = _last_rows(folder / "metrics.jsonl")
    config = _config(folder / "config.json")
    latest = EvalRecord(folder).latest(_eval_names(config))
    return RunRecord(
        folder,
        header,
        config=config,
        live=_view(folder, header),
        rows=rows,
        all_rows=all_rows,
        scores={name: dict(result.metrics) for name, result in latest.items()},
        process=_process(header),
        read_at=time.time(),
    )


_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {
    "status": str, "pid": int, "host": str, "steps_run": int, "evals": dict, "ledger": dict, "callback_errors": dict,
    "reward_failures": dict, "resumed": list, "weights_digest": str, "policy_version": int,
}  # fmt: skip
_TIMES = ("started", "ended", "time")
_COUNTS = ("steps_run", "total_steps", "train_epochs", "step")


def _check(path: Path, content: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise if what is there of a file is not what it should be. What is not there is nobody's mistake."""
    wrong = [name for name, kind in types.items() if name in content and not isinstance(content[name], kind)]
    wrong += [name for name in _TIMES if name in content and not is_time(content[name])]
    wrong += [name for name in _COUNTS if isinstance(content.get(name), int) and abs(content[name]) > MOST_STEPS]
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
    return header


def _view(folder: Path, header: Mapping[str, Any]) -> LiveView | None:
    """The last view; but not one of the process before the run was gone on with."""
    view, since = LiveFile.read(folder), gone_on_at(header)
    return None if view is None or (since is not None and view.time < since) else view


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
    """The rows at the end of the file, and whether that is all of them."""
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(begin)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return [], True
    # What follows the last line break is still being written, or was when the run was cut off.
    whole = lines[1 if begin else 0 : -1]
    return [_row(path, line) for line in whole], begin == 0


def _row(path: Path, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row["step"], int):
            raise TypeError("no row of a step")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        beginning = line[:40].decode(errors="replace")
        raise BrokenRecordError(f"{path} is broken at the line {beginning!r}…: {error}") from error
    _check(path, row, {})
    return row


def _process(header: Mapping[str, Any]) -> Process:
    if "pid" not in header or header.get("host") != platform.node():
        return Process.ELSEWHERE
    if header["pid"] < 1:  # others than one process
        return Process.GONE
    try:
        os.kill(header["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return Process.GONE
    except PermissionError:
        pass  # somebody else's, and there
    return Process.GONE if _ended_unnoticed(header["pid"]) else Process.THERE


def _ended_unnoticed(pid: int) -> bool:
    """Whether a process has ended and its parent has not asked how; signals still reach such a one."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not on this system
        return False
    return state.rpartition(")")[2].split()[0] == "Z"


def _refuse_what_is_no_run(folder: Path) -> None:
    if (folder / "run.json").is_file():
        return
    if not folder.exists():
        beside = [run.name for run in runs_in(folder.parent) if run.parent == folder.parent]
        raise NoRunError(f"{folder} does not exist{did_you_mean(folder.name, beside)}")
    if not folder.is_dir():
        raise NoRunError(f"{folder} is a file: give the folder of a run")
    inside = runs_in(folder)
    if inside:
        raise NoRunError(f"{folder} is not the folder of one run, but it holds some: {_listed(inside)}")
    raise NoRunError(f"{folder} is no run's folder: there is no run.json in it")


def _listed(runs: Iterable[Path], most: int = 20) -> str:
    names = [str(run) for run in runs]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
