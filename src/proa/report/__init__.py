"""A run or an experiment as one HTML page to look at, offline. What models wrote is shown, never interpreted."""

from __future__ import annotations

from pathlib import Path

from ..record.durable import Disk
from .page import page_of
from .reading import Subject, read_subject

__all__ = ["REPORT_NAME", "Subject", "page_of", "read_subject", "write_report"]

REPORT_NAME = "report.html"


def write_report(folder: Path, output: Path | None = None) -> tuple[Path, int]:
    """Write the page of what is in a folder, by default into it; where, and how many bytes.

    A reader sees the old page or the new one, and only its owner may.
    """
    page = page_of(read_subject(folder)).encode("utf-8")
    path = folder / REPORT_NAME if output is None else output
    if output is not None and output.exists() and (output.is_symlink() or not output.is_file()):
        output.write_bytes(page)  # into a pipe or a device: as root, /dev/stdout itself could be replaced
    else:
        Disk().replace_file(path, page)
    return path, len(page)
