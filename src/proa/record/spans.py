"""`spans.jsonl`: who did what, when and for how long; and the same as a trace that Perfetto opens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .durable import opened

SPANS_NAME = "spans.jsonl"


class SpanRecord:
    """The spans of one run's folder, in batches as they come."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SPANS_NAME

    def append(self, spans: Iterable[dict[str, Any]]) -> None:
        data = "".join(json.dumps(_rounded(span)) + "\n" for span in spans).encode("ascii")
        if data:
            with opened(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
                while data:
                    data = data[os.write(descriptor, data) :]

    def read(self) -> Iterator[dict[str, Any]]:
        """One after the other; a line that was being written is passed over."""
        try:
            with self.path.open(encoding="utf-8") as file:
                for line in file:
                    if line.endswith("\n"):
                        yield json.loads(line)
        except FileNotFoundError:
            return


def trace_of(spans: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A trace in the format of Chrome's tracing, which https://ui.perfetto.dev opens: a row for each actor.

    >>> trace_of([{"actor": "maker_0", "kind": "generate", "start": 5.0, "seconds": 0.5, "lease": 3}])["traceEvents"][1]
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
        known = {key: value for key, value in span.items() if key in ("step", "lease", "version") and value is not None}
        events.append(
            {
                "name": span["kind"], "ph": "X", "ts": span["start"] * 1e6, "dur": span["seconds"] * 1e6, "pid": 1,
                "tid": threads[actor], "args": known,
            }
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rounded(span: dict[str, Any]) -> dict[str, Any]:
    return {**span, "start": round(span["start"], 6), "seconds": round(span["seconds"], 6)}
