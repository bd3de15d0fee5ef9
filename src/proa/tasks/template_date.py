"""The moment that chat templates take for now: that at which the run began, however long it takes and is resumed.

Some templates write today's date into the system prompt (`strftime_now`), so that the same row has other tokens on the
next day.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, tzinfo

_pinned: datetime | None = None


def pinned() -> datetime | None:
    """The moment that is pinned in this process, if one is."""
    return _pinned


def pin(moment: datetime | None) -> None:
    """Have every template of this process take that moment for now; None is the real one again."""
    global _pinned
    from transformers.utils import chat_template_utils

    _pinned = moment
    # The function that templates are given looks the class up here whenever it is called.
    chat_template_utils.datetime = datetime if moment is None else _Pinned  # type: ignore[attr-defined]


@contextlib.contextmanager
def pinned_to(moment: datetime) -> Iterator[None]:
    before = _pinned
    pin(moment)
    try:
        yield
    finally:
        pin(before)


class _Pinned(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) if _pinned is None else _pinned.replace(tzinfo=tz)
