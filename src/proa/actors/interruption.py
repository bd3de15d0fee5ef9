"""Ctrl-C, SIGTERM and a closed terminal as stop requests: the run saves a checkpoint at its next boundary and ends.

The first signal is a request. The loop sees it between two steps, saves, and raises `KeyboardInterrupt`. The second
signal, or the end of the grace period, raises `KeyboardInterrupt` wherever the main thread is; then the last checkpoint
counts.

A terminal that closes sends SIGHUP more than once (the kernel to its foreground group, a shell to its jobs), so SIGHUP
never counts as the second signal; and under `nohup`, which ignores it from the start, it stays ignored.

A signal handler that does more than note the signal can deadlock on a lock that its own thread holds, so a separate
thread wakes a trainer that waits.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from .stop import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
LOOK_SECONDS = 0.05
SAVING_NOTICE = b"\ninterrupted: saving a checkpoint after this step; once more to leave at once\n"


class Interruption:
    """Turns signals into stop requests; the run looks at `stop`."""

    def __init__(self, grace: float = 60.0) -> None:
        self.grace = grace
        self.stop = StopRequest()
        self.polled = False
        """Whether the run polls `at_once`, so that the second signal need not raise."""
        self.at_once = False
        """Whether there was a second signal, or the grace period is over."""
        self._listens_to: list[signal.Signals] = []
        self._since = 0.0
        self._owes_notice = False

    @property
    def reason(self) -> str:
        """The name of the first signal; empty if there was none."""
        return self.stop.reason

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a stop was requested."""
        self.stop.check()

    def ask(self, reason: str) -> None:
        """Request a stop, as a signal does; another thread soon wakes those that wait."""
        self._since = self._since or monotonic()  # before the reason, as the watcher reads it after that
        self.stop.note(reason)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, signals are stop requests; nesting changes nothing. Outside the main thread, where Python has no
        signals, it does nothing."""
        if self._listens_to or threading.current_thread() is not threading.main_thread():
            yield
            return
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,), name="proa interruption", daemon=True)
        self._listens_to = [number for number in SIGNALS if not _is_ignored_hangup(number)]
        before = [(number, signal.signal(number, self._note)) for number in self._listens_to]
        watcher.start()
        try:
            yield
        finally:
            self._listens_to = []
            for number, handler in before:
                signal.signal(number, handler)
            over.set()
            watcher.join(1.0)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Inside, the caller polls `at_once`: an exception in the middle of a call to Ray would corrupt it."""
        before, self.polled = self.polled, True
        try:
            yield
        finally:
            self.polled = before

    def listen_again(self) -> None:
        """Take the signals back from a library that took them: Ray takes SIGTERM when a driver connects."""
        if threading.current_thread() is threading.main_thread():
            for number in self._listens_to:
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: Any) -> None:
        name = signal.Signals(number).name
        if not self.reason:
            if _has_panel():
                self._owes_notice = True
            else:
                _print_in_handler(SAVING_NOTICE)
            self.ask(name)
        elif name != "SIGHUP":
            self.at_once = True
            if not self.polled:
                raise KeyboardInterrupt(self.reason)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            if not self.reason:
                continue
            if self._owes_notice:
                self._owes_notice = False
                print(SAVING_NOTICE.decode().strip(), file=sys.stderr)
            self.stop.wake()  # each time again, as a wait may have begun since
            self._since = self._since or monotonic()  # if the stop was requested without `ask`
            if monotonic() - self._since > self.grace:
                main = threading.main_thread().ident
                if main is not None:
                    signal.pthread_kill(main, signal.SIGINT)  # as the second signal; it also ends a wait
                return


def _is_ignored_hangup(number: signal.Signals) -> bool:
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


def _has_panel() -> bool:
    """Whether rich shows a live panel and has replaced the streams by ones that print above it. They take locks, so a
    handler must not use them, and output that bypasses them would tear the panel apart."""
    return hasattr(sys.stderr, "rich_proxied_file")


def _print_in_handler(line: bytes) -> None:
    """Write to stderr if it takes the line at once: the reader of a pipe may be gone (Ctrl-C ends `tee` as well) or
    asleep, and a handler must neither raise nor wait."""
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, line)
