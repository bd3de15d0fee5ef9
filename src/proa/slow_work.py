"""Work that may take long is said to be under way, while it lasts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SLOW_SECONDS = 3.0
"""After which whoever waits is told why."""


@contextmanager
def saying_if_slow(what: str, log: logging.Logger) -> Iterator[None]:
    """Say what is going on, while it goes on, if it takes long."""
    timer = threading.Timer(SLOW_SECONDS, log.warning, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
