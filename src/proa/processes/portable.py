"""Whether something of the user's can be sent to a child process, and in what form."""

from __future__ import annotations

import pickle
from typing import Any

# As pickle writes the name of a module: a short text, preceded by its length.
_MAIN = b"\x8c\x08__main__"


class NotPortableToChild(Exception):  # noqa: N818 - says what is so; its message says why
    """It cannot be sent to a child process."""


def pickled(thing: Any) -> bytes:
    """The pickle of something, for a child process to read; NotPortableToChild with the reason if there is none.

    >>> pickled(lambda: 1)
    Traceback (most recent call last):
        ...
    proa.processes.portable.NotPortableToChild: Can't pickle <function <lambda> at ...
    """
    try:
        form = pickle.dumps(thing)
    except Exception as error:  # pickling runs the user's code
        raise NotPortableToChild(str(error)) from error
    if _MAIN in form:
        raise NotPortableToChild("it is defined in the main script or a notebook")
    return form
