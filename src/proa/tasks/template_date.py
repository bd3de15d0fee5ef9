"""The current time for chat templates: the start of the run, even after it is resumed.

Some templates write today's date into the system prompt (`strftime_now`), so that the same row would have other tokens
the next day.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, tzinfo

_pinned: datetime | None = None


def pinned() -> datetime | None:
    """The time that is pinned in this process, if any."""
    return _pinned


def pin(moment: datetime | None) -> None:
    """Give this time to every template of this process; None restores the real clock."""
    global _pinned
    from transformers.utils import chat_template_utils

    _pinned = moment
    # The templates' `strftime_now` looks this class up at every call.
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
