"""Compiles one straight-line function for each moment: it calls exactly those who listen, in order.

For two listeners, one with `every=100`, and timing on, the function of `step_end` reads

    def step_end(state, step_idx=None, batch=None, metrics=None, experience=None):
        if step_idx is None: step_idx = state.global_step - 1
        if metrics is None: metrics = state.metrics
        error = None
        begun = clock()
        try:
            call_0(state, step_idx, batch, metrics)
        except BaseException as raised:
            error = failed(listener_0, raised, error, state)
        if not (step_idx + 1) % 100:
            try:
                call_1(state)
            except BaseException as raised:
                error = failed(listener_1, raised, error, state)
        took = clock() - begun
        …
        if error is not None:
            raise error

A failing listener never keeps a moment from the others: `failed` applies the callback's error policy
and hands back the error to raise once everyone has heard. `try` costs nothing while nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .listeners import Function, Listener
from .moments import Moment, defaults_from_state

OVERRUN_SHARE = 0.05
"""A moment whose callbacks take more than this share of the time between two of its firings is overrun."""
OVERRUN_SECONDS = 1e-4
"""…unless it takes less than this: in a loop of microseconds everything is a large share."""


@dataclass(slots=True)
class Clock:
    """How often a moment fired and how long its callbacks took."""

    calls: int = 0
    seconds: float = 0.0
    begun: float = 0.0
    profiles_left: int = 0
    profiled_seconds: float = 0.0
    profiled_calls: int = 0
    profile_begun: float = 0.0
    quiet_until: int = 0

    def start_profile(self, calls: int) -> None:
        self.profiles_left, self.profiled_calls, self.profiled_seconds = calls, 0, 0.0
        self.profile_begun = perf_counter()


@dataclass(frozen=True, slots=True)
class Boundary:
    """What the manager does at a moment besides calling listeners: turn or drain background tasks."""

    settle: Callable[[BaseException | None, Any], BaseException | None]


def compile_moment(
    moment: Moment,
    listeners: Sequence[Listener],
    *,
    failed: Callable[[Listener, BaseException, BaseException | None, Any], BaseException | None],
    call: Callable[[Listener], Function],
    boundary: Boundary | None = None,
    clock: Clock | None = None,
    overran: Callable[[Moment, float, float], None] | None = None,
    profiled: Callable[[Moment, float, float], None] | None = None,
) -> Function:
    """The dispatcher of one moment. With `clock` it is timed; with `profiled`, each listener by itself."""
    names: dict[str, Any] = {"failed": failed, "perf_counter": perf_counter, "clock": clock, "moment": moment}
    names |= {"overran": overran, "profiled": profiled, "settle": boundary and boundary.settle}
    for i, listener in enumerate(listeners):
        names |= {f"listener_{i}": listener, f"call_{i}": call(listener)}
    lines = [f"def {moment.method}({_parameters(moment)}):"]
    body = _defaults(moment, listeners)
    if listeners or boundary:
        body += ["error = None"]
        body += ["begun = perf_counter()"] if clock else []
        for i, listener in enumerate(listeners):
            body += _call(moment, i, listener, profiled=profiled is not None)
        body += _stop_clock(profiled=profiled is not None) if clock else []
        body += [f"error = settle(error, {moment.payload[0]})"] if boundary else []
        body += ["if error is not None:", "    try:", "        raise error", "    finally:", "        del error"]
    source = "\n    ".join([*lines, *(body or ["pass"])])
    exec(compile(source, f"<proa: {moment.name}>", "exec"), names)
    function: Function = names[moment.method]
    return function


def _parameters(moment: Moment) -> str:
    first, *rest = moment.payload
    return ", ".join([first, *(f"{item}=None" for item in rest)])


def _defaults(moment: Moment, listeners: Sequence[Listener]) -> list[str]:
    """Fill what `fire(event, state)` left out, for the items that somebody reads."""
    lines = []
    for item in moment.payload:
        expression = defaults_from_state(item)
        counted = moment.index == item and any(listener.every > 1 for listener in listeners)
        if expression and (counted or any(listener.reads(item) for listener in listeners)):
            lines.append(f"if {item} is None: {item} = {expression}")
    return lines


def _call(moment: Moment, i: int, listener: Listener, *, profiled: bool) -> list[str]:
    lines = [
        "try:",
        f"    call_{i}({', '.join(listener.arguments)})",
        "except BaseException as raised:",
        f"    error = failed(listener_{i}, raised, error, {moment.payload[0]})",
    ]
    if listener.failures_in_a_row:  # only a listener that failed lately has a count to reset
        lines += ["else:", f"    listener_{i}.failures_in_a_row = 0"]
    if profiled:
        lines = ["since = perf_counter()", *lines, f"listener_{i}.profiled_seconds += perf_counter() - since"]
    if listener.every > 1 and moment.index:
        lines = [f"if not ({moment.index} + 1) % {listener.every}:", *(f"    {line}" for line in lines)]
    return lines


def _stop_clock(*, profiled: bool) -> list[str]:
    lines = ["took = perf_counter() - begun", "clock.calls += 1", "clock.seconds += took"]
    if profiled:
        lines += ["profiled(moment, begun, took)"]
    else:
        threshold = f"took > {OVERRUN_SECONDS} and took > {OVERRUN_SHARE} * (begun - clock.begun)"
        lines += [f"if {threshold}:", "    overran(moment, begun, took)"]
    return [*lines, "clock.begun = begun"]
