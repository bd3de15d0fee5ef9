"""Progress on the console: a live panel on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..data.loop import LoopArtifacts, TrainingBatch
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import ErrorPolicy, Priority
from ..visible import single_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

CURVE_POINTS = 60
FEW = 6
"""Metrics that are shown if nobody says which."""


class ConsoleProgress(Callback):
    """Shows steps, metrics, evals and checkpoints as they come.

    `metrics` names what to show, by default the first few that a step reports, and the first few that hooks log.
    `every` thins the plain lines out, None to about thirty; the last step is always shown.
    """

    priority = Priority.LOGGING
    error_policy = ErrorPolicy.DISABLE

    def __init__(
        self, *, every: int | None = 1, metrics: Sequence[str] | None = None, console: Console | None = None
    ) -> None:
        if every is not None and every < 1:
            raise CallbackConfigError(f"every={every}: show every so many steps, 1 or more")
        self._every = every
        self._shown = metrics
        self._console = console
        self._live: Live | None = None

    def on_train_start(self, state: LoopState) -> None:
        from ..terminal import JobConsole

        self._begun = perf_counter()
        self._curve = Curve()
        self._evals: dict[str, str] = {}
        self._step_values: dict[str, Any] = {}
        self._last_line = self._last_shown = ""
        console = self._console = self._console or JobConsole()
        if console.is_terminal:
            from rich.live import Live

            self._live = Live(self._panel(state, {}), console=console, refresh_per_second=8, transient=True)
            self._live.start()

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        if state.exception is not None:
            return
        self._step_values = dict(metrics)
        if "loss" in metrics:
            self._curve.add(float(metrics["loss"]))
        if self._live is not None:
            self._live.update(self._panel(state, metrics))
            return
        seconds = perf_counter() - self._begun
        values = self._last_shown = self._values(metrics, state.logged)
        self._last_line = f"step {step_idx}  {values}  ({_progress(state)}, {seconds:.1f} s)"
        if self._is_shown(state, step_idx):
            self._say(self._last_line)
            self._last_line = ""

    def on_metrics(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        self._step_values |= metrics
        if self._live is not None:
            self._live.update(self._panel(state, self._step_values))
        elif self._is_shown(state, step_idx):
            shown = self._last_shown.split("  ")  # a hook may have added some before the line was written
            values = [value for value in self._values(metrics, metrics).split("  ") if value not in shown]
            if any(values):
                self._say("  ".join([f"step {step_idx}", *values]))

    def _is_shown(self, state: LoopState, step_idx: int) -> bool:
        every = self._every or max(1, state.num_steps // 30)
        return (step_idx + 1) % every == 0 or state.global_step == state.num_steps

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        self._evals[eval_name] = self._values(metrics)
        self._say(f"eval {eval_name} after step {step_idx}: {self._evals[eval_name]}")

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._last_line:
            self._say(self._last_line)
        self._say(_ending(state, perf_counter() - self._begun))

    def _say(self, line: str) -> None:
        assert self._console is not None
        self._console.print(single_line(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _values(self, metrics: dict[str, Any], logged: Collection[str] = ()) -> str:
        """The metrics that are shown: by default the first few, and the first few of the `logged` ones."""
        own = [name for name in metrics if name in logged]
        names = self._shown or dict.fromkeys([*list(metrics)[:FEW], *own[:FEW]])
        values = [f"{name} {_number(metrics[name])}" for name in names if name in metrics]
        return single_line("  ".join([*values, *_troubles(metrics)]))

    def _panel(self, state: LoopState, metrics: dict[str, Any]) -> RenderableType:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        elapsed = perf_counter() - self._begun
        rows: list[RenderableType] = [Text(f"{_progress(state)}   {elapsed:.0f} s{_remaining(state, elapsed)}")]
        if state.num_steps:
            rows.append(ProgressBar(total=state.num_steps, completed=state.global_step))
        rows.append(Text(self._values(metrics, state.logged) or "waiting for the first step"))
        if len(self._curve.points) > 1:
            rows.append(Text(f"loss {sparkline(self._curve.points)}", style="cyan"))
        rows += [Text(f"eval {single_line(name)}: {values}") for name, values in self._evals.items()]
        grid = Table.grid(expand=True)
        for row in rows:
            grid.add_row(row)
        return Panel(grid, title="proa", title_align="left")


class Curve:
    """A run of any length in at most twice `CURVE_POINTS` points, each the mean of as many steps as the others.

    >>> curve = Curve(most=4)
    >>> for value in (1.0, 3.0, 5.0, 7.0, 9.0): curve.add(value)
    >>> curve.points
    [2.0, 6.0, 9.0]
    """

    def __init__(self, most: int = 2 * CURVE_POINTS) -> None:
        self._most = most
        self._steps = 1  # of a point
        self._points: list[float] = []
        self._open: list[float] = []

    def add(self, value: float) -> None:
        self._open.append(value)
        if len(self._open) < self._steps:
            return
        self._points.append(sum(self._open) / len(self._open))
        self._open = []
        if len(self._points) == self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(one + other) / 2 for one, other in pairs]
            self._steps *= 2

    @property
    def points(self) -> list[float]:
        """The last of them is of the steps that have come since the one before."""
        return self._points + ([sum(self._open) / len(self._open)] if self._open else [])


def sparkline(values: Sequence[float], width: int = CURVE_POINTS) -> str:
    """A curve of block characters, averaged down to `width` points; what is not finite is a gap.

    >>> sparkline([0.0, 1.0, 2.0, float("nan"), 7.0])
    '▁▂▃ █'
    """
    size = max(1, math.ceil(len(values) / width))
    points = [sum(chunk) / len(chunk) for i in range(0, len(values), size) if (chunk := values[i : i + size])]
    finite = [point for point in points if math.isfinite(point)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[int((p - low) / span * 7)] if math.isfinite(p) else " " for p in points)


def _progress(state: LoopState) -> str:
    of = f" of {state.num_steps}" if state.num_steps else ""
    one = state.global_step == 1 and not of
    return f"{state.global_step}{of} step{'' if one else 's'} done"


def _remaining(state: LoopState, elapsed: float) -> str:
    if not state.num_steps or not state.global_step:
        return ""
    return f", about {elapsed / state.global_step * (state.num_steps - state.global_step):.0f} s left"


def _ending(state: LoopState, seconds: float) -> str:
    done = f"{state.global_step} step{'' if state.global_step == 1 else 's'}, {seconds:.1f} s"
    if isinstance(state.exception, Exception):
        return f"failed after {done}: {type(state.exception).__name__}: {state.exception}"
    if state.should_stop:
        return f"stopped after {done}: {state.stop_reason} (by {state.stopped_by})"
    return f"done: {done}"


def _troubles(metrics: dict[str, Any]) -> list[str]:
    """What nobody asks to be shown, and everybody wants to know."""
    failed = metrics.get("reward_failed_fraction", 0)
    return [f"{100 * failed:.3g} % of rewards failed"] if isinstance(failed, (int, float)) and failed > 0 else []


def _number(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)
