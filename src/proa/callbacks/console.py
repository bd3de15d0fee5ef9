"""Progress on the console: a live panel on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..data.loop import LoopArtifacts, TrainingBatch
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import ErrorPolicy, Priority
from ..statistics.formatting import duration
from ..visible import print_visible, single_line
from .sample_lines import sample_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

CURVE_POINTS = 60
FEW = 6
"""Metrics that are shown if nobody says which."""
LEADING = ("reward", "loss", "reward_std", "completion_tokens", "entropy", "grad_norm", "learning_rate")
"""What people look at, in this order; the first that there is leads and is the curve."""
SPEED = ("maker.tokens_per_second", "staleness")


class ConsoleProgress(Callback):
    """Shows steps, metrics, evals and checkpoints as they come, on a terminal or in a notebook in place.

    Steps are those that are done, 1 to N. `metrics` names what to show, by default what leads (the reward), a few more,
    and the first few that hooks log. `every` thins the plain lines out, None to about
    thirty; the last step is always shown. `sample` shows one completion after the first step, with its prompt as the
    model was given it.
    """

    priority = Priority.LOGGING
    error_policy = ErrorPolicy.DISABLE

    def __init__(
        self,
        *,
        every: int | None = 1,
        metrics: Sequence[str] | None = None,
        sample: bool = True,
        console: Console | None = None,
    ) -> None:
        if every is not None and every < 1:
            raise CallbackConfigError(f"every={every}: show every so many steps, 1 or more")
        self._every = every
        self._shown = metrics
        self._wants_sample = sample
        self._sample: Mapping[str, Any] | None = None
        self._console = console
        self._live: Live | NotebookOutput | None = None

    def on_train_start(self, state: LoopState) -> None:
        from ..terminal import JobConsole

        self._begun = perf_counter()
        self._first_step = state.global_step  # of a resumed run; the others cost no time here
        self._curve = Curve()
        self._curve_name = ""
        self._evals: dict[str, list[str]] = {}
        self._step_values: dict[str, Any] = {}
        self._last_line = ""
        self._last_values: list[str] = []
        console = self._console = self._console or JobConsole()
        if console.is_jupyter:
            self._live = NotebookOutput()
            self._update(state, {})
        elif console.is_terminal:
            from rich.live import Live

            self._live = Live(self._panel(state, {}), console=console, refresh_per_second=REFRESHES, transient=True)
            self._live.start()

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        if state.exception is not None:
            return
        self._step_values = dict(metrics)
        leading = next((name for name in LEADING[:2] if name in metrics), None)
        if leading is not None and self._live is not None:  # plain lines have no curve
            self._curve_name = leading
            self._curve.add(float(metrics[leading]))
        if isinstance(self._live, NotebookOutput):
            self._live.update_step(self._text(state, metrics))
        elif self._live is not None:
            self._update(state, metrics)
        else:
            self._say_step(state, step_idx, metrics)
        if self._sample is not None and state.global_step == 1:
            for line in sample_lines(self._sample, self._console.width if self._console else NOTEBOOK_COLUMNS):
                self._say(line)
        self._sample = None

    def take_sample(self, rollout: Mapping[str, Any]) -> None:
        """A row of `rollouts/`, as the step is written down, which is before it is shown."""
        self._sample = rollout if self._wants_sample else None

    def _say_step(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        values = self._values(metrics, state.logged)
        first = 2 + len(_troubles(metrics))
        self._last_values = [*values[:first], *_speed(metrics), *values[first:]]
        elapsed = duration(perf_counter() - self._begun)
        self._last_line = self._line([_step(state, step_idx), *self._last_values], last=elapsed)
        if self._is_shown(state, step_idx):
            self._say(self._last_line)
            self._last_line = ""

    def on_metrics(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        self._step_values |= metrics
        if isinstance(self._live, NotebookOutput) and self._live.is_behind:
            return
        if self._live is not None:
            self._update(state, self._step_values)
        elif self._is_shown(state, step_idx):
            # A hook may have added some before the line was written.
            values = [value for value in self._values(metrics, metrics) if value not in self._last_values]
            if values:
                self._say(self._line([_step(state, step_idx), *values]))

    def _is_shown(self, state: LoopState, step_idx: int) -> bool:
        every = self._every or max(1, state.num_steps // 30)
        return (step_idx + 1) % every == 0 or state.global_step == state.num_steps

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        names = self._shown or list(metrics)[:FEW]
        values = [single_line(f"{name} {_number(metrics[name])}") for name in names if name in metrics]
        self._evals[eval_name] = values
        when = "before training" if step_idx < 0 else f"after step {step_idx + 1}"
        self._say(self._line([" ".join([f"eval {eval_name} {when}:", *values[:1]]), *values[1:]]))
        self._update(state, self._step_values)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        if self._live is not None:
            self._update(state, self._step_values)  # a notebook keeps what was shown last
            self._live.stop()
            self._live = None
        elif self._last_line:
            self._say(self._last_line)
        ending = single_line(_ending(state, perf_counter() - self._begun))
        self._say(self._line([ending]) if state.exception is not None else ending)  # an error is raised and shown whole

    def _update(self, state: LoopState, metrics: dict[str, Any]) -> None:
        if isinstance(self._live, NotebookOutput):
            self._live.update(self._text(state, metrics))
        elif self._live is not None:
            self._live.update(self._panel(state, metrics))

    def _say(self, line: str) -> None:
        assert self._console is not None
        if self._console.is_jupyter:  # a notebook joins what is printed; of what rich shows each line is an output
            print_visible(single_line(line))
        else:
            self._console.print(single_line(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _line(self, values: Sequence[str], last: str = "") -> str:
        """The values that fit into a line of the console, and `last` after them; all of them if somebody named them."""
        assert self._console is not None
        room = self._console.width - (len(last) + 2 if last else 0)
        fitting = list(values) if self._shown else those_that_fit([*map(single_line, values)], room)
        return "  ".join([*fitting, *([last] if last else [])])

    def _values(self, metrics: dict[str, Any], logged: Collection[str] = ()) -> list[str]:
        """The metrics that are shown: by default those that lead, what hooks logged, and the first of the others."""
        if self._shown:
            names = [name for name in self._shown if name in metrics]
        else:
            own = [name for name in metrics if name in logged][:FEW]
            leading = [name for name in LEADING if name in metrics and name not in own]
            others = [name for name in metrics if name not in (*leading, *own, *SPEED, *_TROUBLES) and "." not in name]
            few = [*leading, *others][:FEW]
            names = [*few[:2], *own, *few[2:]]
        values = [single_line(f"{name} {_number(metrics[name])}") for name in names]
        first = 1 if self._shown else sum(name in LEADING for name in names[:1])
        return [*values[:first], *_troubles(metrics), *values[first:]]

    def _rows(self, state: LoopState, metrics: dict[str, Any], columns: int) -> list[str]:
        """What is shown in place, in lines of at most so many columns."""
        elapsed = perf_counter() - self._begun
        rows = [f"{_progress(state)}   {_rounded(elapsed)}{_remaining(state, elapsed, self._first_step)}"]
        lines = fit(self._values(metrics, state.logged), columns)
        rows += ["  ".join(line) for line in lines] or ["waiting for the first step"]
        if speed := _speed(metrics):
            rows += ["  ".join(line) for line in fit(speed, columns)]
        if len(self._curve.points) > 1:
            points = sparkline(self._curve.points, max(1, min(CURVE_POINTS, columns - len(self._curve_name) - 1)))
            rows.append(f"{self._curve_name} {points}")
        for name, values in self._evals.items():
            first = " ".join([f"eval {single_line(name)}:", *values[:1]])
            rows += ["  ".join(line) for line in fit([first, *values[1:]], columns)]
        return rows

    def _text(self, state: LoopState, metrics: dict[str, Any]) -> str:
        return "\n".join(self._rows(state, metrics, NOTEBOOK_COLUMNS))

    def _panel(self, state: LoopState, metrics: dict[str, Any]) -> RenderableType:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        assert self._console is not None
        width = self._console.width - ECHO
        rows = self._rows(state, metrics, width - PANEL_BORDER)
        grid = Table.grid(expand=True)
        for place, row in enumerate(rows):
            grid.add_row(Text(row, no_wrap=True, overflow="ellipsis"))
            if place == 0 and state.num_steps:
                grid.add_row(ProgressBar(total=state.num_steps, completed=state.global_step))
        return Panel(grid, title="proa", title_align="left", width=width)


PANEL_BORDER = 4
"""Columns of a panel's border on both sides."""
ECHO = 4
"""Columns left free beside a panel: a terminal writes ^C there, which would else begin a line and leave a ghost."""
NOTEBOOK_COLUMNS = 100
REFRESHES = 8
"""How often a panel or a notebook's output may change in a second."""


