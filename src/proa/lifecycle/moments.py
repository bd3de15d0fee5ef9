"""The moments of a run: each one's name, scope and typed payload, defined here and nowhere else.

The body of a detached run, with every moment where it fires:

    train_start
    for each episode:
        episode_start
        for each epoch over the episode's batches (the first one takes fresh experience):
            epoch_start
            for each batch:
                (wait_start  wait_end)?  step_start  <optimizer step>  step_end
                (eval_start  eval_end)*  checkpoint_saved?
            epoch_end
        update_start  <push weights to the makers>  update_end
        episode_end
    checkpoint_saved (final)
    train_end

and, whatever ends it early: the `*_end` of everything open, innermost first, then `error` if it was
an error, then `train_end`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from ..data.experience import Experience
    from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
    from ..data.results import ArmResult, EvalResult, ExperimentResult, LogContext, RunResult
    from ..data.state import LoopState

# Spelt out because type checkers read it; a test holds it equal to the table below.
EventName = Literal[
    "train_start", "train_end", "episode_start", "episode_end", "epoch_start", "epoch_end",
    "step_start", "step_end", "update_start", "update_end", "checkpoint_saved", "eval_start", "eval_end",
    "error", "wait_start", "wait_end",
    "maker.loop_start", "maker.loop_end", "maker.batch_start", "maker.batch_end",
    "maker.make_experience_start", "maker.make_experience_end", "maker.send_start", "maker.send_end",
    "maker.weights_loaded", "maker.lost", "maker.recreated",
    "experiment_start", "experiment_end", "group_start", "run_start", "run_end", "benchmark_eval",
]  # fmt: skip
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)


class Scope(Enum):
    """Whose moment it is, and so which thread or process fires it."""

    TRAINER = "trainer"
    MAKER = "maker"
    FLEET = "fleet"
    """About a maker, but fired by the supervisor of the makers."""
    EXPERIMENT = "experiment"


@dataclass(frozen=True, slots=True)
class Moment:
    """One row of the table: what a moment is called, whose it is, and what it carries."""

    name: EventName
    method: str
    scope: Scope
    payload: tuple[str, ...]
    doc: str
    teardown: bool
    """Outer teardown: callbacks hear it in reverse order of registration within their band."""
    index: str | None
    """The expression that `every=` counts by, so that a resumed run counts on. None counts firings, and so does an
    expression whose item is None because the moment was fired with the state alone."""


Declared = TypeVar("Declared", bound=Callable[..., None])


def _moment(scope: Scope, *, teardown: bool = False, index: str | None = None) -> Callable[[Declared], Declared]:
    def declare(method: Declared) -> Declared:
        event = method.__name__
        if scope in (Scope.MAKER, Scope.FLEET):
            event = event.replace("maker_", "maker.", 1)
        payload = tuple(inspect.signature(method).parameters)[1:]
        doc = inspect.cleandoc(method.__doc__ or "")
        MOMENTS[event] = Moment(event, method.__name__, scope, payload, doc, teardown, index)  # type: ignore[arg-type]
        return method

    return declare


MOMENTS: dict[str, Moment] = {}
_EPOCHS = "getattr(state, 'episode', 0) * state.num_epochs + epoch"  # epochs start at 0 in every episode


class Moments:
    """One typed method per moment. A manager's `moments` is one of these, and calling a method fires it.

    The bodies here do nothing: a manager replaces each method on its own instance by one compiled for
    the listeners it has. So a call site is checked like any other call.
    """

    @_moment(Scope.TRAINER)
    def train_start(self, state: LoopState) -> None:
        """Training begins, before the first step."""

    @_moment(Scope.TRAINER, teardown=True)
    def train_end(self, state: LoopState, artifacts: LoopArtifacts | None) -> None:
        """Training is over, after the final checkpoint. Fires on every way out."""

    @_moment(Scope.TRAINER, index="episode")
    def episode_start(self, state: LoopState, episode: int) -> None:
        """An episode begins: `update_steps` fresh batches, then one push of weights."""

    @_moment(Scope.TRAINER, index="episode")
    def episode_end(self, state: LoopState, episode: int) -> None:
        """An episode is over, its weights pushed."""

    @_moment(Scope.TRAINER, index=_EPOCHS)
    def epoch_start(self, state: LoopState, epoch: int) -> None:
        """A pass over the batches begins; in an episode, epoch 0 takes fresh experience."""

    @_moment(Scope.TRAINER, index=_EPOCHS)
    def epoch_end(self, state: LoopState, epoch: int) -> None:
        """A pass over the batches is over."""

    @_moment(Scope.TRAINER, index="state.global_step")
    def step_start(self, state: LoopState) -> None:
        """The batch is there, and the optimizer step on it begins."""

    @_moment(Scope.TRAINER, index="step_idx")
    def step_end(
        self,
        state: LoopState,
        step_idx: int,
        batch: TrainingBatch | None,
        metrics: dict[str, float],
        experience: Experience | None,
    ) -> None:
        """The optimizer step is done. After a step that was cut short, `metrics` is empty."""

    @_moment(Scope.TRAINER, index="version - 1")
    def update_start(self, state: LoopState, version: int) -> None:
        """The push of weights `version` to the makers begins."""

    @_moment(Scope.TRAINER, index="version - 1")
    def update_end(self, state: LoopState, version: int) -> None:
        """The push is over."""

    @_moment(Scope.TRAINER)
    def checkpoint_saved(self, state: LoopState, row: ManifestRow) -> None:
        """A checkpoint is on disk and its manifest row is written."""

    @_moment(Scope.TRAINER)
    def eval_start(self, state: LoopState, step_idx: int, eval_name: str) -> None:
        """An evaluator starts on the weights after step `step_idx` (-1: before the first step)."""

    @_moment(Scope.TRAINER)
    def eval_end(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        """An evaluator is done."""

    @_moment(Scope.TRAINER, teardown=True)
    def error(self, state: LoopState, exception: BaseException) -> None:
        """An error is ending the run; `state.metrics["error"]` says which. Fires once, before `train_end`."""

    @_moment(Scope.TRAINER)
    def wait_start(self, state: LoopState) -> None:
        """The trainer has no batch and starts to wait for one."""

    @_moment(Scope.TRAINER)
    def wait_end(self, state: LoopState, seconds: float) -> None:
        """The wait is over, after `seconds`."""

    @_moment(Scope.MAKER)
    def maker_loop_start(self, state: LoopState) -> None:
        """A maker's working loop begins."""

    @_moment(Scope.MAKER)
    def maker_loop_end(self, state: LoopState) -> None:
        """A maker's working loop is over."""

    @_moment(Scope.MAKER)
    def maker_batch_start(self, state: LoopState) -> None:
        """A maker takes up a batch of prompts."""

    @_moment(Scope.MAKER)
    def maker_batch_end(self, state: LoopState) -> None:
        """A maker is done with a batch, its experience sent."""

    @_moment(Scope.MAKER)
    def maker_make_experience_start(self, state: LoopState) -> None:
        """Generation and scoring begin."""

    @_moment(Scope.MAKER)
    def maker_make_experience_end(self, state: LoopState, experience: Experience | None) -> None:
        """Generation and scoring are done; not in evals. A changed `reward` or `action_mask` is what is trained."""

    @_moment(Scope.MAKER)
    def maker_send_start(self, state: LoopState) -> None:
        """Sending to the trainers begins; a full buffer makes it wait."""

    @_moment(Scope.MAKER)
    def maker_send_end(self, state: LoopState) -> None:
        """The experience is handed over."""

    @_moment(Scope.MAKER)
    def maker_weights_loaded(self, state: LoopState, version: int) -> None:
        """A maker has switched to weights `version`, between two batches."""

    @_moment(Scope.FLEET)
    def maker_lost(self, maker: str, reason: str) -> None:
        """A maker died or was given up."""

    @_moment(Scope.FLEET)
    def maker_recreated(self, maker: str, reason: str) -> None:
        """A maker was started anew in place of a lost one."""

    @_moment(Scope.EXPERIMENT)
    def experiment_start(self, ctx: LogContext) -> None:
        """An experiment begins, before any arm."""

    @_moment(Scope.EXPERIMENT, teardown=True)
    def experiment_end(self, ctx: LogContext, result: ExperimentResult | None) -> None:
        """An experiment is over."""

    @_moment(Scope.EXPERIMENT)
    def group_start(self, ctx: LogContext, group_name: str) -> None:
        """A group of runs (repeats, or stages) is about to have its first run."""

    @_moment(Scope.EXPERIMENT)
    def run_start(self, ctx: LogContext) -> None:
        """A run begins, before training; `ctx.run_config` is set."""

    @_moment(Scope.EXPERIMENT, teardown=True)
    def run_end(self, ctx: LogContext, run_result: RunResult | None, arm: ArmResult | None) -> None:
        """A run is over, evals included. Fires for failed and cancelled runs too."""

    @_moment(Scope.EXPERIMENT)
    def benchmark_eval(
        self, ctx: LogContext, eval_result: EvalResult, predictions: list[dict[str, Any]], step: int | None = None
    ) -> None:
        """A benchmark was scored: in the loop (`step` is the step) or after training (`step` is None)."""


def state_default(payload_item: str) -> str | None:
    """The expression for an item that `fire(event, state)` left out; None leaves it None."""
    return {"metrics": "state.metrics", "step_idx": "state.global_step - 1"}.get(payload_item)
