"""What a callback may say of itself: when it runs among others, and what its failure means."""

from __future__ import annotations

from enum import Enum, IntEnum


class Priority(IntEnum):
    """Bands in which callbacks hear a moment, highest first. Any integer between two bands works too."""

    METRICS = 300
    """Adds to the metrics that everyone after it reads."""
    RECORD = 200
    """Writes the local record: a step's row is on disk before a user's hook for it runs."""
    DEFAULT = 0
    CONTROL = -100
    """Decides: early stopping, schedules."""
    CHECKPOINT = -200
    LOGGING = -300
    """Tells the outside world."""


class ErrorPolicy(Enum):
    """What happens when a hook raises. Every failure is counted, whatever the policy."""

    RAISE = "raise"
    """The run ends with the error. The default for users' callbacks: a bug is found at once."""
    LOG = "log"
    """It is logged and training goes on."""
    DISABLE = "disable"
    """As LOG, and after three failures of a hook in a row the callback hears only the end of the run."""


FAILURES_BEFORE_DISABLING = 3
