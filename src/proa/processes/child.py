"""A child process of our own interpreter: started with a socket to it, and ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

# Not a child of multiprocessing, which would run the user's script again (and import torch, or start training where
# `if __name__ == "__main__"` is missing). It leads its own process group, so that what a function started dies with
# it and Ctrl-C does not reach it.
_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[2:]; from {module} import main; main(int(sys.argv[1]))"
KILL_SECONDS = 10.0
"""How long a killed process is waited for: it ends at once, unless the kernel is stuck."""


class Child:
    """Runs `main(descriptor)` of a module with the other end of `endpoint`; the caller closes that."""

    def __init__(self, module: str) -> None:
        self.endpoint, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _BOOTSTRAP.format(module=module), str(theirs.fileno()), *sys.path]
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
            except OSError:
                self.endpoint.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it and what it started, without waiting."""
        if self._process.returncode is None:  # else its id may belong to another process by now
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, seconds: float = KILL_SECONDS) -> str:
        """Wait for its end; return how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return describe_exit(self._process.returncode)


def describe_exit(exit_code: int | None) -> str:
    """
    >>> describe_exit(3), describe_exit(-9), describe_exit(None)
    ('exit code 3', 'killed by SIGKILL', 'still dying')
    """
    if exit_code is None:
        return "still dying"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
