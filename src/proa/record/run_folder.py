"""The folder of one run: refused if used, its header replaced atomically, its configuration beside it."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import ProaError
from ..private_files import keep_others_out, make_private_folder
from .durable import Disk
from .secrets import redact, redact_values, remember
from .times import pause_before_now

LOCK_NAME = ".lock"
"""Held by the process that runs; a folder that holds only this was not used."""
LIVE_NAME = "live.json"
"""A look at the run while it goes on."""
LIBRARIES = ("proa", "torch", "transformers", "tokenizers", "numpy")


class RunFolderError(ProaError, FileExistsError):
    """The run folder cannot be used."""


class BrokenRecordError(ProaError, ValueError):
    """A file of a run's record cannot be read."""


_SAID_AT_THE_END = (
    "ended", "stop_reason", "stopped_by", "steps_run", "evals", "ledger", "weights_digest", "policy_version",
    "callback_errors", "reward_failures",
)  # fmt: skip


class RunFolder:
    """`<output_dir>/<name>` with `run.json` (the header), `config.json`, `metrics.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], **entries: Any) -> RunFolder:
        """Make the folder for a new run; one that was used is refused. `entries` are more that its header says."""
        refuse_used(path)
        path.parent.mkdir(parents=True, exist_ok=True)  # where runs lie is the user's to share or not
        make_private_folder(path)
        keep_others_out(path)  # an empty one may have been there
        remember(config)
        folder = cls(path)
        folder.write_json("config.json", config)
        folder.update(started=round(time.time(), 3), **entries, **_here())
        return folder

    @classmethod
    def reopen(cls, path: Path, config: dict[str, Any], **how: Any) -> RunFolder:
        """The folder of a run that goes on; `how` is added to what its header says of the times it did."""
        remember(config)
        folder = cls(path)
        folder._header = read_json(path / "run.json")
        before, pause = folder._header.get("resumed", []), pause_before_now(path, folder._header)
        for key in _SAID_AT_THE_END:  # it has not, any more
            folder._header.pop(key, None)
        folder.write_json("config.json", config)
        (path / LIVE_NAME).unlink(missing_ok=True)  # a look at another process
        folder.update(**_here(), resumed=[*before, {"at": round(time.time(), 3), **pause, **how}])
        return folder

    def went_on(self, **how: Any) -> None:
        """Note in the header that the run went on by itself."""
        self.update(resumed=[*self._header.get("resumed", []), {"at": round(time.time(), 3), **how}])

    def update(self, **entries: Any) -> None:
        """Change entries of the header, and replace it on disk as a whole."""
        self._header |= entries
        self.write_json("run.json", self._header)

    def discard(self) -> None:
        """Remove the folder of a run that never began, so that the next try can have it."""
        shutil.rmtree(self.path)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file so that a reader sees the old one or the new one, never half of one."""
        Disk().replace_file(self.path / name, as_json(content).encode("utf-8"))


def _here() -> dict[str, Any]:
    return {
        "status": "running",
        "host": platform.node(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "libraries": libraries(),
    }


@cache
def libraries() -> dict[str, str]:
    """The versions of what computes."""
    return {name: found for name in LIBRARIES if (found := _version(name))}


def refuse_used(path: Path) -> None:
    """Raise if a run's folder holds anything already."""
    inside = (path.iterdir() if path.is_dir() else [path]) if path.exists() else ()
    if any(one.name != LOCK_NAME for one in inside):
        raise RunFolderError(
            f"{path} was used by a run already: go on with it by proa resume {path}, give this one another name or "
            f"output_dir, or remove the folder"
        )


def as_json(content: dict[str, Any], *, in_words: bool = False) -> str:
    """As every file of a record is written that holds one object: without secrets. What JSON has no form for is
    refused, or told in words."""
    default = (lambda value: redact_values(str(value))) if in_words else None
    return json.dumps(readable(_without_secrets(content)), indent=2, allow_nan=False, default=default) + "\n"


def as_json_line(content: dict[str, Any]) -> str:
    """As every line of a record is written: without secrets."""
    return json.dumps(readable(redact(content)), allow_nan=False) + "\n"


def scores_line(scores: dict[str, Any]) -> str:
    """As a line is written that holds scores, where a key is a value of a column: without secrets known by value."""
    return json.dumps(readable(redact_values(scores)), allow_nan=False) + "\n"


def spelt(value: float) -> str:
    """What is written for a number that JSON has none for.

    >>> spelt(math.nan), spelt(math.inf), spelt(-math.inf)
    ('NaN', 'Infinity', '-Infinity')
    """
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def numbers_back(written: Any) -> Any:
    """Numbers as they were before they were written as JSON, which has no word for what is not finite."""
    if isinstance(written, dict):
        return {key: numbers_back(value) for key, value in written.items()}
    if isinstance(written, list):
        return [numbers_back(value) for value in written]
    return float(written) if isinstance(written, str) and written in _NOT_FINITE else written


_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"})
"""As `spelt` writes them, and as records have them that were written before it did."""


def read_json(path: Path) -> dict[str, Any]:
    """What a file that holds one object says; `FileNotFoundError` if there is none."""
    try:
        refuse_pipe(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, or no text
        raise BrokenRecordError(f"{path} is broken: {error}") from error
    if not isinstance(content, dict):
        raise BrokenRecordError(f"{path} is broken: it holds a {type(content).__name__}, not an object")
    return content


def refuse_pipe(path: Path) -> None:
    """Raise if what is to be read is a pipe or a device: opening one may wait for ever, and reading one never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BrokenRecordError(f"{path} is broken: it is no plain file")


def quoted(value: Any, most: int = 80) -> str:
    """A value as it stands in a sentence about what is wrong with it, the beginning of it if it is long.

    >>> quoted("today"), quoted(10**400, most=5)
    ("'today'", '1000…')
    """
    said = repr(value)
    return said if len(said) <= most else f"{said[: most - 1]}…"


def readable(value: Any) -> Any:
    """Numbers that JSON has no name for as strings, so that every parser reads the file and a NaN stays visible."""
    if isinstance(value, dict):
        return {str(key): readable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [readable(inner) for inner in value]
    return value if not isinstance(value, float) or math.isfinite(value) else spelt(value)


_SCORES = ("metrics", "breakdowns", "evals", "eval_metrics", "eval_breakdowns", "groups")
_PLAN = "runs"  # of an experiment: each has a `key`, which is its name


def _without_secrets(content: dict[str, Any]) -> dict[str, Any]:
    """Secrets by key and by value; but under scores by value alone: a key there may be a column called `token`."""
    clean: dict[str, Any] = {}
    for key, value in content.items():
        of_arms = key == "arms" and isinstance(value, list) and all(isinstance(arm, dict) for arm in value)
        if key in _SCORES or key == _PLAN:
            clean[key] = redact_values(value)
        elif of_arms:  # of an experiment, each with scores
            clean[key] = [_without_secrets(arm) for arm in value]
        else:
            clean |= redact({key: value})
    return clean


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
