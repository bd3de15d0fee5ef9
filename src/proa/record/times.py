"""How long a run has been running: its signs of life, and the pauses before it was resumed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

TAIL_BYTES = 1 << 16
"""How much of the end of metrics.jsonl is read for its last row."""


@dataclass(frozen=True, slots=True)
class RunningTime:
    """How long a run was running, without pauses."""

    seconds: float
    is_approximate: bool
    """Whether one of its processes was killed, so that only its last sign of life is known."""


def is_time(value: Any) -> TypeGuard[float]:
    """Whether a value is a time in seconds since the epoch.

    >>> is_time(1.5), is_time(float("nan")), is_time("today")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def last_resumed(header: Mapping[str, Any]) -> float | None:
    """When a run was last resumed; None if it never was."""
    return max((float(entry["at"]) for entry in _resumed(header)), default=None)


def running_time(header: Mapping[str, Any], until: float) -> RunningTime | None:
    """How long a run with this header had been running at `until`; None if its start is not known.

    >>> running_time({"started": 100.0, "resumed": [{"at": 500.0, "left": 160.0}]}, until=520.0)
    RunningTime(seconds=80.0, is_approximate=False)
    """
    if not is_time(header.get("started")):
        return None
    paused, is_approximate = 0.0, False
    for entry in _resumed(header):
        if is_time(entry.get("left")):
            paused += max(0.0, entry["at"] - entry["left"])
            is_approximate |= bool(entry.get("cut_off"))
    return RunningTime(max(0.0, until - header["started"] - paused), is_approximate)


def previous_process(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """For the header of a run that is resumed now: when its previous process ended, or was last seen, and why it
    failed, if it did."""
    ended = header.get("ended")
    if is_time(ended):
        failure = header.get("stop_reason") if header.get("status") == "failed" else None
        return {"left": ended, **({"reason": failure} if failure else {})}
    live_time = None
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):  # a broken file is no sign
        live_time = json.loads((folder / "live.json").read_bytes())["time"]
    signs = [header.get("started"), last_resumed(header), live_time, _last_row_time(folder)]
    return {"left": max((sign for sign in signs if is_time(sign)), default=None), "cut_off": True}


def _resumed(header: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    entries = header.get("resumed")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and is_time(entry.get("at")):
            yield entry


def _last_row_time(folder: Path) -> Any:
    with (
        suppress(OSError, ValueError, RecursionError, TypeError, KeyError, IndexError),
        (folder / "metrics.jsonl").open("rb") as file,
    ):
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return json.loads(file.read().split(b"\n")[-2])["time"]
    return None
