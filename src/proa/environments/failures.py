"""How environments fail: through their own trajectory's fault, or somebody else's."""

from __future__ import annotations

from ..data.facts import Ending
from ..errors import ProaError


class EnvironmentFailed(ProaError):  # noqa: N818 - an ending of a trajectory, not of the run
    """An environment cannot answer: this ends its trajectory, and nothing else."""

    def __init__(self, message: str, ending: Ending = "tool_failed") -> None:
        super().__init__(message)
        self.ending = ending


class WorkerLostError(ProaError):
    """The worker in which an environment lived is gone, through no proven fault of its trajectory: begin again."""

    def __init__(self, message: str, *, was_calling: bool) -> None:
        super().__init__(message)
        self.was_calling = was_calling
        """Whether a call of this trajectory was under way: it may have been the cause."""
