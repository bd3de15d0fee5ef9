"""The trials, in a child process and within a deadline: a crash, a hang or a kill is a finding like any other."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..processes.child import Child
from .trials import DOING, Found, TrialSettings

if TYPE_CHECKING:
    from typing import Self

_SIGNALS = {
    "killed by SIGILL": "it crashed with an illegal instruction: this processor lacks what it was compiled for",
    "killed by SIGSEGV": "it crashed (segmentation fault)",
    "killed by SIGKILL": "it was killed, most often because memory ran out",
    "killed by SIGABRT": "it aborted",
}


class Patient:
    """This machine with one model. Trials take turns, so that none disturbs another's figures. They share a process,
    because importing torch takes seconds; where one has ended it, the next begins another."""

    def __init__(self, settings: TrialSettings, seconds: float) -> None:
        self._settings = settings
        self._end = time.monotonic() + seconds
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "printed.txt"
        self._child: Child | None = None
        self._lines: Iterator[Found] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()
        self._folder.cleanup()

    def try_(self, trial: str, *, alone: bool = False, **arguments: Any) -> Found:
        """What a trial found; where it did not come to its end, why, as its `error`. One that is alone leaves nothing
        behind in the process of others."""
        if time.monotonic() >= self._end:
            return {"error": "not tried: the time was up; allow more with --seconds", "late": True}
        if alone:
            self._end_child()
        found: Found = {}
        doing = "starting"
        try:
            for line in self._ask({"trial": trial, "arguments": arguments}):
                doing = line.pop(DOING, doing)
                _add(found, line)
                if "done" in found or "error" in found:
                    found.pop("done", None)
                    return found
            ended = self._end_child(kill=False)
            why = f"{_SIGNALS.get(ended, f'it ended ({ended})')}, while it was {doing}{_last(self._log)}"
            return {**found, "error": why}
        except TimeoutError:
            self._end_child()
            return {**found, "error": f"the time was up while it was {doing}; allow more with --seconds", "late": True}
        finally:
            if alone:
                self._end_child()

    def _ask(self, asked: Mapping[str, Any]) -> Iterator[Found]:
        """Lines of what is found, until the trial is over or the process is gone."""
        if self._child is None:
            self._child = Child("proa.doctor.trials")
            self._lines = _lines(self._child.endpoint, self._end)
            self._send({"settings": asdict(self._settings), "log": str(self._log)})
        self._send(asked)
        return self._lines

    def _send(self, content: Mapping[str, Any]) -> None:
        assert self._child is not None
        with suppress(OSError):  # it is gone: that is found when its lines are read
            self._child.endpoint.sendall(json.dumps(content).encode() + b"\n")

    def _end_child(self, *, kill: bool = True) -> str:
        """How the process ended, if there was one."""
        if self._child is None:
            return ""
        child, self._child = self._child, None
        ended = child.wait() if not kill else ""
        child.kill()  # and what it started
        child.wait()
        child.endpoint.close()
        return ended


def _lines(endpoint: socket.socket, end: float) -> Iterator[Found]:
    """What comes, line by line, until the other side is gone; a TimeoutError past the deadline."""
    received = b""
    while True:
        endpoint.settimeout(max(0.001, end - time.monotonic()))
        try:
            piece = endpoint.recv(1 << 16)
        except ConnectionError:
            return
        if not piece:
            return
        received += piece
        *whole, received = received.split(b"\n")
        for line in whole:
            yield json.loads(line)


def _add(found: Found, line: Found) -> None:
    """Add what a line says; figures of one kind come one by one."""
    for key, value in line.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key].update(value)
        else:
            found[key] = value


def _last(log: Path) -> str:
    """The last line that it printed, if it did."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        if said := [line for line in lines if line]:
            return f"; its last line: {said[-1][:200]}"
    return ""
