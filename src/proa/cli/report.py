"""`proa report`: writes an HTML page about a run or an experiment."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import ProaError
from ..record.durable import format_bytes
from ..record.reading import RunNotFoundError
from ..report import REPORT_NAME, write_report
from ..visible import print_visible
from .exit_codes import describe_os_error


def report(path: str, output: str | None = None) -> int:
    """Exit code: 0 done, 1 a broken record or a full disk, 2 wrong use."""
    target = None if output is None else Path(output)
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        problem = (
            "is a folder: give a file" if target.is_dir() else f"cannot be written: there is no folder {target.parent}"
        )
        print_visible(f"--output {target} {problem}", file=sys.stderr)
        return 2
    try:
        written, size = write_report(Path(path), target)
    except RunNotFoundError as error:
        print_visible(error, file=sys.stderr)
        return 2
    except ProaError as error:
        print_visible(error, file=sys.stderr)
        return 1
    except OSError as error:
        page = target or Path(path) / REPORT_NAME
        file = None if error.filename is None else Path(str(error.filename))
        is_page = file is None or (file.parent == page.parent and file.name in (page.name, f".{page.name}.new"))
        action = "the report cannot be written" if is_page else "the record cannot be read"
        print_visible(f"{action}: {describe_os_error(error)}", file=sys.stderr)
        return 1
    print_visible(f"{written}: {format_bytes(size)}")
    return 0
