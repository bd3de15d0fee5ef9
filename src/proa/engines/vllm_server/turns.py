"""Engines of one process that use the same server take turns: it has the weights of one of them."""

from __future__ import annotations

import threading
from collections import deque
from typing import ClassVar


class Turn:
    """Who may use a server now. Those who wait come in their order."""

    _all: ClassVar[dict[str, Turn]] = {}
    _making = threading.Lock()

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()

    @classmethod
    def at(cls, address: str) -> Turn:
        """That of the server at an address."""
        with cls._making:
            return cls._all.setdefault(address, cls())

    def is_mine(self, user: object) -> bool:
        """Whether it is this one's."""
        with self._changed:
            return bool(self._line) and self._line[0] is user

    def take(self, user: object, seconds: float) -> bool:
        """Whether it became this one's within the time; if not it stays in line."""
        with self._changed:
            if not any(one is user for one in self._line):
                self._line.append(user)
            return self._changed.wait_for(lambda: self._line[0] is user, seconds)

    def is_wanted(self) -> bool:
        """Whether others wait for it."""
        with self._changed:
            return len(self._line) > 1

    def leave(self, user: object) -> None:
        """Give it up, or the place in line."""
        with self._changed:
            self._line = deque(one for one in self._line if one is not user)
            self._changed.notify_all()
