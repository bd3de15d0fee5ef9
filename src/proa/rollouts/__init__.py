"""From a prompt to scored samples: the one seam through which makers and evals generate."""

from .engine_stream import EngineStream, StreamUser, streaming
from .progress import Progress
from .rollout import Rollout
from .sample import Sample, Turn
from .scoring import ModelReward
from .single_turn import SingleTurn
from .versioned_engine import VersionedEngine

__all__ = [
    "EngineStream", "ModelReward", "Progress", "Rollout", "Sample", "SingleTurn", "StreamUser", "Turn",
    "VersionedEngine", "streaming",
]  # fmt: skip
