"""How many steps of a run changed the weights; a run in which none did has failed, even without an error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import NothingToTrainOnError

log = logging.getLogger("proa.loop")

ALIKE_STEPS = 5
"""After this many steps in a row without differences within groups there is a warning."""


@dataclass
class TrainedSteps:
    """Counts steps by their metrics, of which `skipped` marks a step that did not train.

    >>> steps = TrainedSteps()
    >>> steps.note(0, {"loss": float("nan"), "skipped": 1.0})
    >>> steps.refuse_idle_run(1)
    Traceback (most recent call last):
    proa.errors.NothingToTrainOnError: the run's only step trained on nothing; it was skipped in step 1: loss nan
    """

    trained: int = 0
    first_skip: str = ""
    """The first step that was skipped, with its loss and gradient norm."""
    moved: bool = False
    """Whether one of them had a gradient other than 0."""
    alike_in_a_row: int = 0
    """How many of the last batches had the same reward for all completions of each prompt."""

    def note(self, index: int, metrics: Mapping[str, Any]) -> None:
        if not metrics.get("skipped"):
            self.trained += 1
            self.moved = self.moved or metrics.get("grad_norm") != 0.0
        elif not self.first_skip:
            numbers = [f"{name} {metrics[name]}" for name in ("loss", "grad_norm") if name in metrics]
            self.first_skip = f"in step {index + 1}: {', '.join(numbers) or 'it gave no numbers'}"

    def note_groups(self, metrics: Mapping[str, Any]) -> None:
        """Warn if an algorithm that compares completions of a prompt had nothing to compare for `ALIKE_STEPS` steps."""
        if "reward_zero_std_fraction" not in metrics:
            return  # another epoch on a batch that has been counted
        is_alike = metrics["reward_zero_std_fraction"] == 1.0
        self.alike_in_a_row = self.alike_in_a_row + 1 if is_alike else 0
        if self.alike_in_a_row == ALIKE_STEPS:
            cut_off = 100 * metrics.get("truncated_fraction", 0.0)
            log.warning(
                "in the last %d steps all completions of each prompt got the same reward (their mean is %.3g), so "
                "there was nothing to compare and nothing to learn. Read some completions (proa report shows them): "
                "does the reward find the answer in them, are they cut off by sampling.max_new_tokens (%.3g %% were), "
                "are the prompts far too hard or too easy for this model?",
                ALIKE_STEPS, metrics.get("reward", float("nan")), cut_off,
            )  # fmt: skip

    def refuse_idle_run(self, steps: int, why: str = "", why_unmoved: str = "") -> None:
        """Raise if there were steps and none trained; warn if every gradient was 0.

        `why` and `why_unmoved` are added to the sentences.
        """
        if steps and not self.trained:
            made = "the run's only step" if steps == 1 else f"none of the run's {steps} steps"
            if self.first_skip:
                why += f"; {'it was skipped' if steps == 1 else 'some were skipped, the first'} {self.first_skip}"
            raise NothingToTrainOnError(f"{made} trained on {'nothing' if steps == 1 else 'anything'}{why}")
        if steps and not self.moved:
            log.warning("the gradient of every step was 0, so nothing was learned%s", why_unmoved)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any] | None) -> TrainedSteps:
        """Version 0.1 did not count them; its runs are taken to have trained."""
        return cls(1, moved=True) if saved is None else cls(**saved)
