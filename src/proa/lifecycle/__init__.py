"""The lifecycle: moments, the callbacks that hear them, and the manager that fires them."""

from .gradients import fire_gradients_ready
from .hooks import BaseCallback, Callback, EveryMoment, MakerCallback, TrainerCallback
from .manager import CallbackManager, Callbacks
from .moments import EVENT_NAMES, MOMENTS, EventName, Moment, Moments, Scope
from .placement import Placement, check_portable
from .policy import ErrorPolicy, Priority
from .report import CallbackReport, ReportRow
from .roles import Role
from .spans import Lifecycle

__all__ = [
    "EVENT_NAMES", "MOMENTS", "BaseCallback", "Callback", "CallbackManager", "CallbackReport", "Callbacks",
    "ErrorPolicy", "EventName", "EveryMoment", "Lifecycle", "MakerCallback", "Moment", "Moments", "Placement",
    "Priority", "ReportRow", "Role", "Scope", "TrainerCallback", "check_portable", "fire_gradients_ready",
]  # fmt: skip
