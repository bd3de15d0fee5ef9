"""The cost of callbacks: calls, time and errors of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .listeners import Listener, Registration
from .profiling import Clock


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One callback at one moment. `seconds` is its share of the moment's time, as far as that was sampled."""

    callback: str
    event: str
    calls: int
    seconds: float
    errors: int
    disabled: bool


@dataclass(frozen=True, slots=True)
class CallbackReport:
    """All rows, slowest first; printing it gives a table."""

    rows: tuple[ReportRow, ...]

    def __iter__(self) -> Iterator[ReportRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        width = max([len("callback"), *(len(row.callback) for row in self.rows)])
        lines = [f"{'callback':{width}}  {'event':28} {'calls':>8} {'seconds':>9} {'errors':>7}"]
        for row in self.rows:
            disabled = "  disabled" if row.disabled else ""
            lines.append(
                f"{row.callback:{width}}  {row.event:28} {row.calls:8} {row.seconds:9.4f} {row.errors:7}{disabled}"
            )
        return "\n".join(lines)


def build_report(registrations: Sequence[Registration], clocks: Mapping[str, Clock]) -> CallbackReport:
    """Calls are exact where `every` is 1; a moment's time is divided in proportion to its sampled firings."""
    rows = []
    by_moment: dict[str, list[Listener]] = {}
    for registration in registrations:
        for listener in registration.listeners:
            by_moment.setdefault(listener.moment.name, []).append(listener)
    for name, listeners in by_moment.items():
        clock = clocks[name]
        sampled = sum(listener.profiled_seconds for listener in listeners)
        for listener in listeners:
            share = listener.profiled_seconds / sampled if sampled else 1 / len(listeners)
            registration = listener.registration
            calls = (clock.calls - listener.calls_before) // listener.every
            if clock.calls > listener.calls_before or listener.errors:
                rows.append(
                    ReportRow(
                        registration.name,
                        name,
                        calls,
                        clock.seconds * share,
                        listener.errors,
                        registration.disabled,
                    )
                )
    return CallbackReport(tuple(sorted(rows, key=lambda row: -row.seconds)))
