"""`proa resume`: goes on with a run from its newest checkpoint that is whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..config import ConfigError, restore_run_config
from ..config.run_config import GIVEN, RunConfig
from ..errors import ProaError
from ..recipes.resuming import AUTO, saved_config
from ..record.run_folder import read_json
from ..record.secrets import redacted_keys
from .train import carry_through


def resume(folder: str, flags: Sequence[str], checkpoint: str | None) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    path = Path(folder)
    try:
        config = config_of(path, flags)
        header = read_json(path / "run.json")
    except FileNotFoundError:
        print(f"{path} is not a run's folder: there is no run.json in it", file=sys.stderr)
        return 2
    except ProaError as error:
        print(error, file=sys.stderr)
        return 2
    if header.get("status") == "completed" and checkpoint is None:
        print(f"{path} is complete: there is nothing to go on with", file=sys.stderr)
    return carry_through(config, resume=checkpoint or AUTO)


def config_of(folder: Path, flags: Sequence[str] = ()) -> RunConfig:
    """The configuration of the run in a folder, wherever that lies now, with what flags change."""
    saved = saved_config(folder)
    # The folder as it was named: it may have been moved, and what is printed should be what was typed.
    where = {
        "name": folder.resolve().name,
        "output_dir": str(folder.parent if folder.name else folder.resolve().parent),
    }
    config = restore_run_config(saved | where, flags)
    left = config.model_dump(mode="json")
    if unsaid := redacted_keys(left):
        raise ConfigError(f"{unsaid[0]} was a secret and was not written down: give it again, as --{unsaid[0]} VALUE")
    if GIVEN in str(left):
        raise ConfigError(
            f"parts of this run were given in Python (see {folder / 'config.json'}): go on with it there, "
            f'by the same call with resume="auto"'
        )
    return config
