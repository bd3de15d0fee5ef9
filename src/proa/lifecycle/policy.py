"""Settings of a callback: its place among others, and the effect of its failures."""

from __future__ import annotations

from enum import Enum, IntEnum


class Priority(IntEnum):
    """The order of callbacks at a moment, highest first. Integers between these work too."""

    METRICS = 300
    """Adds metrics that later callbacks read."""
    RECORD = 200
    """Writes the local record: a step's row is on disk before a user's hook for it runs."""
    DEFAULT = 0
    CONTROL = -100
    """Decides: early stopping, schedules."""
    CHECKPOINT = -200
    LOGGING = -300
    """Sends to the outside world."""


class ErrorPolicy(Enum):
    """What happens when a hook raises. Every failure is counted, whatever the policy."""

    RAISE = "raise"
    """The run ends with the error. The default for users' callbacks: a bug is found at once."""
    LOG = "log"
    """It is logged and training continues."""
    DISABLE = "disable"
    """Like LOG, and after three failures of a hook in a row the callback hears only the end of the run."""


FAILURES_BEFORE_DISABLING = 3
