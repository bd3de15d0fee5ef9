"""The moments of a run: each one's name, scope and typed payload, defined here and nowhere else.

The body of a detached run, with every moment where it fires:

    train_start
    for each episode:
        episode_start
        for each epoch over the episode's batches (the first one takes fresh experience):
            epoch_start
            for each batch:
                (wait_start  wait_end)?
                step_start  <gradients>  gradients_ready  <optimizer step>  step_end
                (eval_start  eval_end)*  checkpoint_saved?
            epoch_end
        update_start  <push weights to the makers>  update_end
        episode_end
    checkpoint_saved (final)
    train_end

and, whatever ends it early: the `*_end` of everything open, innermost first, then `error` if it was
an error, then `train_end`. `metrics_logged` follows any of them at which a hook logged something.

A moment's docstring is the one description there is: the docstrings of hooks, `proa moments` and `docs/moments.md` are
made of it. Its first paragraph says when the moment fires; lines `item: text` after it describe items of the payload
that are not what `ITEMS` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeVar, get_args

# Not for type checkers alone: `typing.get_type_hints` finds these names here.
from ..data.experience import Experience
from ..data.facts import TrajectoryFacts, TurnFacts
from ..data.gradients import Gradients
from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
from ..data.results import ArmResult, EvalResult, ExperimentResult, LogContext, RunResult
from ..data.state import LoopState

# Spelt out because type checkers read it; a test holds it equal to the table below.
EventName = Literal[
    "train_start", "train_end", "episode_start", "episode_end", "epoch_start", "epoch_end",
    "step_start", "gradients_ready", "step_end", "metrics_logged", "update_start", "update_end", "checkpoint_saved",
    "eval_start", "eval_end", "error", "wait_start", "wait_end",
    "maker.loop_start", "maker.loop_end", "maker.batch_start", "maker.batch_end",
    "maker.make_experience_start", "maker.trajectory_start", "maker.turn_end", "maker.trajectory_end",
    "maker.make_experience_end", "maker.send_start", "maker.send_end",
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
    """When it fires."""
    items: dict[str, str]
    """What each item of the payload is."""
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
        doc, _, described = inspect.cleandoc(method.__doc__ or "").partition("\n\n")
        own = dict(line.split(": ", 1) for line in described.replace("\n    ", " ").splitlines())
        items = {item: own.pop(item) if item in own else ITEMS[item] for item in payload}
        assert not own, f"{event} has no item {', '.join(own)}"
        MOMENTS[event] = Moment(
            event, method.__name__, scope, payload, doc.replace("\n", " "), items, teardown, index  # type: ignore[arg-type]
        )  # fmt: skip
        return method

    return declare


ITEMS = {
    "state": "the state of the run, the same object at every moment; `state.log(name, value)` logs a metric",
    "artifacts": "the run's folder, its checkpoints, steps and time; None if they cannot be collected",
    "episode": "its number, from 0",
    "epoch": "its number, from 0, in an episode from 0 again",
    "batch": "what the step was taken on: a `TrainingBatch`, whose `data` is the experience in RL; None after a step "
    "without data, or one that was cut short before it had a batch",
    "experience": "the batch of experience in RL, which is `batch.data`; None where `batch` is, and in supervised runs",
    "gradients": "the gradients by parameter name, read only: summed over micro-batches and trainers, float32, not "
    "clipped; the names of a separate critic begin with `critic.`",
    "version": "the number of the weights: how often they have been pushed; the weights of the start are 0",
    "row": "the checkpoint: its name, step, paths and metrics",
    "eval_name": "the name of the eval",
    "exception": "what was raised",
    "maker": "the name of the maker, such as `maker_0`",
    "uid": "which sample it is, such as `12/3`: the third of prompt 12, from 0",
    "reason": "why, in words",
    "ctx": "what is known of the experiment and of its current run; `ctx.ids` is for loggers",
    "result": "the results of all arms, and the conclusion",
    "group_name": "the name of the group",
    "run_result": "how the run ended, and what it left behind",
    "arm": "the run as an arm of the experiment, with its evals",
    "eval_result": "the scores, with their parts and the time they took",
    "predictions": "one row for each completion that was scored",
    "step": "the `step_idx` of an eval in the loop; None after training",
}
"""What the items of payloads are, unless a moment says otherwise."""
MOMENTS: dict[str, Moment] = {}
_EPOCHS = "getattr(state, 'episode', 0) * state.num_epochs + epoch"  # epochs start at 0 in every episode


class Moments:
    """One typed method per moment. A manager's `moments` is one of these, and calling a method fires it.

    The bodies here do nothing: a manager replaces each method on its own instance by one compiled for
    the listeners it has. So a call site is checked like any other call.
    """

    @_moment(Scope.TRAINER)
    def train_start(self, state: LoopState) -> None:
        """Training begins: before baseline evals and the first step, once in each process that trains. In a resumed run
        `state.resumed_from` is set, and saved states of callbacks are loaded."""

    @_moment(Scope.TRAINER, teardown=True)
    def train_end(self, state: LoopState, artifacts: LoopArtifacts | None) -> None:
        """Training is over: after the final checkpoint, or after `error` or an interrupt. Fires once, on every way
        out."""

    @_moment(Scope.TRAINER, index="episode")
    def episode_start(self, state: LoopState, episode: int) -> None:
        """An episode begins: `update_steps` fresh batches, then one push of weights. Not in supervised runs."""

    @_moment(Scope.TRAINER, index="episode")
    def episode_end(self, state: LoopState, episode: int) -> None:
        """An episode is over, after the push of its weights, or because something ends the run."""

    @_moment(Scope.TRAINER, index=_EPOCHS)
    def epoch_start(self, state: LoopState, epoch: int) -> None:
        """A pass over the batches begins; in an episode, epoch 0 takes fresh experience."""

    @_moment(Scope.TRAINER, index=_EPOCHS)
    def epoch_end(self, state: LoopState, epoch: int) -> None:
        """A pass over the batches is over, after the last step's evals and checkpoint."""

    @_moment(Scope.TRAINER, index="state.global_step")
    def step_start(self, state: LoopState) -> None:
        """The batch is there, and the optimizer step on it begins; `state.global_step` is the index of this step."""

    @_moment(Scope.TRAINER, index="state.global_step")
    def gradients_ready(self, state: LoopState, gradients: Gradients | None) -> None:
        """The gradients of a step are complete: after the last backward pass and the sum over trainers, before they are
        clipped and the optimizer steps. Also in a step that is then skipped because they are not finite."""

    @_moment(Scope.TRAINER, index="step_idx")
    def step_end(
        self,
        state: LoopState,
        step_idx: int,
        batch: TrainingBatch | None,
        metrics: dict[str, float],
        experience: Experience | None,
    ) -> None:
        """The optimizer step is done and counted, before its evals and its checkpoint; also when a step was cut short,
        with `state.exception` set and nothing counted.

        step_idx: the index of this step, from 0
        metrics: the step's metrics by name: `loss`, `grad_norm`, `learning_rate`, …; empty after a step that was cut
            short. What a hook adds is recorded too"""

    @_moment(Scope.TRAINER, index="step_idx")
    def metrics_logged(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        """Hooks logged metrics, or added some to those of a step, that are not in the step's row: right after the
        moment at which they did, as a further row of the same step. What is logged here follows with the next row.

        step_idx: the index of the step that they belong to
        metrics: the further metrics by name"""

    @_moment(Scope.TRAINER, index="version - 1")
    def update_start(self, state: LoopState, version: int) -> None:
        """The push of weights to the makers begins, at the end of an episode."""

    @_moment(Scope.TRAINER, index="version - 1")
    def update_end(self, state: LoopState, version: int) -> None:
        """The push is over; if it succeeded, `state.policy_version` is `version`."""

    @_moment(Scope.TRAINER)
    def checkpoint_saved(self, state: LoopState, row: ManifestRow) -> None:
        """A checkpoint is on disk and its manifest row is written; one that is saved in the background fires at the
        first boundary between steps after that. A resumed run fires it for the checkpoint that it starts from."""

    @_moment(Scope.TRAINER)
    def eval_start(self, state: LoopState, step_idx: int, eval_name: str) -> None:
        """An evaluator starts, after a step that it is due at, before the first step, or after the last.

        step_idx: the index of the step whose weights are scored; -1 before the first"""

    @_moment(Scope.TRAINER)
    def eval_end(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        """An evaluator is done; `state.metrics` has its scores as `<eval_name>.<metric>`.

        step_idx: the index of the step whose weights were scored; -1 before the first
        metrics: the scores by name; empty if the eval failed"""

    @_moment(Scope.TRAINER, teardown=True)
    def error(self, state: LoopState, exception: BaseException) -> None:
        """An error is ending the run; `state.metrics["error"]` says which. Fires once, before `train_end`, and not for
        an interrupt."""

    @_moment(Scope.TRAINER)
    def wait_start(self, state: LoopState) -> None:
        """The trainer has no batch and starts to wait for one."""

    @_moment(Scope.TRAINER)
    def wait_end(self, state: LoopState, seconds: float) -> None:
        """The wait is over: the batch is there, or something ends the run.

        seconds: how long the wait was"""

    @_moment(Scope.MAKER)
    def maker_loop_start(self, state: LoopState) -> None:
        """A maker's working loop begins, before its first batch.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_loop_end(self, state: LoopState) -> None:
        """A maker's working loop is over, on every way out but the death of its process.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_batch_start(self, state: LoopState) -> None:
        """A maker takes up a batch of prompts, with the weights it needs loaded.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_batch_end(self, state: LoopState) -> None:
        """A maker is done with a batch: its experience is sent, or it failed.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_make_experience_start(self, state: LoopState) -> None:
        """Generation and scoring of a batch begin; not in evals.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_trajectory_start(self, state: LoopState, uid: str) -> None:
        """A conversation with an environment began. It is over by now: trajectories overlap, and their hooks fire one
        after the other when the batch that they belong to is made; not in evals.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_turn_end(self, state: LoopState, uid: str, turn: TurnFacts) -> None:
        """The model has spoken in a conversation, and its environment has answered or ended it.

        turn: its number from 0, the model's message, what the environment gave for it, and its tokens
        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_trajectory_end(self, state: LoopState, uid: str, trajectory: TrajectoryFacts | None) -> None:
        """A conversation with an environment has ended, in one way or another.

        trajectory: how it ended, its messages, rewards and counts; None after a hook of one of its turns raised
        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_make_experience_end(self, state: LoopState, experience: Experience | None) -> None:
        """Generation and scoring of a batch are done, before it is sent; not in evals. A changed `reward` or
        `action_mask` is what is trained.

        experience: the batch as it was made; after a failure it has no rows: `len(experience)` is 0
        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_send_start(self, state: LoopState) -> None:
        """Sending to the trainers begins; a full buffer makes it wait.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_send_end(self, state: LoopState) -> None:
        """The experience is handed over, or could not be.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.MAKER)
    def maker_weights_loaded(self, state: LoopState, version: int) -> None:
        """A maker has switched to other weights, between two batches.

        state: the maker's own state; `state.global_step` counts its batches"""

    @_moment(Scope.FLEET)
    def maker_lost(self, maker: str, reason: str) -> None:
        """A maker died or was given up; its leases go to others."""

    @_moment(Scope.FLEET)
    def maker_recreated(self, maker: str, reason: str) -> None:
        """A maker was started anew in place of a lost one.

        reason: why the one before was lost, in words"""

    @_moment(Scope.EXPERIMENT)
    def experiment_start(self, ctx: LogContext) -> None:
        """An experiment begins, before its first run; asyncio tasks that are started here run before it."""

    @_moment(Scope.EXPERIMENT, teardown=True)
    def experiment_end(self, ctx: LogContext, result: ExperimentResult | None) -> None:
        """An experiment is over, after its last run; fires on every way out."""

    @_moment(Scope.EXPERIMENT)
    def group_start(self, ctx: LogContext, group_name: str) -> None:
        """A group of runs (repeats, or stages) is about to have its first run; once for each group."""

    @_moment(Scope.EXPERIMENT)
    def run_start(self, ctx: LogContext) -> None:
        """A run begins, before training; `ctx.run_config` and `ctx.run_key` are set."""

    @_moment(Scope.EXPERIMENT, teardown=True)
    def run_end(self, ctx: LogContext, run_result: RunResult | None, arm: ArmResult | None) -> None:
        """A run is over, evals after training included. Fires for failed and cancelled runs too."""

    @_moment(Scope.EXPERIMENT)
    def benchmark_eval(
        self, ctx: LogContext, eval_result: EvalResult, predictions: list[dict[str, Any]], step: int | None = None
    ) -> None:
        """A benchmark was scored: in the loop, after its `eval_end`, or after training."""


def state_default(payload_item: str) -> str | None:
    """The expression for an item that `fire(event, state)` left out; None leaves it None."""
    return {"metrics": "state.metrics", "step_idx": "state.global_step - 1"}.get(payload_item)
