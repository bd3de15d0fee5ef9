"""The parent's side of a worker process: started when needed, killed when late, replaced when dead."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from time import monotonic

from ..processes.channel import Channel, Message, StrayBytesError
from ..processes.child import Child
from ..processes.printed import STDERR, STDOUT, show
from .calling import CallFailed, CallSkipped, Died, TimedOut
from .function import RewardError, RewardFunction
from .samples import Samples
from .score import Outcome
from .worker import START_SECONDS, Answer

CLOSED = "these rewards were closed"


class WorkerProcess:
    """Makes calls in one child process, by one thread at a time."""

    def __init__(self, functions: Mapping[str, str | bytes]) -> None:
        self._functions = functions
        self._lock = threading.Lock()  # starting and ending may come from different threads
        self._child: Child | None = None
        self._channel: Channel | None = None
        self._questions = 0
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.pid if self._child else None

    def prepare(self) -> None:
        if self._child is not None and self._child.is_running():
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
        answer = channel.receive(until - monotonic())
        while answer.number in (STDOUT, STDERR):
            show(answer)
            if monotonic() > until:  # it prints and prints
                raise TimeoutError
            answer = channel.receive(until - monotonic())
        if answer.number != self._questions:
            raise StrayBytesError
        return answer.content

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
            self._child = Child("proa.rewards.worker")
            self._channel = Channel(self._child.endpoint)
            return self._channel

    def _kill(self) -> str:
        """Kill the child and what it started; return how it ended, by itself or by this."""
        with self._lock:
            if self._child is None or self._channel is None:
                return "closed"
            self._child.kill()
            ended = self._child.wait()
            self._channel.close()
            self._child, self._channel = None, None
        return ended
