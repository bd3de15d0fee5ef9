"""`proa resume`: goes on with a run from its newest checkpoint that is whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import ProaError
from ..record.reading import RunNotFoundError
from ..record.run_folder import read_json
from ..resume.resuming import AUTO, config_in
from ..visible import print_visible
from .endings import told
from .train import carry_through


def resume(folder: str, flags: Sequence[str], checkpoint: str | None, *, allow_changes: bool = False) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that rewards, tasks and callbacks there can be named
    path = Path(folder)
    try:
        _refuse_what_is_no_run(path)
        config = config_in(path, flags)
        header = read_json(path / "run.json")
    except FileNotFoundError:
        print_visible(f"{path} is not a run's folder: there is no run.json in it", file=sys.stderr)
        return 2
    except ProaError as error:
        print_visible(error, file=sys.stderr)
        return 2
    except OSError as error:
        print_visible(told(error), file=sys.stderr)
        return 2
    if header.get("status") == "completed" and checkpoint is None:
        print_visible(f"{path} is complete: there is nothing to go on with", file=sys.stderr)
    return carry_through(config, resume=checkpoint or AUTO, allow_changes=allow_changes)


def _refuse_what_is_no_run(path: Path) -> None:
    """Where it can be told what was given instead."""
    if path.is_file():
        raise RunNotFoundError(f"{path} is a file: give the folder of a run")
    if not (path / "run.json").exists() and (path / "experiment.json").is_file():
        raise RunNotFoundError(
            f"{path} is an experiment's folder: go on with it by proa experiment FILE, the file that it began with"
        )
