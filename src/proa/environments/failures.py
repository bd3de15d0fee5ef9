"""How the surroundings of a trajectory fail: by its own doing, or with the worker that it shared."""

from __future__ import annotations

from ..data.facts import Ending
from ..errors import ProaError


class EnvironmentFailed(ProaError):  # noqa: N818 - says what happened
    """The environment of this trajectory cannot answer, which ends it. `ending` is how: `tool_failed`, or `timed_out`
    for an agent that passed its deadline."""

    def __init__(self, message: str, ending: Ending = "tool_failed") -> None:
        super().__init__(message, ending)
        self.ending: Ending = ending

    def __str__(self) -> str:
        return str(self.args[0])


class WorkerLostError(ProaError):
    """The worker died, or had to be ended, through no proven fault of this trajectory: begin it again from its seed.

    `was_calling` says whether a call of this trajectory was under way. If so it is a suspect, and begins again alone.
    """

    def __init__(self, message: str, was_calling: bool) -> None:
        super().__init__(message, was_calling)
        self.was_calling = was_calling

    def __str__(self) -> str:
        return str(self.args[0])


class Raised(Exception):  # noqa: N818 - carries what a function raised, which may be no Exception
    """A function of the user's raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
