"""Stops training when a metric has stopped improving."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Any, Literal

from ..data.loop import LoopArtifacts, TrainingBatch
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import Priority
from ..lifecycle.spans import LOSS
from ..spelling import did_you_mean
from .logged_values import eval_metrics

log = logging.getLogger("proa.callbacks")


class EarlyStopping(Callback):
    """Stops when `metric` has not improved by more than `min_delta` in `patience` looks in a row.

    `metric` is a metric of steps (`loss`) or of evals, as `eval_name.metric` (`sort_digits.exact`); it is checked
    whenever it is reported. If the first step, or the first eval of that name, does not report it, a warning is logged.
    A value that is not finite is never an improvement. Each run starts with no best value; a resumed run continues.
    """

    priority = Priority.CONTROL

    def __init__(
        self,
        metric: str,
        *,
        mode: Literal["min", "max"] = "min",
        patience: int = 3,
        min_delta: float = 0.0,
        state_key: str | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise CallbackConfigError(f"mode={mode!r}: write 'min' for losses, 'max' for scores")
        if patience < 1 or min_delta < 0:
            raise CallbackConfigError(
                f"patience={patience}, min_delta={min_delta}: patience is 1 or more, min_delta 0 or more"
            )
        self.metric = metric
        self.mode = mode
        self.patience = patience
        self.min_delta = min_delta
        self.state_key = state_key or f"early_stopping:{metric}"
        self._reset()

    def _reset(self) -> None:
        self._seen: set[str] = set()
        self._warned = False
        self._last_look: int | None = None
        self.best: float | None = None
        self.best_step = -1
        self.looks_without_improvement = 0

    def on_train_start(self, state: LoopState) -> None:
        if state.resumed_from is None:
            self._reset()

    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None:
        self._look(state, step_idx, metrics)
        # The state also has what hooks have logged, if not after their first step. A metric with a dot, and the loss of
        # an eval, may come later.
        if step_idx and metrics and not metrics.get("skipped") and "." not in self.metric and self.metric != LOSS:
            self._warn_missing({*metrics, *state.metrics}, f"step {step_idx + 1}")

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        scores = eval_metrics(state, eval_name, metrics)
        self._look(state, step_idx, scores)
        own = self.metric.startswith(f"{eval_name}.")
        if metrics and (own or did_you_mean(self.metric, scores)):
            self._warn_missing(scores, f"the eval {eval_name} after step {step_idx + 1}")

    def on_metrics(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        if self._last_look != step_idx:  # else the step itself had it, or a hook added it before this one ran
            self._look(state, step_idx, metrics)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        if self._seen and self.metric not in self._seen:
            log.warning(
                "early stopping watched %r, which was never reported%s",
                self.metric, did_you_mean(self.metric, self._seen),
            )  # fmt: skip

    def _warn_missing(self, reported: Collection[str], where: str) -> None:
        if self._warned or self.metric in self._seen or self.metric in reported:
            return
        self._warned = True
        log.warning(
            "early stopping watches %r, which %s did not report%s (it reported: %s)",
            self.metric, where, did_you_mean(self.metric, reported), ", ".join(sorted(reported)),
        )  # fmt: skip

    def _look(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None:
        self._seen |= metrics.keys()
        if self.metric not in metrics:
            return
        value = float(metrics[self.metric])
        self._last_look = step_idx
        if self._improves(value):
            self.best, self.best_step, self.looks_without_improvement = value, step_idx, 0
            return
        self.looks_without_improvement += 1
        if self.looks_without_improvement >= self.patience:
            best = "never finite" if self.best is None else f"best {self.best:g} after step {self.best_step + 1}"
            state.stop_training(
                f"{self.metric} has not improved in {self.patience} looks (now {value:g}, {best})",
                by=type(self).__name__,
            )

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_step": self.best_step,
            "looks_without_improvement": self.looks_without_improvement,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.best = saved["best"]
        self.best_step = saved["best_step"]
        self.looks_without_improvement = saved["looks_without_improvement"]
