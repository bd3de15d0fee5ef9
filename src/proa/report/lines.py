"""Files of a record that have one object on each line, read line by line: whatever their length, memory stays small."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..record.durable import open_file
from ..record.run_folder import BrokenRecordError


def objects_in(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; none if there is no file. A last line that is still being written is passed over."""
    try:
        with open_file(path, os.O_RDONLY) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _object(path, number, line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BrokenRecordError(f"{path} cannot be read: {error}") from error


def lines_in(path: Path) -> int:
    """How many whole lines a file has."""
    try:
        with open_file(path, os.O_RDONLY) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__} stands where an object should")
    except (ValueError, TypeError, RecursionError) as error:
        raise BrokenRecordError(f"{path} is broken at line {number}: {error}") from error
    return content