class NotebookOutput:
    """One output of a notebook's cell, replaced when something changes.

    Each time is a message to the browser, so of steps that follow each other quickly only some are shown.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown_at = -math.inf
        self.is_behind = False
        """Whether the last step was not shown."""

    def update_step(self, text: str) -> None:
        self.is_behind = perf_counter() - self._shown_at < 1 / REFRESHES
        if not self.is_behind:
            self.update(text)

    def update(self, text: str) -> None:
        display = importlib.import_module("IPython.display").display  # only notebooks have it
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown_at = perf_counter()

    def stop(self) -> None:
        """What was shown last stays."""


def fit(values: Sequence[str], columns: int) -> list[list[str]]:
    """Values in lines of at most so many columns, two spaces apart; one that is longer is cut.

    >>> fit(["reward 0.5", "loss 0.25", "grad_norm 1"], 22)
    [['reward 0.5', 'loss 0.25'], ['grad_norm 1']]
    """
    lines: list[list[str]] = []
    used = 0
    for value in values:
        short = value if len(value) <= columns else f"{value[: columns - 1]}…"
        if lines and used + 2 + len(short) <= columns:
            lines[-1].append(short)
            used += 2 + len(short)
        else:
            lines.append([short])
            used = len(short)
    return lines


def those_that_fit(values: Sequence[str], columns: int) -> list[str]:
    """Values for one line of at most so many columns: the first, cut if it is longer, and each other that has room.

    >>> those_that_fit(["reward 0.5", "12.5 % of rewards failed", "loss 0.25"], 22)
    ['reward 0.5', 'loss 0.25']
    """
    kept: list[str] = []
    for value in values:
        if not kept:
            kept = fit([value], columns)[0]
        elif len("  ".join([*kept, value])) <= columns:
            kept.append(value)
    return kept


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


def _step(state: LoopState, step_idx: int) -> str:
    return f"step {step_idx + 1}{f' of {state.num_steps}' if state.num_steps else ''}"


def _remaining(state: LoopState, elapsed: float, first_step: int) -> str:
    done = state.global_step - first_step
    is_over = state.exception is not None or state.should_stop or state.global_step >= state.num_steps
    if done < 1 or is_over:
        return ""
    return f", about {_rounded(elapsed / done * (state.num_steps - state.global_step))} left"


def _rounded(seconds: float) -> str:
    """Whole seconds, so that a panel stands still between them; of a long run minutes, hours, days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds < 600 else duration(seconds)


