"""Environments: what answers a model between its turns. Tools, classes of a user's own, adapters for other libraries'.

They run in worker processes with deadlines, or in threads; one that hangs, exits or eats memory costs its trajectory.
"""

from .failures import EnvironmentFailed, WorkerLostError
from .given import EnvironmentSource
from .pool import EnvironmentPool, Surroundings
from .protocol import Environment, Message, Start, Step
from .tools import ToolEnvironment

__all__ = [
    "Environment", "EnvironmentFailed", "EnvironmentPool", "EnvironmentSource", "Message", "Start", "Step",
    "Surroundings", "ToolEnvironment", "WorkerLostError",
]  # fmt: skip
