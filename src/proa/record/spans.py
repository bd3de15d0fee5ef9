"""`spans.jsonl`: who did what, when and for how long; and its conversion to a trace for Perfetto."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from .durable import Disk, open_writable
from .patient_writes import LineFile
from .run_folder import BrokenRecordError, check_regular_file

SPANS_NAME = "spans.jsonl"


class Span(TypedDict):
    """What one actor did from `start` (seconds since the epoch) on."""

    actor: str
    kind: str
    start: float
    seconds: float
    step: NotRequired[int | None]
    lease: NotRequired[int | None]
    version: NotRequired[int | None]


class SpanRecord:
    """The spans in one run's folder."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.path = folder / SPANS_NAME
        self._lines = LineFile(disk)

    def append(self, spans: Iterable[Span]) -> None:
        """Append spans, all or none."""
        rounded = ({**span, "start": round(span["start"], 6), "seconds": round(span["seconds"], 6)} for span in spans)
        data = "".join(json.dumps(span) + "\n" for span in rounded).encode("ascii")
        if data:
            with open_writable(self.path, os.O_CREAT | os.O_APPEND) as descriptor:
                self._lines.append(descriptor, data)

    def read(self) -> Iterator[Span]:
        """One span after the other, without an incomplete last line."""
        try:
            check_regular_file(self.path)
            with self.path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith(b"\n"):
                        yield _span(line, number, self.path)
        except FileNotFoundError:
            return


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """A trace in Chrome's format for https://ui.perfetto.dev, with one row per actor.

    >>> span = {"actor": "maker_0", "kind": "generate", "start": 5.0, "seconds": 0.5, "lease": 3}
    >>> chrome_trace([span])["traceEvents"][1]
    {'name': 'generate', 'ph': 'X', 'ts': 5000000.0, 'dur': 500000.0, 'pid': 1, 'tid': 1, 'args': {'lease': 3}}
    """
    threads: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for span in spans:
        actor = span["actor"]
        if actor not in threads:
            threads[actor] = len(threads) + 1
            events.append(
                {"name": "thread_name", "ph": "M", "pid": 1, "tid": threads[actor], "args": {"name": actor}}
            )  # fmt: skip
        arguments = {
            key: value for key, value in span.items() if key in ("step", "lease", "version") and value is not None
        }
        events.append(
            {
                "name": span["kind"], "ph": "X", "ts": span["start"] * 1e6, "dur": span["seconds"] * 1e6, "pid": 1,
                "tid": threads[actor], "args": arguments,
            }
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _span(line: bytes, number: int, path: Path) -> Span:
    try:
        span: Span = json.loads(line.decode("utf-8"))
        if not all(isinstance(span[key], str) for key in ("actor", "kind")):
            raise TypeError("a span has an actor and a kind")
        if not all(math.isfinite(span[key]) for key in ("start", "seconds")):
            raise TypeError("a span has a start and a duration")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise BrokenRecordError(f"{path} is broken at line {number}: {error}") from error
    return span
