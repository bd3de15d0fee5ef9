"""`proa resume`: resumes a run from its newest intact checkpoint, here or at another address."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import ProaError
from ..record.reading import RunNotFoundError, read_header
from ..resume.configuration import config_changes, load_complete_config, saved_config
from ..resume.fetching import RemoteRun, is_uploaded
from ..run.foreseen import announce
from ..visible import print_visible
from .exit_codes import describe_os_error
from .train import run_to_end, show_run


def resume(
    address: str,
    flags: Sequence[str],
    checkpoint: str | None,
    *,
    output_dir: str | None = None,
    allow_changes: bool = False,
) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that rewards, tasks and callbacks there can be named
    path = Path(address)
    try:
        if output_dir is not None or is_uploaded(address):
            path = _fetch(address, output_dir, checkpoint)
        _check_run_folder(path)
        config = load_complete_config(path, flags)
        saved = saved_config(path)
        is_done = read_header(path / "run.json")["status"] == "completed" and checkpoint is None
        is_done = is_done and config.total_steps <= saved["total_steps"]
        if is_done:
            config_changes(saved, config)  # which refuses what a run cannot continue with
    except FileNotFoundError:
        print_visible(f"{path} is not a run's folder: there is no run.json in it", file=sys.stderr)
        return 2
    except ProaError as error:
        print_visible(error, file=sys.stderr)
        return 2
    except OSError as error:
        print_visible(describe_os_error(error), file=sys.stderr)
        return 2
    if is_done:
        print_visible(f"{path} is complete: there is nothing to resume", file=sys.stderr)
        return show_run(config)
    announced = announce(config)
    return run_to_end(config, resume=checkpoint or "auto", allow_changes=allow_changes, announced=announced)


def _fetch(address: str, output_dir: str | None, checkpoint: str | None) -> Path:
    """The folder that the run at an address continues in."""
    run = RemoteRun.find(address)
    folder = run.default_folder if output_dir is None else Path(output_dir) / run.default_folder.name
    print_visible(f"copying the run at {run.store.shown} to {folder}", file=sys.stderr)
    run.fetch(folder, checkpoint)
    return folder


def _check_run_folder(path: Path) -> None:
    if path.is_file():
        raise RunNotFoundError(f"{path} is a file: give the folder of a run")
    if not (path / "run.json").exists() and (path / "experiment.json").is_file():
        raise RunNotFoundError(
            f"{path} is an experiment's folder: resume it with proa experiment FILE, with the file it was started with"
        )
