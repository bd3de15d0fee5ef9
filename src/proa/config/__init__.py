"""The configuration of a run, and of an experiment: typed models, read from YAML and flags."""

from .experiment_config import ExperimentConfig
from .loading import (
    arm_config,
    change_run_config,
    load_experiment_config,
    load_run_config,
    outline_run_config,
    restore_run_config,
)
from .run_config import DetachedConfig, RunConfig, SupervisedConfig
from .yaml_text import ConfigError

__all__ = [
    "ConfigError", "DetachedConfig", "ExperimentConfig", "RunConfig", "SupervisedConfig", "arm_config",
    "change_run_config", "load_experiment_config", "load_run_config", "outline_run_config", "restore_run_config",
]  # fmt: skip
