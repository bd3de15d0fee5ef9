"""The folder of one run: its header, replaced atomically, and its configuration."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import ProaError
from ..private_files import make_private_folder, restrict_folder
from ..version import __version__
from .durable import Disk
from .secrets import redact, redact_values, remember
from .times import previous_process

log = logging.getLogger("proa.record")

LOCK_NAME = ".lock"
"""Held by the running process; a folder with only this file counts as unused."""
WRITTEN_BEFORE_HEADER = {"config.json", ".config.json.new", ".run.json.new"}
"""What is written before `run.json` makes a folder a run's; a folder with nothing else counts as unused."""
LIVE_NAME = "live.json"
"""The state of the run while it is running."""
START_NAME = "base"
"""The model that a run begins with, if it is needed again and in no other folder."""
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


class RunFolderError(ProaError, FileExistsError):
    """The run folder cannot be used."""


class BrokenRecordError(ProaError, ValueError):
    """A file of a run's record cannot be read."""


_FINAL_ENTRIES = (
    "ended", "stop_reason", "stopped_by", "steps_run", "evals", "ledger", "weights_digest", "policy_version",
    "callback_errors", "first_callback_errors", "reward_failures", "performance",
)  # fmt: skip


class RunFolder:
    """`<output_dir>/<name>` with `run.json` (the header), `config.json`, `metrics.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], *, replaces: bool = False, **entries: Any) -> RunFolder:
        """Make the folder of a new run; a used folder is refused, unless it `replaces` a run that was removed from it.
        `entries` go into its header."""
        if not replaces:
            check_unused(path)
        path.parent.mkdir(parents=True, exist_ok=True)  # whether the folder of all runs is shared is up to the user
        make_private_folder(path)
        restrict_folder(path)  # an empty one may have existed
        remember(config)
        folder = cls(path)
        folder.write_json("config.json", config)
        folder.update(started=round(time.time(), 3), **entries, **_process_entries())
        return folder

    @classmethod
    def reopen(cls, path: Path, config: dict[str, Any], **how: Any) -> RunFolder:
        """Open the folder of a run to resume it; `how` is added to the header's entry of this resume."""
        remember(config)
        folder = cls(path)
        folder._header = read_json(path / "run.json")
        before, pause = folder._header.get("resumed", []), previous_process(path, folder._header)
        for key in _FINAL_ENTRIES:  # it has not ended any more
            folder._header.pop(key, None)
        folder.write_json("config.json", config)
        (path / LIVE_NAME).unlink(missing_ok=True)  # of the previous process
        folder.update(**_process_entries(), resumed=[*before, {"at": round(time.time(), 3), **pause, **how}])
        return folder

    def note_resumed(self, **how: Any) -> None:
        """Record in the header that the run resumed by itself."""
        self.update(resumed=[*self._header.get("resumed", []), {"at": round(time.time(), 3), **how}])

    def update(self, **entries: Any) -> None:
        """Change entries of the header and replace its file."""
        self._header |= entries
        self.write_json("run.json", self._header)

    def add_callback_errors(self, more: Mapping[str, int]) -> None:
        """Count failures of callbacks that came after the header was written."""
        counted: dict[str, int] = self._header.get("callback_errors", {})
        both = {name: counted.get(name, 0) + more.get(name, 0) for name in {**counted, **more}}
        try:
            self.update(callback_errors=both)
        except OSError as error:  # what came of the run is written
            log.warning("%s does not count the failures of callbacks at its end: %s", self.path / "run.json", error)

    def discard(self) -> None:
        """Remove the folder of a run that never started, so that the next try can use it."""
        shutil.rmtree(self.path)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file atomically, without secrets."""
        Disk().replace_file(self.path / name, json_text(content).encode("utf-8"))


def _process_entries() -> dict[str, Any]:
    return {
        "status": "running",
        "host": platform.node(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "libraries": libraries(),
    }


@cache
def libraries() -> dict[str, str]:
    """The versions of the libraries that results depend on."""
    found = {"proa": __version__}  # of the code that runs, which need not be what is installed
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def check_unused(path: Path) -> None:
    """Raise if a run's folder is not empty."""
    inside = (path.iterdir() if path.is_dir() else [path]) if path.exists() else ()
    if not {one.name for one in inside} <= {LOCK_NAME, *WRITTEN_BEFORE_HEADER}:
        raise RunFolderError(
            f'{path} was already used by a run: resume it with proa resume {path} (in Python resume="auto"), give this '
            f"run another name or output_dir, or replace it with --overwrite (overwrite=True)"
        )


