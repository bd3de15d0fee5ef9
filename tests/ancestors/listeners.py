"""Callbacks that override every documented hook, as the ancestors' pages spell them, and keep what they are given."""

import contextlib
import copy
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proa import (
    ArmResult,
    Callback,
    CallbackManager,
    EvalResult,
    Experience,
    ExperimentResult,
    LogContext,
    LoopArtifacts,
    LoopState,
    MakerCallback,
    ManifestRow,
    RunResult,
    TrainerCallback,
    TrainingBatch,
)

EVENTS = (
    "train_start", "train_end", "epoch_start", "epoch_end", "step_start", "step_end", "eval_start", "eval_end",
    "checkpoint_saved", "error",
)  # fmt: skip
"""The ten events of xaytune."""


@dataclass
class Call:
    """One call of a hook, or of a function for an event."""

    hook: str
    given: dict[str, Any]
    state: LoopState | None = None
    """A copy of the state as it was."""
    ids: dict[str, Any] = field(default_factory=dict)
    """What was in the context's `ids`."""
    on_disk: dict[str, Any] = field(default_factory=dict)
    """What the run's files said at that time."""


class Heard(list[Call]):
    """All calls in order."""

    def named(self, *hooks: str) -> list[Call]:
        return [call for call in self if call.hook in hooks]

    @property
    def names(self) -> list[str]:
        return [call.hook for call in self]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.names)

    def place(self, hook: str) -> int:
        """The index of the only call of a hook."""
        (place,) = (place for place, call in enumerate(self) if call.hook == hook)
        return place


class FromTrainerPage(TrainerCallback):
    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def on_fit_start(self) -> None:
        self.heard.append(Call("on_fit_start", {}))

    def on_fit_end(self) -> None:
        self.heard.append(Call("on_fit_end", {}))

    def on_episode_start(self, episode: int) -> None:
        self.heard.append(Call("on_episode_start", {"episode": episode}))

    def on_episode_end(self, episode: int) -> None:
        self.heard.append(Call("on_episode_end", {"episode": episode}))

    def on_epoch_start(self, epoch: int) -> None:
        self.heard.append(Call("on_epoch_start", {"epoch": epoch}))

    def on_epoch_end(self, epoch: int) -> None:
        self.heard.append(Call("on_epoch_end", {"epoch": epoch}))

    def on_batch_start(self) -> None:
        self.heard.append(Call("on_batch_start", {}))

    def on_batch_end(self, metrics: dict, experience: Experience) -> None:
        self.heard.append(Call("on_batch_end", {"metrics": metrics, "experience": experience}))

    def on_update_start(self) -> None:
        self.heard.append(Call("on_update_start", {}))

    def on_update_end(self) -> None:
        self.heard.append(Call("on_update_end", {}))


class FromMakerPage(MakerCallback):
    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def on_loop_start(self) -> None:
        self.heard.append(Call("on_loop_start", {}))

    def on_loop_end(self) -> None:
        self.heard.append(Call("on_loop_end", {}))

    def on_make_experience_start(self) -> None:
        self.heard.append(Call("on_make_experience_start", {}))

    def on_make_experience_end(self, experience: Experience) -> None:
        self.heard.append(Call("on_make_experience_end", {"experience": experience}))

    def on_send_start(self) -> None:
        self.heard.append(Call("on_send_start", {}))

    def on_send_end(self) -> None:
        self.heard.append(Call("on_send_end", {}))

    def on_batch_start(self) -> None:
        self.heard.append(Call("on_batch_start", {}))

    def on_batch_end(self) -> None:
        self.heard.append(Call("on_batch_end", {}))


class FromCallbackPage(Callback):
    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def on_train_start(self, state: LoopState) -> None:
        self.note("on_train_start", state)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        self.note("on_train_end", state, artifacts=artifacts)

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        self.note("on_step_end", state, step_idx=step_idx, batch=batch, metrics=dict(metrics))

    def on_checkpoint(self, state: LoopState, row: ManifestRow) -> None:
        self.note("on_checkpoint", state, row=row)

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        self.note("on_eval", state, step_idx=step_idx, eval_name=eval_name, metrics=dict(metrics))

    def on_experiment_start(self, ctx: LogContext) -> None:
        ctx.ids["experiment_id"] = "experiment 1"
        self.note("on_experiment_start", ctx=ctx)

    def on_group_start(self, ctx: LogContext, group_name: str) -> None:
        ctx.ids[f"group:{group_name}"] = f"group {group_name}"
        self.note("on_group_start", ctx=ctx, group_name=group_name)

    def on_run_start(self, ctx: LogContext) -> None:
        self.note("on_run_start", ctx=ctx)
        ctx.ids["run_id"] = f"run {ctx.run_key}"

    def on_benchmark_eval(
        self,
        ctx: LogContext,
        eval_result: EvalResult,
        predictions: list[dict],
        *,
        step: int | None = None,
    ) -> None:
        self.note("on_benchmark_eval", ctx=ctx, eval_result=eval_result, predictions=predictions, step=step)

    def on_run_end(self, ctx: LogContext, run_result: RunResult, arm: ArmResult) -> None:
        self.note("on_run_end", ctx=ctx, run_result=run_result, arm=arm)

    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult) -> None:
        self.note("on_experiment_end", ctx=ctx, result=result)

    def note(self, hook: str, state: LoopState | None = None, **given: Any) -> None:
        ctx = given.get("ctx") or (state and state.ctx)
        if "ctx" in given:
            given["ctx"] = copy.copy(ctx)
        self.heard.append(Call(hook, given, _copy(state), dict(ctx.ids), _on_disk(ctx.output_dir)))


def event_functions(heard: Heard, *events: str) -> CallbackManager:
    """A manager with one function for each event."""
    manager = CallbackManager()
    for event in events or EVENTS:

        @manager.on(event)
        def listen(state: LoopState, *, event: str = event) -> None:
            heard.append(Call(event, {"state": state}, _copy(state)))

    return manager


def _copy(state: LoopState | None) -> LoopState | None:
    if state is None:
        return None
    copied = copy.copy(state)
    copied.metrics = dict(state.metrics)
    return copied


def _on_disk(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"steps": [], "checkpoints": [], "status": None}
    with contextlib.suppress(FileNotFoundError):
        found["steps"] = [row["step"] for row in _rows(folder / "metrics.jsonl") if "loss" in row]
    with contextlib.suppress(FileNotFoundError):
        found["checkpoints"] = [row["name"] for row in _rows(folder / "checkpoints.jsonl")]
    with contextlib.suppress(FileNotFoundError):
        found["status"] = json.loads((folder / "run.json").read_text())["status"]
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
