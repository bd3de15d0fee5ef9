"""The configuration of a run: one typed model, read from YAML and flags."""

from .loading import ConfigError, change_run_config, load_run_config, restore_run_config
from .run_config import RunConfig

__all__ = ["ConfigError", "RunConfig", "change_run_config", "load_run_config", "restore_run_config"]
