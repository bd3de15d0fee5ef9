"""What one event costs: with no listener, with ten that do not override the hook, with ten that do.

Ours beside a bare loop over bound methods and beside the dispatchers of other libraries, as far as they
are installed, all in one run: the ratios mean something even on a busy machine, the nanoseconds less.

    python benchmarks/callbacks.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field

from callback_peers import PEERS, Fire, MissingPeerError

from proa import Callback, CallbackManager, LoopState

LISTENERS = 10
IDLE_LIMIT = 1.5
BUSY_LIMIT = 1.2


@dataclass
class Row:
    """One dispatcher: nanoseconds per event, the best of all rounds."""

    name: str
    empty: float = float("inf")
    idle: float = float("inf")
    busy: float = float("inf")
    fires: dict[str, Fire] = field(default_factory=dict)

    def measure(self) -> None:
        for case, fire in self.fires.items():
            setattr(self, case, min(getattr(self, case), _nanoseconds(fire)))


class IdleCallback(Callback):
    """Overrides a hook, but not the one that is measured."""

    def on_eval(self, *_: object) -> None: ...


class BusyCallback(Callback):
    def on_step_end(self, *_: object) -> None: ...


class FourArguments(Callback):
    """As a user writes it."""

    def on_step_end(self, state, step_idx, batch, metrics) -> None: ...  # type: ignore[no-untyped-def]


def proa_typed(count: int, *, busy: bool, timing: bool) -> Fire:
    """`manager.moments.step_end(...)`, as Proa's own loops fire."""
    manager = CallbackManager([FourArguments() if busy else IdleCallback() for _ in range(count)], timing=timing)
    state, metrics, moments = LoopState(), {"loss": 1.0}, manager.moments
    for _ in range(10):
        moments.step_end(state, 0, None, metrics, None)
    return lambda: moments.step_end(state, 0, None, metrics, None)


def proa_by_name(count: int, *, busy: bool) -> Fire:
    """`manager.fire("step_end", state)`, as a loop of the user's own fires, with functions of one argument."""
    manager = CallbackManager(timing=False)
    for _ in range(count):
        manager.on("step_end" if busy else "epoch_end")(_one_argument())
    state = LoopState()
    for _ in range(10):
        manager.fire("step_end", state)
    return lambda: manager.fire("step_end", state)


def bare_loop(count: int, *, busy: bool) -> Fire:
    """The least there can be: a list of bound methods, called one after the other."""
    methods = [FourArguments().on_step_end for _ in range(count)] if busy else []
    state, metrics = LoopState(), {"loss": 1.0}

    def step_end(state: object, step_idx: int, batch: object, metrics: object, experience: object) -> None:
        for method in methods:
            method(state, step_idx, batch, metrics)

    return lambda: step_end(state, 0, None, metrics, None)


def _one_argument() -> Callable[[object], None]:
    def listener(state: object) -> None: ...

    return listener


def rows() -> tuple[list[Row], list[str]]:
    """What there is to measure, and what is not installed."""
    ours: list[tuple[str, Callable[..., Fire]]] = [
        ("bare loop", bare_loop),
        ("proa", lambda count, busy: proa_typed(count, busy=busy, timing=False)),
        ("proa, timing on", lambda count, busy: proa_typed(count, busy=busy, timing=True)),
        ("proa, by name", proa_by_name),
    ]
    found, missing = [], []
    for name, make in [*ours, *PEERS.items()]:
        try:
            fires = {
                "empty": make(0, busy=False),
                "idle": make(LISTENERS, busy=False),
                "busy": make(LISTENERS, busy=True),
            }
        except MissingPeerError as reason:
            missing.append(f"{name} ({reason})")
            continue
        found.append(Row(name, fires=fires))
    return found, missing


def _nanoseconds(fire: Fire) -> float:
    number = max(50, int(2e-3 / max(timeit.timeit(fire, number=20) / 20, 1e-8)))
    return timeit.timeit(fire, number=number) / number * 1e9


def verdicts(found: list[Row]) -> dict[str, bool]:
    """The bounds that Proa promises, checked on this run."""
    by_name = {row.name: row for row in found}
    proa, bare = by_name["proa"], by_name["bare loop"]
    peers = [row for row in found if row.name in PEERS]
    return {
        f"{LISTENERS} idle listeners cost at most {IDLE_LIMIT} times none": proa.idle <= IDLE_LIMIT * proa.empty,
        f"{LISTENERS} busy ones cost at most {BUSY_LIMIT} times the bare loop": proa.busy <= BUSY_LIMIT * bare.busy,
        f"idle: less than each of {len(peers)} peers": all(proa.idle < peer.idle for peer in peers),
        f"busy: less than each of {len(peers)} peers": all(proa.busy < peer.busy for peer in peers),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What one event costs, in nanoseconds.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=60, help="rounds over all dispatchers; the best counts")
    options = parser.parse_args()
    found, missing = rows()
    gc.collect()
    gc.disable()
    for _ in range(options.rounds):  # interleaved, so that a busy second of the machine hits everyone
        for row in found:
            row.measure()
    checks = verdicts(found)
    if options.json:
        figures = {row.name: {case: round(getattr(row, case), 1) for case in row.fires} for row in found}
        print(json.dumps({"ns_per_event": figures, "missing": missing, "checks": checks}, indent=2))
    else:
        _print(found, missing, checks)
    return 0 if all(checks.values()) else 1


def _print(found: list[Row], missing: list[str], checks: dict[str, bool]) -> None:
    print(f"{'nanoseconds per event':24} {'no listener':>12} {f'{LISTENERS} idle':>12} {f'{LISTENERS} busy':>12}")
    for row in sorted(found, key=lambda row: row.idle):
        print(f"{row.name:24} {row.empty:12,.0f} {row.idle:12,.0f} {row.busy:12,.0f}")
    for name in missing:
        print(f"not measured: {name}")
    for check, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {check}")


if __name__ == "__main__":
    sys.exit(main())
