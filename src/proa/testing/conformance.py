"""Drives a trainer through success, stops, errors and interrupts at every moment, and checks each run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..lifecycle.hooks import EveryMoment
from ..lifecycle.manager import CallbackManager
from ..lifecycle.policy import ErrorPolicy
from .grammar import problems_in
from .recorder import Fired, Recorder, Witness

Train: TypeAlias = Callable[[CallbackManager], object]
"""Trains from scratch, for a few steps, with the callbacks it is given; called many times."""


# After a stop request at one of these, the step that was about to start may still run.
_BEFORE_STEP = {"train_start", "episode_start", "epoch_start", "wait_start", "wait_end"}


class Injected(Exception):  # noqa: N818 - not an error of the user's
    """The error that the check raises in a hook."""


class InjectedInterrupt(KeyboardInterrupt):
    """The interrupt that the check raises in a hook."""


@dataclass
class Conformance:
    """The result of the check. Printing it gives the verdict and all problems."""

    cases: int = 0
    problems: list[str] = field(default_factory=list)
    success: list[Fired] = field(default_factory=list)
    """The moments of the undisturbed run."""

    def __str__(self) -> str:
        verdict = "keeps" if not self.problems else "breaks"
        return "\n".join([f"the trainer {verdict} the lifecycle in {self.cases} runs", *self.problems])


def assert_lifecycle(train: Train, *, every_occurrence: bool = False) -> Conformance:
    """As `check_lifecycle`, raising AssertionError with all problems if there are any."""
    conformance = check_lifecycle(train, every_occurrence=every_occurrence)
    if conformance.problems:
        raise AssertionError(str(conformance))
    return conformance


def check_lifecycle(train: Train, *, every_occurrence: bool = False) -> Conformance:
    """Run a trainer to the end once, and then once for each disturbance, and check order and pairing.

    Disturbances are an exception, an interrupt and a request to stop, at the first and the last firing
    of every moment (`every_occurrence`: at each firing), and a logger that fails at all of them.
    """
    conformance = Conformance()
    undisturbed = _drive(train, "success")
    conformance.success = undisturbed.fired
    _add(conformance, undisturbed, _expect_clean_end(undisturbed))
    places = range(len(undisturbed.fired)) if every_occurrence else _extreme_places(undisturbed.fired)
    for place in places:
        where = f"#{place} {undisturbed.fired[place]}"
        run = _drive(train, f"exception at {where}", at=place, act=_raise_error)
        _add(conformance, run, _expect_error(run, undisturbed.fired[: place + 1]))
        run = _drive(train, f"interrupt at {where}", at=place, act=_raise_interrupt)
        _add(conformance, run, _expect_interrupt(run))
        run = _drive(train, f"stop at {where}", at=place, act=_request_stop)
        _add(conformance, run, _expect_stop(run, place))
    with _quiet("proa.lifecycle"):
        run = _drive(train, "a logger that always fails", bystander=_FailingLogger())
    _add(conformance, run, _expect_same(run, undisturbed))
    return conformance


@dataclass
class _Run:
    """One run of the trainer under one disturbance."""

    name: str
    fired: list[Fired]
    heard_last: list[Fired]
    at: int
    acted: bool
    raised: BaseException | None


class _FailingLogger(EveryMoment):
    error_policy = ErrorPolicy.LOG

    def on_moment(self, event: Any, payload: Any) -> None:
        raise Injected("this logger always fails")


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Hide the tracebacks of failures on purpose."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _drive(
    train: Train,
    name: str,
    *,
    at: int = -1,
    act: Callable[[Any], None] | None = None,
    bystander: EveryMoment | None = None,
) -> _Run:
    recorder, witness = Recorder(at=at, act=act), Witness()
    manager = CallbackManager([recorder, witness, *([bystander] if bystander else [])])
    raised: BaseException | None = None
    try:
        train(manager)
    except KeyboardInterrupt as interrupt:
        if not isinstance(interrupt, InjectedInterrupt):
            raise  # the user's own
        raised = interrupt
    except BaseException as error:
        raised = error
    return _Run(name, recorder.fired, witness.fired, at, recorder.acted, raised)


def _add(conformance: Conformance, run: _Run, problems: Iterator[str]) -> None:
    found = [*problems_in(run.fired), *problems]
    if run.at >= 0 and not run.acted:
        found.append("the moment did not fire this time: the trainer must do the same each time it is called")
    if _heard(run.fired) != _heard(run.heard_last):
        found.append("not all listeners heard the same moments")
    conformance.cases += 1
    conformance.problems += [f"{run.name}: {problem}" for problem in found]


def _heard(fired: Sequence[Fired]) -> tuple[list[str], int]:
    """The moments in order, and how often `metrics_logged` fired: at the end of training it does between listeners."""
    events: list[str] = [moment.event for moment in fired]
    return [event for event in events if event != "metrics_logged"], events.count("metrics_logged")


def _raise_error(_state: Any) -> None:
    raise Injected("injected by the conformance kit")


def _raise_interrupt(_state: Any) -> None:
    raise InjectedInterrupt("injected by the conformance kit")


def _request_stop(state: Any) -> None:
    state.stop_training("injected by the conformance kit")


def _expect_clean_end(run: _Run) -> Iterator[str]:
    if run.raised is not None:
        yield f"training raised {run.raised!r}"
    if not any(fired.event == "step_end" for fired in run.fired):
        yield "no step_end fired: the kit needs a run of a few steps"


def _expect_error(run: _Run, until: Sequence[Fired]) -> Iterator[str]:
    if not any(isinstance(error, Injected) for error in _chain(run.raised)):
        yield f"the error was not raised; training raised {run.raised!r}"
    errors = sum(fired.event == "error" for fired in run.fired)
    wanted = 0 if any(fired.event == "train_end" for fired in until) else 1  # by then the run is over
    if errors != wanted:
        yield f"error fired {errors} times, not {wanted}"


def _expect_interrupt(run: _Run) -> Iterator[str]:
    if not any(isinstance(error, KeyboardInterrupt) for error in _chain(run.raised)):
        yield f"the interrupt was not raised; training raised {run.raised!r}"
    if any(fired.event == "error" for fired in run.fired):
        yield "error fired: an interrupt is not an error"


def _expect_stop(run: _Run, place: int) -> Iterator[str]:
    if run.raised is not None:
        yield f"a stop is not an error, but training raised {run.raised!r}"
    further = sum(fired.event == "step_start" for fired in run.fired[place + 1 :])
    allowed = 1 if run.fired[place].event in _BEFORE_STEP else 0
    if further > allowed:
        yield f"{further} more steps were started after the stop was requested"


def _expect_same(run: _Run, undisturbed: _Run) -> Iterator[str]:
    if run.raised is not None:
        yield f"it ended the run: {run.raised!r}"
    if run.fired != undisturbed.fired:
        yield "it changed the moments of the run"


def _extreme_places(fired: Sequence[Fired]) -> list[int]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, moment in enumerate(fired):
        first.setdefault(moment.event, place)
        last[moment.event] = place
    return sorted({*first.values(), *last.values()})


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: a runtime may wrap the errors of other processes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
