"""Turns the errors of a verb into messages and exit codes: a sentence for the user's mistakes, a traceback for bugs."""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from ..errors import CallbackConfigError, ProaError, SettingError
from ..record.checkpoints import UnknownCheckpointError
from ..record.reading import RunNotFoundError
from ..record.run_folder import RunFolderError
from ..visible import print_visible

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def silence_closed_streams() -> bool:
    """Redirect stdout and stderr to /dev/null where their reader is gone; return whether one was."""
    closed = [stream for stream in _streams() if _is_closed(stream)]
    for stream in closed:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    return bool(closed)


def _streams() -> list[TextIO]:
    """stdout and stderr, unless they were closed by the shell (`>&-`)."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _is_closed(stream: TextIO) -> bool:
    """Whether the reader of a pipe, or the terminal, is gone."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # a stream without a file
        return False


def exit_code(work: Callable[[], int], paths: Iterable[Path | str | None] = ()) -> int:
    """Run `work` and return its exit code; after an error print a message to stderr and return 1 (failed) or 2 (wrong
    use).

    `paths` are those that the user named: an operating-system error at one of them is wrong use.
    """
    try:
        return work()
    except ProaError as error:
        if _is_wrong_use(error):
            print_visible(error, file=sys.stderr)
            return 2
        print_visible(f"{type(error).__name__}: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print_visible(f"  {note}", file=sys.stderr)
        return 1
    except BrokenPipeError as error:
        if any(map(_is_closed, _streams())):
            raise
        _print_traceback(error)  # some other pipe
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            _print_traceback(error)
            return 1
        print_visible(describe_os_error(error), file=sys.stderr)
        return 2 if error.errno not in DISK_FULL and _concerns(error, paths) else 1
    except SystemExit as error:  # raised by a callback, a reward or a model's code, so the work is not complete
        print_visible(f"sys.exit({error.code!r}) was called before the work was complete", file=sys.stderr)
        return error.code if isinstance(error.code, int) and error.code else 1
    except Exception as error:
        _print_traceback(error)
        return 1


def _print_traceback(error: Exception) -> None:
    print_visible("".join(traceback.format_exception(error)).rstrip("\n"), file=sys.stderr)


def _is_wrong_use(error: ProaError) -> bool:
    from ..config import ConfigError  # slow to import, and verbs that only read a run do not need it

    return isinstance(
        error,
        RunFolderError | RunNotFoundError | UnknownCheckpointError | ConfigError | SettingError | CallbackConfigError,
    )


def describe_os_error(error: OSError) -> str:
    """An operating-system error as a sentence.

    >>> describe_os_error(PermissionError(13, "Permission denied", "runs/x"))
    'runs/x cannot be used: permission denied'
    """
    message = error.strerror or str(error)
    reason = "it already exists" if isinstance(error, FileExistsError) else message[:1].lower() + message[1:]
    if error.filename is None:
        return f"a file cannot be written: {reason}"
    return f"{_file_name(error)} cannot be {'written' if error.errno in DISK_FULL else 'used'}: {reason}"


def _concerns(error: OSError, paths: Iterable[Path | str | None]) -> bool:
    """Whether the error's file is one of the paths, inside one, or a parent of one."""
    if error.filename is None:
        return False
    file = Path(_file_name(error)).absolute()
    named = [Path(path).absolute() for path in paths if path is not None]
    return any(file.is_relative_to(path) or path.is_relative_to(file) for path in named)


def _file_name(error: OSError) -> str:
    name: object = error.filename
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
