"""Proa: detached RL post-training of language models, with a lifecycle that can be hooked anywhere.

The names below are loaded when first used, so that `import proa` costs milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .visible import make_logs_visible

__version__ = "0.1.0.dev0"

make_logs_visible()

if TYPE_CHECKING:
    from .config.experiment_config import ExperimentConfig
    from .config.run_config import RunConfig
    from .data.experience import BufferItem, Experience
    from .data.loop import LoopArtifacts, ManifestRow, TrainingBatch
    from .data.results import ArmResult, EvalResult, ExperimentResult, LogContext, RunResult
    from .data.state import LoopState, StopTraining, TrainState
    from .errors import ProaError
    from .experiments.experiment import Experiment
    from .lifecycle.hooks import Callback, MakerCallback, TrainerCallback
    from .lifecycle.manager import CallbackManager
    from .lifecycle.policy import ErrorPolicy, Priority
    from .record.checkpoints import CheckpointManager
    from .roles.buffer import DetachedReplayBuffer
    from .roles.maker import ExperienceMakerHolder
    from .roles.policy_trainer import DetachedGRPOTrainer, DetachedPPOTrainer
    from .roles.trainer import DetachedTrainer

_HOME = {
    "ArmResult": "data.results",
    "Callback": "lifecycle.hooks",
    "CallbackManager": "lifecycle.manager",
    "CheckpointManager": "record.checkpoints",
    "DetachedGRPOTrainer": "roles.policy_trainer",
    "DetachedPPOTrainer": "roles.policy_trainer",
    "DetachedReplayBuffer": "roles.buffer",
    "DetachedTrainer": "roles.trainer",
    "ErrorPolicy": "lifecycle.policy",
    "EvalResult": "data.results",
    "BufferItem": "data.experience",
    "Experience": "data.experience",
    "ExperienceMakerHolder": "roles.maker",
    "Experiment": "experiments.experiment",
    "ExperimentConfig": "config.experiment_config",
    "ExperimentResult": "data.results",
    "LogContext": "data.results",
    "LoopArtifacts": "data.loop",
    "LoopState": "data.state",
    "MakerCallback": "lifecycle.hooks",
    "ManifestRow": "data.loop",
    "Priority": "lifecycle.policy",
    "ProaError": "errors",
    "RunConfig": "config.run_config",
    "RunResult": "data.results",
    "StopTraining": "data.state",
    "TrainState": "data.state",
    "TrainerCallback": "lifecycle.hooks",
    "TrainingBatch": "data.loop",
}

__all__ = [
    "ArmResult",
    "BufferItem",
    "Callback",
    "CallbackManager",
    "CheckpointManager",
    "DetachedGRPOTrainer",
    "DetachedPPOTrainer",
    "DetachedReplayBuffer",
    "DetachedTrainer",
    "ErrorPolicy",
    "EvalResult",
    "Experience",
    "ExperienceMakerHolder",
    "Experiment",
    "ExperimentConfig",
    "ExperimentResult",
    "LogContext",
    "LoopArtifacts",
    "LoopState",
    "MakerCallback",
    "ManifestRow",
    "Priority",
    "ProaError",
    "RunConfig",
    "RunResult",
    "StopTraining",
    "TrainState",
    "TrainerCallback",
    "TrainingBatch",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'proa' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
