"""A look at a run while it goes on: who does what, who waits for what, where the samples are.

`live.json` in the run's folder is replaced about once a second. It is a look, not a record: nothing is built on it, and
a look that fails costs a line in the log, never the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from ..private_files import write_private
from .run_folder import LIVE_NAME, BrokenRecordError, as_json, quoted, read_json

log = logging.getLogger("proa.record")


@dataclass(frozen=True, slots=True)
class WaitView:
    """Somebody who waits."""

    owner: str
    reason: str
    """What for, e.g. `lease 12, which maker_0 has`."""
    seconds: float
    """How long already, when it was looked at."""


@dataclass(frozen=True, slots=True)
class ActorView:
    """One trainer or maker."""

    name: str
    role: Literal["trainer", "maker"]
    health: str = "healthy"
    doing: str = ""
    since: float = 0.0
    """Seconds since the epoch; 0 is not known."""
    version: int = -1
    """Of the weights that it has; -1 is none yet."""
    leases: int = 0
    tokens: int = 0
    """Completion tokens: those a maker made, those a trainer trained on."""
    restarts: int = 0
    """How often somebody else at this place was lost."""
    reason: str = ""
    """Why the last one was."""
    log: str = ""
    """Where what it prints goes, if that is a file of its own."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of work."""
    callback_errors: dict[str, int] = field(default_factory=dict)
    """How often each of its callbacks failed."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """All of a run at one moment."""

    time: float
    """Seconds since the epoch."""
    runtime: str = ""
    step: int = 0
    """Optimizer steps done, of so many."""
    of: int = 0
    episode: int = 0
    version: int = 0
    versions: list[int] = field(default_factory=list)
    """Those whose weights are kept, because a lease may still name them."""
    ledger: dict[str, Any] = field(default_factory=dict)
    waits: list[WaitView] = field(default_factory=list)
    actors: list[ActorView] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LiveView:
        """The view that was written. Keys that a newer version added are left out.

        >>> LiveView.from_dict({"time": 5.0, "step": 3, "weather": "fine"}).step
        3
        """
        known = _known(cls, content)
        known["waits"] = [WaitView(**_known(WaitView, wait)) for wait in known.get("waits", ())]
        known["actors"] = [ActorView(**_known(ActorView, actor)) for actor in known.get("actors", ())]
        return cls(**known)


class LiveFile:
    """Keeps `live.json` in a run's folder up to date, at most once every so many seconds."""

    def __init__(self, folder: Path, every: float = 1.0) -> None:
        self.path = folder / LIVE_NAME
        self._every = every
        self._due_at = monotonic()
        self._complaints: set[type[Exception]] = set()

    def due(self) -> bool:
        """Whether it is time to look again; having said so, not before the next time."""
        now = monotonic()
        if now < self._due_at:
            return False
        self._due_at = now + self._every
        return True

    def look(self, at: Callable[[], LiveView]) -> None:
        """Take a view and replace the file. Whatever fails, be it a full disk, is logged once and ends no run."""
        try:
            text = as_json(at().to_dict())
            # Atomic, and not forced to the disk: after a power cut nobody needs it.
            beside = self.path.with_name(f".{LIVE_NAME}.new")
            write_private(beside, text)
            beside.replace(self.path)
        except Exception as error:
            if type(error) not in self._complaints:
                self._complaints.add(type(error))
                own = None if isinstance(error, OSError) else error  # what the system says needs no traceback
                log.warning("%s is not up to date, and the run goes on: %s", self.path, error, exc_info=own)

    @staticmethod
    def read(folder: Path) -> LiveView | None:
        """The last view of the run in this folder; None if there is none."""
        path = folder / LIVE_NAME
        try:
            return LiveView.from_dict(read_json(path))
        except FileNotFoundError:
            return None
        except TypeError as error:
            raise BrokenRecordError(f"{path} is broken: {error}") from error


_MOST = 1e15
"""No time, duration or count is that large."""
_PLAIN: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "list": list, "dict": dict}


def _known(kind: type[Any], content: Any) -> dict[str, Any]:
    """Of what was read, the part that a view of this kind has, each value of its type."""
    if not isinstance(content, Mapping):
        raise TypeError(f"{quoted(content)} stands where a {kind.__name__} should")
    known = {}
    for one in fields(kind):
        if one.name not in content:
            continue
        known[one.name] = content[one.name]
        expected = str(one.type).partition("[")[0]
        if not isinstance(known[one.name], _PLAIN.get(expected, str)):
            raise TypeError(f"{one.name} is {quoted(known[one.name])} and should be of type {expected}")
        if expected in ("float", "int") and not abs(known[one.name]) < _MOST:
            raise TypeError(f"{one.name} cannot be {quoted(known[one.name])}")
    return known