def json_text(content: dict[str, Any], *, stringify: bool = False) -> str:
    """The JSON of a file that holds one object, without secrets. Values that JSON does not support are refused, or
    written as their `str` with `stringify`."""
    default = (lambda value: redact_values(str(value))) if stringify else None
    return json.dumps(encode_numbers(_redact_sections(content)), indent=2, allow_nan=False, default=default) + "\n"


def json_line(content: Mapping[str, object]) -> str:
    """The JSON of one line of a record, without secrets."""
    return json.dumps(encode_numbers(redact(content)), allow_nan=False) + "\n"


def scores_line(scores: dict[str, Any]) -> str:
    """The JSON of one line of scores, whose keys are data: only secrets known by value are removed."""
    return json.dumps(encode_numbers(redact_values(scores)), allow_nan=False) + "\n"


def encode_number(value: float) -> str:
    """The text written for a number that JSON does not have.

    >>> encode_number(math.nan), encode_number(math.inf), encode_number(-math.inf)
    ('NaN', 'Infinity', '-Infinity')
    """
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode_numbers(written: Any) -> Any:
    """Undo `encode_numbers`: NaN and infinities as numbers again."""
    if isinstance(written, dict):
        return {key: decode_numbers(value) for key, value in written.items()}
    if isinstance(written, list):
        return [decode_numbers(value) for value in written]
    return float(written) if isinstance(written, str) and written in _NOT_FINITE else written


_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"})
"""As `encode_number` writes them, and as older records have them."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `FileNotFoundError` if there is no file."""
    try:
        check_regular_file(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, or not text
        raise BrokenRecordError(f"{path} is broken: {error}") from error
    if not isinstance(content, dict):
        raise BrokenRecordError(f"{path} is broken: it holds a {type(content).__name__}, not an object")
    return content


def check_regular_file(path: Path) -> None:
    """Raise for a pipe or a device: opening or reading one may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BrokenRecordError(f"{path} is broken: it is not a regular file")


def quoted(value: Any, most: int = 80) -> str:
    """The repr of a value for an error message, shortened.

    >>> quoted("today"), quoted("tomorrow", most=5)
    ("'today'", "'tom…")
    """
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def encode_numbers(value: Any) -> Any:
    """The value with NaN and infinities as strings, which JSON lacks, so that every parser reads the file."""
    if isinstance(value, dict):
        return {str(key): encode_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode_numbers(inner) for inner in value]
    return value if not isinstance(value, float) or math.isfinite(value) else encode_number(value)


_SCORES = (
    "metrics", "breakdowns", "evals", "eval_metrics", "eval_breakdowns", "groups", "callback_errors",
    "first_callback_errors",
)  # fmt: skip
_PLAN = "runs"  # of an experiment; each run has a `key`, its name


def _redact_sections(content: dict[str, Any]) -> dict[str, Any]:
    """Remove secrets by key and by value; in scores only by value: a key there may be a column called `token`."""
    clean: dict[str, Any] = {}
    for key, value in content.items():
        is_arms = key == "arms" and isinstance(value, list) and all(isinstance(arm, dict) for arm in value)
        if key in _SCORES or key == _PLAN:
            clean[key] = redact_values(value)
        elif is_arms:  # of an experiment, each with scores
            clean[key] = [_redact_sections(arm) for arm in value]
        else:
            clean |= redact({key: value})
    return clean
