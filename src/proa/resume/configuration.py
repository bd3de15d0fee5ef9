"""The saved configuration of a run, and its comparison with another.

Nothing here is slow to import, as the command line compares configurations before it loads anything large.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import ConfigError, DetachedConfig, RunConfig, restore_run_config
from ..config.sections import AUTO, GIVEN
from ..record.run_folder import RunFolderError, read_json
from ..record.secrets import redact, redacted_keys

log = logging.getLogger("proa.resume")

_FREE = (
    "name", "output_dir", "runtime", "makers", "ray", "wait_timeout", "lease_timeout", "buffer_limit", "checkpoint",
    "record", "progress", "eval", "callbacks", "reward.timeout", "reward.workers", "model.trust_remote_code",
    "engine.sleep", "environment.call_timeout", "environment.step_timeout", "environment.trajectory_timeout",
    "environment.workers", "environment.memory_gib",
)  # fmt: skip
"""Keys that may change, as they do not affect what is learned."""
_REORDERING_KEYS = (
    "threads", "trainers", "model.device", "model.attention", "model.gradient_checkpointing", "model.compile", "engine",
    "optimizer.token_budget", "optimizer.share_prompts",
)  # fmt: skip
"""Keys that may change, but reorder sums, which may then differ in their last bits."""
LENGTH = "total_steps"
"""It may grow, and the run trains longer; the result may differ from that of a run of that length."""


def saved_config(folder: Path) -> dict[str, Any]:
    """The configuration of the run in a folder."""
    try:
        return read_json(folder / "config.json")
    except FileNotFoundError:
        raise RunFolderError(f"{folder} is not a run's folder: there is no config.json in it") from None


def load_complete_config(folder: Path, flags: Sequence[str] = ()) -> RunConfig:
    """The configuration of the run in a folder, which may have been moved, with changes by flags. Raises if secrets or
    objects are missing in it."""
    config = load_saved_config(folder, flags)
    left = config.model_dump(mode="json")
    if unsaid := redacted_keys(left):
        raise ConfigError(f"{unsaid[0]} was a secret and was not written down: give it again, as --{unsaid[0]} VALUE")
    if GIVEN in str(left):
        raise ConfigError(
            f"parts of this run were given in Python (see {folder / 'config.json'}): resume it there, "
            f'by the same call with resume="auto"'
        )
    return config


def load_saved_config(folder: Path, flags: Sequence[str] = ()) -> RunConfig:
    """The same, as far as it was saved: without secrets, and without objects given in Python."""
    parent = folder.parent if folder.name not in ("", "..") else folder.resolve().parent
    saved = saved_config(folder)
    where = {"name": folder.resolve().name, "output_dir": str(parent)}
    return restore_run_config(_find_moved_paths(saved, str(saved.get("output_dir")), str(parent)) | where, flags)


def config_changes(
    saved: dict[str, Any], config: RunConfig, bound: dict[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """What a configuration changes in a resumed run, as {key: (before, now)}. Raises for changes that affect what is
    learned, except a larger `total_steps`. The run's folder may have been moved.

    `saved` is the configuration in the folder, which may have been edited, and `bound` the one in the checkpoint, which
    counts for everything that affects what is learned.
    """
    now = config.model_dump(mode="json")
    changes = _changes(saved, now)
    if bound is not None:
        free = {key: pair for key, pair in changes.items() if _is_in(key, _FREE)}
        redacted = redact(now)  # as it stands in the checkpoint
        changes = free | {key: pair for key, pair in _changes(bound, redacted).items() if not _is_in(key, _FREE)}
    refused = {
        key: (before, now)
        for key, (before, now) in changes.items()
        if not _is_in(key, (*_FREE, *_REORDERING_KEYS)) and not (key == LENGTH and now > before)
    }
    if LENGTH in changes and not refused:
        _check_longer(config, changes[LENGTH][0])
    if refused:
        described = "; ".join(_describe_change(key, before, now) for key, (before, now) in refused.items())
        raise ConfigError(
            f"this run cannot continue with another configuration: {described}. Give it as it was. "
            f"To train further with other settings, start a new run whose model.path is one of its checkpoints"
        )
    return changes


def _changes(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """All differences. Keys added by a newer version count as having been at their defaults."""
    with suppress(ConfigError):
        saved = restore_run_config(saved).model_dump(mode="json")
    found = _differences(_follow_moved_paths(saved, now, str(saved.get("output_dir")), now["output_dir"]), now)
    same = {key for key, (before, now_) in found.items() if redact({key: now_}) == {key: before}}  # secrets
    same |= {key for key, (_, now_) in found.items() if now_ == AUTO}  # resolved when the run began
    return {key: pair for key, pair in found.items() if key not in same}


def _check_longer(config: RunConfig, before: int) -> None:
    """Raise where a larger `total_steps` would change steps that were already made."""
    if not isinstance(config, DetachedConfig) and config.train_epochs > 1:
        raise ConfigError(
            f"total_steps was {before}, which is how long each of its {config.train_epochs} epochs is: this run cannot "
            "train longer. Start a new run whose model.path is one of its checkpoints"
        )
    if isinstance(config, DetachedConfig) and before % config.update_steps:
        raise ConfigError(
            f"total_steps was {before}, so its last episode is shorter than the others (update_steps is "
            f"{config.update_steps}): this run cannot train longer. Start a new run whose model.path is one of its "
            "checkpoints"
        )


def log_changes(changes: dict[str, tuple[Any, Any]]) -> None:
    for key, (before, now) in changes.items():
        if _is_in(key, ("name", "output_dir")) or redact({key: before}) == redact({key: now}):  # a secret, given again
            continue
        reorders = _is_in(key, _REORDERING_KEYS) and not _is_in(key, _FREE)
        bits = "; results may differ in their last bits from here on" if reorders else ""
        log.warning("%s%s", _describe_change(key, before, now), bits)


def _follow_moved_paths(saved: Any, given: Any, before: str, now: str) -> Any:
    """Saved values, with paths inside the run's parent folder adapted where the given configuration names them in the
    moved folder, as a stage of an experiment names the weights of the previous one."""
    if isinstance(saved, dict) and isinstance(given, dict):
        return {key: _follow_moved_paths(value, given.get(key), before, now) for key, value in saved.items()}
    if isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        return [_follow_moved_paths(*pair, before, now) for pair in zip(saved, given, strict=True)]
    inside = isinstance(saved, str) and saved.startswith(before + os.sep)
    return given if inside and given == now + saved.removeprefix(before) else saved


def _find_moved_paths(saved: Any, before: str, now: str) -> Any:
    """Saved values, with paths that no longer exist replaced by those in the moved parent folder that do."""
    if isinstance(saved, dict):
        return {key: _find_moved_paths(value, before, now) for key, value in saved.items()}
    if isinstance(saved, list):
        return [_find_moved_paths(value, before, now) for value in saved]
    if not isinstance(saved, str) or not saved.startswith(before + os.sep) or Path(saved).exists():
        return saved
    moved = now + saved.removeprefix(before)
    return moved if Path(moved).exists() else saved


def _describe_change(key: str, before: Any, now: Any) -> str:
    return f"{key} was {redact({key: before})[key]!r} and is {redact({key: now})[key]!r}"


def _differences(before: Any, now: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return {} if before == now else {key: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for name in [*before, *(name for name in now if name not in before)]:
        found |= _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    return found


def _is_in(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)
