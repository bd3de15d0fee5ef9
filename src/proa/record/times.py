"""When a run was going: its signs of life, and the pauses before it was gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

LATEST = 253_402_300_799
"""The last second of the year 9999: no calendar here goes further."""
TAIL_BYTES = 1 << 16
"""So much of the end of metrics.jsonl is read for its last row."""


@dataclass(frozen=True, slots=True)
class Going:
    """For how long a run went on, pauses left out."""

    seconds: float
    is_about: bool
    """Whether some process of it was cut off: then only its last sign of life is known."""


def is_time(value: Any) -> TypeGuard[float]:
    """Whether a value is a moment that a calendar has, in seconds since the epoch.

    >>> is_time(1.5), is_time(float("nan")), is_time(10**400), is_time("today")
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LATEST


def gone_on_at(header: Mapping[str, Any]) -> float | None:
    """When a run was last gone on with; None if it never was."""
    return max((float(entry["at"]) for entry in _resumed(header)), default=None)


def going(header: Mapping[str, Any], until: float) -> Going | None:
    """For how long a run that began as its header says had gone on by then; None if that is not known.

    >>> going({"started": 100.0, "resumed": [{"at": 500.0, "left": 160.0}]}, until=520.0)
    Going(seconds=80.0, is_about=False)
    """
    if not is_time(header.get("started")):
        return None
    paused, is_about = 0.0, False
    for entry in _resumed(header):
        if is_time(entry.get("left")):
            paused += max(0.0, entry["at"] - entry["left"])
            is_about |= bool(entry.get("cut_off"))
    return Going(max(0.0, until - header["started"] - paused), is_about)


def pause_before_now(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """What the header of a run that goes on now says of the process before: when it left, or was last seen."""
    ended = header.get("ended")
    if is_time(ended):
        return {"left": ended}
    signs = [header.get("started"), gone_on_at(header), _time_in_view(folder), _time_of_last_row(folder)]
    return {"left": max((sign for sign in signs if is_time(sign)), default=None), "cut_off": True}


def _resumed(header: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    entries = header.get("resumed")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and is_time(entry.get("at")):
            yield entry


def _time_in_view(folder: Path) -> Any:
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):  # a broken one is no sign
        return json.loads((folder / "live.json").read_bytes())["time"]
    return None


def _time_of_last_row(folder: Path) -> Any:
    with (
        suppress(OSError, ValueError, RecursionError, TypeError, KeyError, IndexError),
        (folder / "metrics.jsonl").open("rb") as file,
    ):
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return json.loads(file.read().split(b"\n")[-2])["time"]
    return None
