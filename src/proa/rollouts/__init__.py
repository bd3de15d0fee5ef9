"""From a prompt to scored samples: the one seam through which makers and evals generate."""

from .conversation import Conversations
from .engine_stream import EngineStream, StreamUser, streaming
from .environment_rollout import EnvironmentRollout, Limits
from .progress import Progress
from .rollout import Rollout
from .sample import Sample, Turn
from .scoring import ModelReward
from .single_turn import SingleTurn
from .versioned_engine import VersionedEngine

__all__ = [
    "Conversations", "EngineStream", "EnvironmentRollout", "Limits", "ModelReward", "Progress", "Rollout", "Sample",
    "SingleTurn", "StreamUser", "Turn", "VersionedEngine", "streaming",
]  # fmt: skip
