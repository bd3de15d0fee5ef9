"""A worker process seen from its parent: started when needed, killed when late, replaced when gone."""

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

from .calling import CallFailed, Died, NotCalled, TimedOut
from .channel import Channel, Message, StrayBytesError
from .function import RewardError, RewardFunction
from .samples import Samples
from .score import Outcome
from .worker import START_SECONDS, Answer

# A plain child rather than multiprocessing's: it does not run the user's script again (which imports torch,
# or starts training where `if __name__ == "__main__"` is missing), and it leads a process group of its own,
# so that what a function started dies with it and Ctrl-C does not reach it.
_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[2:]; from proa.rewards.worker import main; main(int(sys.argv[1]))"
CLOSED = "these rewards were closed"
_KILL_SECONDS = 10.0  # a killed process goes at once, unless the kernel is stuck with it


class WorkerProcess:
    """Makes calls in one child process, by one thread at a time."""

    def __init__(self, functions: Mapping[str, str | bytes]) -> None:
        self._functions = functions
        self._lock = threading.Lock()  # of starting and ending, which may come from different threads
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
            raise NotCalled(
                "the worker process of the rewards sent something that is no answer, at its start"
            ) from None
        except TimeoutError:
            self._kill()
            raise NotCalled(f"the worker process of the rewards did not start within {START_SECONDS:g} s") from None
        except EOFError:
            raise NotCalled(f"the worker process of the rewards died at its start ({self._kill()})") from None

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
                f"reward {function.name!r}: its worker sent something that is no answer to this call, and was replaced "
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
        """The answer to this question and to no other."""
        until = monotonic() + seconds
        self._questions += 1
        channel.send(Message(self._questions, question), seconds)
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
        self._kill()  # what is left of the last one
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
        """End the child and what it started, and say how it ended; one that is dead already keeps its own way."""
        with self._lock:
            if self._process is None or self._channel is None:
                return "closed"
            if self._process.returncode is None:  # else its id may be another's by now
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_SECONDS)
            self._channel.close()
            code, self._process, self._channel = self._process.returncode, None, None
        return "still dying" if code is None else _in_words(code)


def _in_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
