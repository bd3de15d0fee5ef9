"""How verbs end when something goes wrong: in words where it is the user's, with a traceback where it is ours."""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from ..errors import CallbackConfigError, ProaError, SettingError
from ..record.reading import RunNotFoundError
from ..record.run_folder import RunFolderError
from ..visible import print_visible

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def let_go() -> bool:
    """Where nobody reads what is printed any more, print it to nowhere from now on; whether that is so."""
    gone = [stream for stream in _streams() if _reader_is_gone(stream)]
    for stream in gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(gone)


def _streams() -> list[IO[Any]]:
    """What is printed to; one that was closed (`>&-`) is none."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _reader_is_gone(stream: IO[Any]) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))  # a pipe's, a terminal's
    except (OSError, ValueError):  # a stream without a file
        return False


def ending(work: Callable[[], int], given: Iterable[Path | str | None] = ()) -> int:
    """Do it. Exit code: what it returns; or 1 failed, 2 wrong use, with what is to be said of it on stderr.

    `given` are paths that the user gave: one that cannot be used is wrong use.
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
        if not any(map(_reader_is_gone, _streams())):  # then it is somebody else's pipe
            _print_traceback(error)
            return 1
        raise
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            _print_traceback(error)
            return 1
        print_visible(told(error), file=sys.stderr)
        return 2 if error.errno not in FULL and _is_below(error, given) else 1
    except SystemExit as leaving:
        return _left(leaving)
    except Exception as error:
        _print_traceback(error)
        return 1


def _left(leaving: SystemExit) -> int:
    """The exit code where a callback, a reward or a model's code called `sys.exit()`: that is not that all was done."""
    print_visible(f"something within called sys.exit({leaving.code!r}) before all was done", file=sys.stderr)
    return leaving.code if isinstance(leaving.code, int) and leaving.code else 1


def _print_traceback(error: Exception) -> None:
    print_visible("".join(traceback.format_exception(error)).rstrip("\n"), file=sys.stderr)


def _is_wrong_use(error: ProaError) -> bool:
    from ..config import ConfigError  # takes a while, and whoever only looks at a run has no need of it

    return isinstance(error, RunFolderError | RunNotFoundError | ConfigError | SettingError | CallbackConfigError)


def told(error: OSError) -> str:
    """What the system says of a file, as a sentence.

    >>> told(PermissionError(13, "Permission denied", "runs/x"))
    'runs/x cannot be used: permission denied'
    """
    if error.filename is None:
        return f"something cannot be written: {_why(error)}"
    return f"{_text(error.filename)} cannot be {'written' if error.errno in FULL else 'used'}: {_why(error)}"


def _why(error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return "there is something of that name already"
    said = error.strerror or str(error)
    return said[:1].lower() + said[1:]


def _is_below(error: OSError, given: Iterable[Path | str | None]) -> bool:
    """Whether it is a path that the user gave, one inside it, or one that leads to it."""
    if error.filename is None:
        return False
    wrong = Path(_text(error.filename)).absolute()
    places = [Path(one).absolute() for one in given if one is not None]
    return any(wrong.is_relative_to(place) or place.is_relative_to(wrong) for place in places)


def _text(filename: object) -> str:
    return filename.decode(errors="replace") if isinstance(filename, bytes) else str(filename)
