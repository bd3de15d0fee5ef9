"""Compiles one straight-line function for each moment, which calls exactly its listeners, in order.

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

A failing listener does not keep the others from being called: `failed` applies the callback's error policy and returns
the error to raise at the end. `try` costs nothing while nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from .listeners import Function, Listener
from .moments import Moment, state_default
from .profiling import OVERRUN_SECONDS, OVERRUN_SHARE, Profiler

Judge: TypeAlias = Callable[[Listener, BaseException, BaseException | None, Any], BaseException | None]
"""Takes a failure, the error to raise so far and the moment's first item; returns the error to raise."""
Settle: TypeAlias = Callable[[BaseException | None, Any], BaseException | None]
"""Runs background tasks at a step boundary; takes and returns the error to raise, like a judge."""


def compile_moment(
    moment: Moment,
    listeners: Sequence[Listener],
    *,
    judge: Judge,
    call: Callable[[Listener], Function],
    settle: Settle | None = None,
    profiler: Profiler | None = None,
) -> Function:
    """The dispatcher of one moment. A profiler times it; while it is being profiled, each listener is timed."""
    profiling = profiler is not None and profiler.is_profiling(moment)
    names: dict[str, Any] = {"failed": judge, "settle": settle, "perf_counter": perf_counter, "moment": moment}
    if profiler is not None:
        names |= {"clock": profiler.clocks[moment.name], "profiled": profiler.profiled}
        names |= {"overran": profiler.overran, "listeners": listeners}
    for i, listener in enumerate(listeners):
        names |= {f"listener_{i}": listener, f"call_{i}": call(listener)}
    body = _defaults(moment, listeners)
    if listeners or settle:
        body += ["error = None"]
        body += ["begun = perf_counter()"] if profiler else []
        for i, listener in enumerate(listeners):
            body += _call(moment, i, listener, profiling=profiling)
        body += _stop_clock(profiling=profiling) if profiler else []
        body += [f"error = settle(error, {moment.payload[0]})"] if settle else []
        body += ["if error is not None:", "    try:", "        raise error", "    finally:", "        del error"]
    first, *rest = moment.payload
    parameters = ", ".join([first, *(f"{item}=None" for item in rest)])
    source = "\n    ".join([f"def {moment.method}({parameters}):", *(body or ["pass"])])
    exec(compile(source, f"<proa: {moment.name}>", "exec"), names)
    function: Function = names[moment.method]
    return function


def _defaults(moment: Moment, listeners: Sequence[Listener]) -> list[str]:
    """Lines that fill in items which `fire(event, state)` leaves out, if a listener reads them."""
    lines = []
    for item in moment.payload:
        expression = state_default(item)
        counted = moment.index == item and any(listener.every > 1 for listener in listeners)
        if expression and (counted or any(listener.takes(item) for listener in listeners)):
            lines.append(f"if {item} is None: {item} = {expression}")
    return lines


def _call(moment: Moment, i: int, listener: Listener, *, profiling: bool) -> list[str]:
    lines = [
        "try:",
        f"    call_{i}({', '.join(listener.arguments)})",
        "except BaseException as raised:",
        f"    error = failed(listener_{i}, raised, error, {moment.payload[0]})",
    ]
    if listener.failures_in_a_row:  # only a listener that failed recently has a count to reset
        lines += ["else:", f"    listener_{i}.failures_in_a_row = 0"]
    if profiling:
        lines = ["since = perf_counter()", *lines, f"listener_{i}.profiled_seconds += perf_counter() - since"]
    if listener.every > 1:
        lines = [f"if not {_count(moment, i)} % {listener.every}:", *(f"    {line}" for line in lines)]
    return lines


def _count(moment: Moment, i: int) -> str:
    """The expression for the number of this firing, from 1."""
    firings = f"next(listener_{i}.firings)"
    if moment.index is None:
        return firings
    item = next((item for item in moment.payload if item in moment.index.split()), None)
    if item is None or state_default(item) is not None:
        return f"({moment.index} + 1)"
    return f"({firings} if {item} is None else {moment.index} + 1)"


def _stop_clock(*, profiling: bool) -> list[str]:
    lines = ["took = perf_counter() - begun", "clock.calls += 1", "clock.seconds += took"]
    if profiling:
        lines += ["profiled(moment, took)"]
    else:
        too_long = f"took > {OVERRUN_SECONDS} and took > {OVERRUN_SHARE} * (begun - clock.begun)"
        lines += [f"if {too_long}:", "    overran(moment, listeners)"]
    return [*lines, "clock.begun = begun"]
