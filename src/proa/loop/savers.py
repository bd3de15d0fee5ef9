"""Checkpoints of a loop: the savers that write them, and the state that a loop resumes from."""

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
    """The existing checkpoints, for hooks: a `CheckpointManager`."""

    @property
    def manifest_path(self) -> Path: ...
    @property
    def rows(self) -> list[ManifestRow]: ...


class SavedLoop(Protocol):
    """What a saver needs of the loop it saves."""

    @property
    def activity(self) -> Activity: ...

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, all that a resumed loop needs."""

    def stop_if_requested(self) -> None:
        """Save and raise `KeyboardInterrupt` if a stop was requested."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a loop continues from: what the loop had saved in it, and its row."""

    state: Mapping[str, Any]
    row: ManifestRow | None = None

    @property
    def name(self) -> str:
        """The value of `state.resumed_from`."""
        return self.row.name if self.row is not None else f"step_{self.state['loop']['global_step']}"

    def restore(self, state: LoopState) -> None:
        """Restore a fresh state, including a stop request: the run would have ended there."""
        for name, value in self.state["loop"].items():
            if name not in ("output_dir", "rank", "world_size", "resumed_from"):  # these are of this run
                setattr(state, name, value)
        state.resumed_from = self.name


class Saver(ABC):
    """Writes the checkpoints of a loop, due when `(step_idx + 1) % save_every == 0`."""

    def __init__(self, save_every: int = 0, *, stop: StopRequest | None = None) -> None:
        self.save_every = save_every
        self.stop = stop or StopRequest()
        """After a request here, the loop saves at its next boundary and stops."""
        self.loop: SavedLoop | None = None

    resumed: Resumed | None = None
    """The checkpoint that the loop continues from."""

    @property
    def manager(self) -> CheckpointList | None:
        """The manager behind it, for hooks: `state.checkpoint_mgr`."""
        return None

    def attach(self, loop: SavedLoop) -> None:
        """Called before the first step by the loop that is to be saved."""
        self.loop = loop

    def restore(self) -> None:  # noqa: B027 - optional
        """Restore weights and optimizer. Called after everything that needs the initial weights."""

    @abstractmethod
    def save(self, name: str, state: LoopState) -> ManifestRow | None:
        """Write a checkpoint and return its row; None if it is written in the background, and its row comes later."""

    def finished(self) -> list[ManifestRow]:
        """The rows of checkpoints that finished in the background since the last call."""
        return []

    def drain(self) -> None:  # noqa: B027 - only background savers wait
        """Wait for checkpoints that are being written."""

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
