"""Shows the output of a run's actors in the driver's: read from their files, here or on their machine."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..output import Piece, Printed, ShownOutput, redirect_output, write_lines
from .replies import Location, this_node_id

log = logging.getLogger("proa.runtime")

SHOW_SECONDS = 0.25
"""How often the driver looks for new lines."""
LAST_SECONDS = 5.0
"""How long the last lines may take to arrive from another machine."""


def keep_output(name: str) -> None:
    """In an actor: redirect its output to one file, beside Ray's two files."""
    folder = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        present = Path("/proc/self/fd/2").readlink()
        folder = present.parent if present.is_absolute() else folder  # not if it is a pipe
    run = ray.get_runtime_context().namespace.removeprefix("proa-")[-80:]
    with contextlib.suppress(OSError):  # then it stays in Ray's files
        redirect_output(folder / f"proa-{run}-{name}-{os.getpid()}.log")


class ActorOutputs:
    """Shows the output of all actors, including dead ones."""

    def __init__(self, *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self._here: list[ShownOutput] = []
        self._elsewhere: dict[str, _Elsewhere] = {}
        self._due_at = 0.0

    def follow(self, name: str, location: Location) -> None:
        """Show the output of an actor from now on, and what it has printed so far."""
        if not self.is_shown or not location.log:
            return
        if location.node_id == this_node_id() and os.access(location.log, os.R_OK):
            self._here.append(ShownOutput(name, location.log, location.log))
            return
        machine = self._elsewhere.setdefault(location.node_id, _Elsewhere(location))
        machine.outputs.append(ShownOutput(name, location.log, f"{location.log} on {location.node}"))

    def show(self) -> None:
        """Show new lines, at most every `SHOW_SECONDS`; never waits."""
        if monotonic() < self._due_at:
            return
        self._due_at = monotonic() + SHOW_SECONDS
        for output in self._here:
            write_lines(output.take(output.next_piece().read()))
        for machine in self._elsewhere.values():
            write_lines(machine.answer(0.0))
            machine.ask()

    def end(self, name: str) -> None:
        """An actor has ended: show its last lines."""
        machines = self._elsewhere.values()
        for output in [*self._here, *(output for machine in machines for output in machine.outputs)]:
            if output.name == name:
                output.end()

    def finish(self) -> None:
        """Show the remaining lines after all actors have ended."""
        until = monotonic() + LAST_SECONDS
        for machine in self._elsewhere.values():
            write_lines(machine.answer(until - monotonic()))
            for output in machine.outputs:
                output.end()
            machine.ask()
        for output in self._here:
            output.end()
            write_lines(output.take(output.next_piece().read()))
        for machine in self._elsewhere.values():
            write_lines(machine.answer(until - monotonic()))
            machine.mention_missing()
        self._here.clear()
        self._elsewhere.clear()


class _Elsewhere:
    """Output in files of another machine or another user, read there by tasks."""

    def __init__(self, location: Location) -> None:
        self.outputs: list[ShownOutput] = []
        self._node = location.node
        self._read: Any = ray.remote(num_cpus=0, max_retries=0)(read_pieces).options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(location.node_id, soft=False)
        )
        self._reading: Any = None
        self._asked: list[ShownOutput] = []
        self._is_gone = False

    def ask(self) -> None:
        """Request new lines, unless a request is open."""
        if self._reading is None and not self._is_gone:
            self._asked = list(self.outputs)
            self._reading = self._read.remote([output.next_piece() for output in self._asked])

    def answer(self, seconds: float) -> list[str]:
        """The lines of the open request, if they arrive within `seconds`."""
        if self._reading is None or not ray.wait([self._reading], timeout=max(0.0, seconds))[0]:
            return []
        reading, self._reading = self._reading, None
        try:
            pieces: list[Printed] = ray.get(reading)
        except ray.exceptions.RayError as error:
            self._is_gone = True
            log.warning("what actors on %s print is not shown any more: %s", self._node, str(error).partition("\n")[0])
            return []
        return [line for output, piece in zip(self._asked, pieces, strict=True) for line in output.take(piece)]

    def mention_missing(self) -> None:
        if self._reading is not None:
            where = ", ".join(output.where for output in self.outputs)
            log.warning("the last lines of actors did not come within %g s; they are in %s", LAST_SECONDS, where)


def read_pieces(pieces: Sequence[Piece]) -> list[Printed]:
    return [piece.read() for piece in pieces]
