"""Proa: detached RL post-training of language models, with a lifecycle that can be hooked anywhere.

The names below are loaded when first used, so that `import proa` costs milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__
from .visible import make_logs_visible

make_logs_visible()

if TYPE_CHECKING:
    from . import algorithms, recipes
    from .actors.finding import find_actor
    from .algorithms import (
        CISPO,
        DAPO,
        GRPO,
        GSPO,
        PPO,
        RLOO,
        Algorithm,
        DecoupledPPO,
        DrGRPO,
        ReinforcePlusPlus,
        ReinforcePlusPlusBaseline,
    )
    from .config import ConfigError
    from .config.experiment_config import ExperimentConfig
    from .config.run_config import RunConfig
    from .data.experience import BufferItem, Experience
    from .data.lease import Prompt
    from .data.loop import LoopArtifacts, ManifestRow, TrainingBatch
    from .data.results import ArmResult, EvalResult, ExperimentResult, LogContext, RunResult
    from .data.sampling import Sampling
    from .data.state import LoopState, StopTraining, TrainState
    from .engines import build_engine
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
    from .roles.weights import Weights
    from .tasks import Task

_HOME = {
    "Algorithm": "algorithms",
    "ArmResult": "data.results",
    "BufferItem": "data.experience",
    "build_engine": "engines",
    "Callback": "lifecycle.hooks",
    "CallbackManager": "lifecycle.manager",
    "CheckpointManager": "record.checkpoints",
    "CISPO": "algorithms",
    "ConfigError": "config",
    "DAPO": "algorithms",
    "DecoupledPPO": "algorithms",
    "DetachedGRPOTrainer": "roles.policy_trainer",
    "DetachedPPOTrainer": "roles.policy_trainer",
    "DetachedReplayBuffer": "roles.buffer",
    "DetachedTrainer": "roles.trainer",
    "DrGRPO": "algorithms",
    "ErrorPolicy": "lifecycle.policy",
    "EvalResult": "data.results",
    "Experience": "data.experience",
    "ExperienceMakerHolder": "roles.maker",
    "Experiment": "experiments.experiment",
    "ExperimentConfig": "config.experiment_config",
    "ExperimentResult": "data.results",
    "find_actor": "actors.finding",
    "GRPO": "algorithms",
    "GSPO": "algorithms",
    "LogContext": "data.results",
    "LoopArtifacts": "data.loop",
    "LoopState": "data.state",
    "MakerCallback": "lifecycle.hooks",
    "ManifestRow": "data.loop",
    "PPO": "algorithms",
    "Priority": "lifecycle.policy",
    "ProaError": "errors",
    "Prompt": "data.lease",
    "ReinforcePlusPlus": "algorithms",
    "ReinforcePlusPlusBaseline": "algorithms",
    "RLOO": "algorithms",
    "RunConfig": "config.run_config",
    "RunResult": "data.results",
    "Sampling": "data.sampling",
    "StopTraining": "data.state",
    "Task": "tasks",
    "TrainerCallback": "lifecycle.hooks",
    "TrainingBatch": "data.loop",
    "TrainState": "data.state",
    "Weights": "roles.weights",
}

__all__ = [
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "Algorithm",
    "ArmResult",
    "BufferItem",
    "Callback",
    "CallbackManager",
    "CheckpointManager",
    "ConfigError",
    "DecoupledPPO",
    "DetachedGRPOTrainer",
    "DetachedPPOTrainer",
    "DetachedReplayBuffer",
    "DetachedTrainer",
    "DrGRPO",
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
    "Prompt",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RunConfig",
    "RunResult",
    "Sampling",
    "StopTraining",
    "Task",
    "TrainState",
    "TrainerCallback",
    "TrainingBatch",
    "Weights",
    "__version__",
    "algorithms",
    "build_engine",
    "find_actor",
    "recipes",
]


_MODULES = ("algorithms", "callbacks", "recipes", "tasks", "testing")
"""`proa.recipes.grpo` needs no import of its own."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'proa' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
