"""The OpenAI-compatible endpoint: `proa serve`, and inside a maker for agents. It needs starlette and uvicorn."""

from .callers import Caller, Callers, Guest, OneKey, new_key
from .generation import User
from .limits import Limits
from .refusals import Refusal
from .scoring import Scoring
from .served_model import ServedModel
from .sessions import RecordedTurn, Session, Sessions

__all__ = [
    "Caller", "Callers", "Guest", "Limits", "OneKey", "RecordedTurn", "Refusal", "Scoring", "ServedModel", "Session",
    "Sessions", "User", "new_key",
]  # fmt: skip