def _speed(metrics: dict[str, Any]) -> list[str]:
    """How fast makers generate, how old what is trained on is, and who waits for whom."""
    values = []
    if (rate := metrics.get("maker.tokens_per_second")) is not None:
        values.append(f"{float(rate):.0f} tokens/s")
    if (staleness := metrics.get("staleness")) is not None:
        values.append(f"staleness {_number(staleness)}")
    maker = [float(metrics.get(f"maker.{name}_seconds", 0)) for name in ("wait", "generate", "score", "load")]
    trainer = [float(metrics.get(f"trainer.{name}_seconds", 0)) for name in ("wait", "compute", "publish")]
    if sum(maker) and sum(trainer):
        shares = [100 * times[0] / sum(times) for times in (trainer, maker)]
        values.append("waiting: trainer {:.0f} %, makers {:.0f} %".format(*shares))
    return values


def _ending(state: LoopState, seconds: float) -> str:
    took = duration(seconds) if seconds < 120 else _rounded(seconds)
    done = f"{state.global_step} step{'' if state.global_step == 1 else 's'}, {took}"
    if isinstance(state.exception, Exception):
        return f"failed after {done}: {type(state.exception).__name__}: {state.exception}"
    if state.exception is not None:
        return f"interrupted after {done}"
    if state.should_stop:
        return f"stopped after {done}: {state.stop_reason} (by {state.stopped_by})"
    return f"done: {done}"


_TROUBLES = {
    "reward_failed_fraction": "of rewards failed",
    "reward_zero_std_fraction": "equal groups",
    "truncated_fraction": "truncated",
}


def _troubles(metrics: dict[str, Any]) -> list[str]:
    """What nobody asks to be shown, and everybody wants to know."""
    shares = {name: metrics.get(name, 0) for name in _TROUBLES}
    found = {name: share for name, share in shares.items() if isinstance(share, (int, float)) and share > 0}
    return [f"{100 * share:.3g} % {_TROUBLES[name]}" for name, share in found.items()]


def _number(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)
