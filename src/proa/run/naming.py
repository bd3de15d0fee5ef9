"""The name of a run without one: its algorithm and its task, and a number if that folder is used.

Nothing here is slow to import, as the command line settles the folder before it loads anything large.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from ..config import ConfigError, RunConfig
from ..config.sections import AUTO, GIVEN
from ..record.run_folder import BrokenRecordError, RunFolderError, check_unused, read_json
from ..record.run_lock import is_locked
from ..resume.configuration import LENGTH, config_changes, saved_config

log = logging.getLogger("proa.run")


def settle_name(config: RunConfig, *, resumed: bool = False, overwrite: bool = False) -> RunConfig:
    """The configuration with a name in place of `auto`: the first of `grpo-sort_digits`, `grpo-sort_digits-2`, … whose
    folder is not used; with `resumed` the last whose run has the same configuration, if there is one; with `overwrite`
    the first of all. An unfinished run of the same configuration is reported."""
    if config.name != AUTO:
        return config
    first = base_name(config)
    if overwrite:
        return config.model_copy(update={"name": first})
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    used = list(itertools.takewhile(lambda name: _is_used(config.output_dir / name), names))
    alike = [name for name in used if _is_alike(config.output_dir / name, config)]
    if resumed and alike:
        return config.model_copy(update={"name": alike[-1]})
    for folder in _unfinished(config, alike):
        again = f"proa resume {folder}"
        if GIVEN in str(saved_config(folder)):
            again = f'the same call with resume="auto", name={folder.name!r}'
        log.warning("%s is an unfinished run of the same configuration: %s continues it", folder, again)
    free = first if not used else f"{first}-{len(used) + 1}"
    return config.model_copy(update={"name": free})


def base_name(config: RunConfig) -> str:
    """Algorithm and task as a folder's name.

    `algorithm: grpo` and `task: data/sums.jsonl` make `grpo-sums`; `reasoning_gym:chain_sum?size=9` is `chain_sum`.
    """
    source = config.task.source.partition("?")[0]
    task = "" if GIVEN in source else re.split(r"[:/\\]", source.rstrip("/"))[-1].partition(".")[0]
    algorithm = config.algorithm.name.replace(GIVEN, "").rpartition(":")[2]
    parts = [re.sub(r"[^A-Za-z0-9_]+", "_", part).strip("_") for part in (algorithm, task)]
    return "-".join(part for part in parts if part)[:190] or "run"


def _is_used(folder: Path) -> bool:
    try:
        check_unused(folder)
    except RunFolderError:
        return True
    return False


def _is_alike(folder: Path, config: RunConfig) -> bool:
    """Whether the run in a folder would continue with this configuration, and end where this one does."""
    try:
        return LENGTH not in config_changes(saved_config(folder), config)
    except (ConfigError, RunFolderError, BrokenRecordError, OSError):
        return False


def _unfinished(config: RunConfig, names: list[str]) -> Iterator[Path]:
    for name in names:
        folder = config.output_dir / name
        try:
            is_complete = read_json(folder / "run.json").get("status") == "completed"
        except (BrokenRecordError, OSError):
            continue
        if not is_complete and not is_locked(folder):
            yield folder
