"""Checkpoints of a loop: who writes them, and what a loop continues from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..actors.activity import Activity
from ..actors.stop import StopRequest
from ..data.loop import ManifestRow
from ..data.state import LoopState


class CheckpointList(Protocol):
    """The checkpoints that there are, for hooks: a `CheckpointManager`."""

    @property
    def manifest_path(self) -> Path: ...
    @property
    def rows(self) -> list[ManifestRow]: ...


class SavedLoop(Protocol):
    """What a saver needs of the loop it saves."""

    @property
    def activity(self) -> Activity: ...

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, all that a loop which continues from here needs."""

    def leave_if_asked(self) -> None:
        """Save and raise `KeyboardInterrupt` if somebody asked for that."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a loop continues from: what the loop had saved in it, and its row."""

    state: Mapping[str, Any]
    row: ManifestRow | None = None

    @property
    def name(self) -> str:
        """What `state.resumed_from` says."""
        return self.row.name if self.row is not None else f"step_{self.state['loop']['global_step']}"

    def restore(self, state: LoopState) -> None:
        """Make a fresh state what it was when the checkpoint was written.

        That a stop was asked for is restored too: the run would have ended there.
        """
        for name, value in self.state["loop"].items():
            if name not in ("output_dir", "rank", "world_size", "resumed_from"):  # these are of this run
                setattr(state, name, value)
        state.resumed_from = self.name


class Saver(ABC):
    """Writes the checkpoints of a loop, due when `(step_idx + 1) % save_every == 0`."""

    def __init__(self, save_every: int = 0, *, stop: StopRequest | None = None) -> None:
        self.save_every = save_every
        self.stop = stop or StopRequest()
        """When somebody asks here, the loop saves at its next boundary and leaves."""
        self.loop: SavedLoop | None = None

    resumed: Resumed | None = None
    """What the loop continues from."""

    @property
    def manager(self) -> CheckpointList | None:
        """The manager behind it, for hooks: `state.checkpoint_mgr`."""
        return None

    def attach(self, loop: SavedLoop) -> None:
        """Called before the first step by the loop that is to be saved."""
        self.loop = loop

    def restore(self) -> None:  # noqa: B027 - a loop alone has nothing beside its own state
        """Put back what the step works on, weights and optimizer, once all is made that is of the start alone."""

    @abstractmethod
    def save(self, name: str, state: LoopState) -> ManifestRow | None:
        """Write a checkpoint and return its row; None if it is written in the background, and its row comes later."""

    def finished(self) -> list[ManifestRow]:
        """The rows that were written in the background since this was last asked."""
        return []

    def drain(self) -> None:  # noqa: B027 - only who writes in the background has something to wait for
        """Wait for what is being written."""

    def mark_final(self, name: str, metrics: dict[str, Any]) -> ManifestRow | None:
        """Make the checkpoint of that name the final one, with these metrics; None if rows are not kept here."""
        return None


class SaveFunction(Saver):
    """A function that writes a checkpoint by name, for a loop of your own."""

    def __init__(self, function: Callable[[str, LoopState], ManifestRow | None], save_every: int = 0) -> None:
        super().__init__(save_every)
        self._function = function

    def save(self, name: str, state: LoopState) -> ManifestRow | None:
        return self._function(name, state)
