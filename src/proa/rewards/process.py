"""The parent's side of a worker process: started when needed, killed when late, replaced when dead."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from time import monotonic

from .calling import CallFailed, CallSkipped, Died, TimedOut
from .channel import STDERR, STDOUT, Channel, Message, StrayBytesError
from .function import RewardError, RewardFunction
from .samples import Samples
from .score import Outcome
from .worker import START_SECONDS, Answer

# Not a child of multiprocessing, which would run the user's script again (and import torch, or start training where
# `if __name__ == "__main__"` is missing). It leads its own process group, so that what a function started dies with
# it and Ctrl-C does not reach it.
_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[2:]; from proa.rewards.worker import main; main(int(sys.argv[1]))"
CLOSED = "these rewards were closed"
_KILL_SECONDS = 10.0  # a killed process ends at once, unless the kernel is stuck


class WorkerProcess:
    """Makes calls in one child process, by one thread at a time."""

    def __init__(self, functions: Mapping[str, str | bytes]) -> None:
        self._functions = functions
        self._lock = threading.Lock()  # starting and ending may come from different threads
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._questions = 0
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    def prepare(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        channel = self._start()
        try:
            self._ask(channel, pickle.dumps(dict(self._functions)), START_SECONDS)
        except StrayBytesError:
            self._kill()
            raise CallSkipped("the worker process of the rewards sent an invalid answer at its start") from None
        except TimeoutError:
            self._kill()
            raise CallSkipped(f"the worker process of the rewards did not start within {START_SECONDS:g} s") from None
        except EOFError:
            raise CallSkipped(f"the worker process of the rewards died at its start ({self._kill()})") from None

    def call(self, function: RewardFunction, samples: Samples, seconds: float | None) -> list[Outcome]:
        channel = self._channel
        if channel is None or seconds is None:  # closed by another thread since `prepare`
            raise RewardError(CLOSED)
        try:
            question = pickle.dumps((function.name, samples, seconds))
        except Exception as error:
            raise CallFailed(f"a sample cannot be sent to the worker process: {error}") from error
        try:
            answer: Answer = pickle.loads(self._ask(channel, question, seconds))  # noqa: S301 - our own child
        except StrayBytesError:
            self._kill()
            raise Died(
                f"reward {function.name!r}: its worker sent an invalid answer and was replaced "
                "(does the function write to file descriptors that are not its own?)"
            ) from None
        except TimeoutError:
            self._kill()
            raise TimedOut(f"reward {function.name!r} timed out after {seconds:.3g} s") from None
        except EOFError:
            raise Died(f"reward {function.name!r}: its worker died ({self._kill()})") from None
        if isinstance(answer, CallFailed):
            raise answer
        return answer

    def _ask(self, channel: Channel, question: bytes, seconds: float) -> bytes:
        """Send a question and return its answer."""
        until = monotonic() + seconds
        self._questions += 1
        channel.send(Message(self._questions, question), seconds)
        number, answer = channel.receive(until - monotonic())
        while number in (STDOUT, STDERR):
            stream = sys.stdout if number == STDOUT else sys.stderr
            if stream is not None:  # which may be closed
                stream.write(answer.decode("utf-8", "replace"))
                stream.flush()
            if monotonic() > until:  # it prints and prints
                raise TimeoutError
            number, answer = channel.receive(until - monotonic())
        if number != self._questions:
            raise StrayBytesError
        return answer

    def end(self) -> None:
        """Kill the child for good."""
        with self._lock:
            self._ended = True
        self._kill()

    def _start(self) -> Channel:
        self._kill()  # the remains of the previous one
        with self._lock:
            if self._ended:
                raise RewardError(CLOSED)
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), *sys.path]
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
            self._channel = Channel(ours)
            return self._channel

    def _kill(self) -> str:
        """Kill the child and what it started; return how it ended, by itself or by this."""
        with self._lock:
            if self._process is None or self._channel is None:
                return "closed"
            if self._process.returncode is None:  # else its id may belong to another process by now
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_SECONDS)
            self._channel.close()
            code, self._process, self._channel = self._process.returncode, None, None
        return "still dying" if code is None else _describe_exit(code)


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
