"""How many tokens a step computes at once: fewer after memory was short.

Micro-batches of another size sum the same numbers in another order, so this is a decision of the run: it is in the
journal and in checkpoints, and a repeated run makes it at the same step.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import ProaError
from ..record.journal import JournalEntry

log = logging.getLogger("proa.learning")


class OutOfMemory(ProaError):  # noqa: N818 - says what happened
    """A step does not fit into the memory of its device."""


class StepMemory:
    """The token budget of a run, which may be halved once."""

    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        self._planned = token_budget
        self._journal: list[JournalEntry] = []
        self._script: dict[int, int] = {}
        self._step = 0

    def begin(self, step: int) -> None:
        """Begin a step, in a repeated run with the budget that it had."""
        self._step = step
        if step in self._script:
            self._decide(self._script[step])

    def shrink(self, error: torch.OutOfMemoryError, *, can_shrink: bool) -> None:
        """Halve the budget after a step that did not fit; raise if it was halved before, or unless `can_shrink`."""
        remedy = (
            "set model.gradient_checkpointing: true, a smaller optimizer.token_budget, or a smaller engine.cache_tokens"
        )
        if not can_shrink or self.token_budget != self._planned or self.token_budget < 2:
            raise OutOfMemory(
                f"step {self._step + 1} does not fit into the memory of its device, with {self.token_budget or 'all'} "
                f"tokens at once: {remedy} ({str(error).splitlines()[0]})"
            ) from error
        log.warning(
            "memory was short at step %d with %d tokens at once: from here on it is %d, which is slower and changes "
            "the last bits. To have it from the start, %s",
            self._step + 1, self.token_budget, self.token_budget // 2, remedy,
        )  # fmt: skip
        self._decide(self.token_budget // 2)
        error.__traceback__ = None  # it holds on to the activations
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _decide(self, tokens: int) -> None:
        self.token_budget = tokens
        self._journal.append({"kind": "token_budget", "step": self._step, "tokens": tokens})

    def take_journal(self) -> list[JournalEntry]:
        taken, self._journal = self._journal, []
        return taken

    def repeat(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._script = {entry["step"]: entry["tokens"] for entry in entries if entry["kind"] == "token_budget"}

    def state_dict(self) -> dict[str, int]:
        return {"planned": self._planned, "token_budget": self.token_budget}

    def load_state_dict(self, saved: Mapping[str, int]) -> None:
        """Restore the budget, unless the configured one has changed."""
        if saved["planned"] == self._planned:
            self.token_budget = saved["token_budget"]
