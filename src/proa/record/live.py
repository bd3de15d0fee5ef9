"""The state of a run while it is running: who does what, who waits for what, where the samples are.

`live.json` in the run's folder is replaced about once a second. It is not part of the record: nothing depends on it,
and a failure to write it is logged and never ends the run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from ..data.versions import NO_VERSION
from ..private_files import write_private
from .run_folder import LIVE_NAME, BrokenRecordError, json_text, quoted, read_json

log = logging.getLogger("proa.record")


@dataclass(frozen=True, slots=True)
class WaitView:
    """A wait in progress."""

    owner: str
    reason: str
    """What it waits for, e.g. `lease 12, which maker_0 has`."""
    seconds: float
    """How long it has been waiting."""


@dataclass(frozen=True, slots=True)
class ActorView:
    """One trainer or maker."""

    name: str
    role: Literal["trainer", "maker"]
    health: str = "healthy"
    doing: str = ""
    since: float = 0.0
    """Seconds since the epoch; 0 if not known."""
    version: int = NO_VERSION
    """Of its weights; -1 if it has none yet."""
    leases: int = 0
    tokens: int = 0
    """Completion tokens that a maker generated or a trainer trained on."""
    restarts: int = 0
    """How often it was replaced after a failure."""
    reason: str = ""
    """Why it was last replaced."""
    log: str = ""
    """The file of its output, if it has one."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of work."""
    callback_errors: dict[str, int] = field(default_factory=dict)
    """How often each of its callbacks failed."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """The state of a run at one time."""

    time: float
    """Seconds since the epoch."""
    runtime: str = ""
    step: int = 0
    """Optimizer steps done, of `of`."""
    of: int = 0
    episode: int = 0
    version: int = 0
    versions: list[int] = field(default_factory=list)
    """Versions whose weights are kept because a lease may still need them."""
    ledger: dict[str, Any] = field(default_factory=dict)
    waits: list[WaitView] = field(default_factory=list)
    actors: list[ActorView] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LiveView:
        """The view from its JSON. Keys added by newer versions are ignored.

        >>> LiveView.from_dict({"time": 5.0, "step": 3, "weather": "fine"}).step
        3
        """
        known = _known(cls, content)
        known["waits"] = [WaitView(**_known(WaitView, wait)) for wait in known.get("waits", ())]
        known["actors"] = [ActorView(**_known(ActorView, actor)) for actor in known.get("actors", ())]
        return cls(**known)


class LiveFile:
    """Keeps `live.json` in a run's folder up to date, at most once every `every` seconds."""

    def __init__(self, folder: Path, every: float = 1.0) -> None:
        self.path = folder / LIVE_NAME
        self._every = every
        self._due_at = monotonic()
        self._complaints: set[type[Exception]] = set()

    def due(self) -> bool:
        """Whether it is time to write again; True starts the next interval."""
        now = monotonic()
        if now < self._due_at:
            return False
        self._due_at = now + self._every
        return True

    def look(self, at: Callable[[], LiveView]) -> None:
        """Take a view and replace the file. Failures, such as a full disk, are logged once."""
        try:
            text = json_text(at().to_dict())
            # Atomic, but not synced: nobody needs it after a power failure.
            temporary = self.path.with_name(f".{LIVE_NAME}.new")
            write_private(temporary, text)
            temporary.replace(self.path)
        except Exception as error:
            if type(error) not in self._complaints:
                self._complaints.add(type(error))
                traceback = None if isinstance(error, OSError) else error
                log.warning("%s is not up to date; the run continues: %s", self.path, error, exc_info=traceback)

    @staticmethod
    def read(folder: Path) -> LiveView | None:
        """The last view of the run in this folder, if any."""
        path = folder / LIVE_NAME
        try:
            return LiveView.from_dict(read_json(path))
        except FileNotFoundError:
            return None
        except TypeError as error:
            raise BrokenRecordError(f"{path} is broken: {error}") from error


_PLAIN: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "list": list, "dict": dict}


def _known(kind: type[Any], content: Any) -> dict[str, Any]:
    """The fields of a view in its JSON, after a check of their types."""
    if not isinstance(content, Mapping):
        raise TypeError(f"expected a {kind.__name__}, found {quoted(content)}")
    known = {}
    for one in fields(kind):
        if one.name not in content:
            continue
        known[one.name] = content[one.name]
        expected = str(one.type).partition("[")[0]
        if not isinstance(known[one.name], _PLAIN.get(expected, str)):
            raise TypeError(f"{one.name} must be of type {expected}, not {quoted(known[one.name])}")
        if isinstance(known[one.name], float) and not math.isfinite(known[one.name]):
            raise TypeError(f"{one.name} cannot be {quoted(known[one.name])}")
    return known
