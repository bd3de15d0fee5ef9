"""The main loop of a worker process: it loads the reward functions and answers calls until its parent is gone.

Functions run on the main thread, because libraries like math-verify set `signal.alarm`, which works only there.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from ..processes.channel import Channel, Message
from ..processes.printed import STDERR, STDOUT, PrintedText
from .calling import CallFailed, CallSkipped, call
from .function import RewardFunction
from .score import Outcome

START_SECONDS = 120.0
"""How long a worker may take to start, mostly to import the functions' modules."""
_GRACE_SECONDS = 1.0

Answer = list[Outcome] | CallFailed


def main(descriptor: int) -> None:
    """Serve the parent on the socket with this file descriptor."""
    channel = Channel(socket.socket(fileno=descriptor))
    channel.close_on_fork()
    own_id = os.getpid()
    printed = [PrintedText(channel, STDOUT, sys.stdout), PrintedText(channel, STDERR, sys.stderr)]
    sys.stdout, sys.stderr = printed  # as much of a stream as functions need
    try:
        _end_after(START_SECONDS)
        number, given = channel.receive()
        functions = {name: _load(name, one) for name, one in pickle.loads(given).items()}  # noqa: S301
        channel.send(Message(number, b"ready"))
        while True:
            faulthandler.cancel_dump_traceback_later()
            number, question = channel.receive()
            answer = pickle.dumps(_answer(functions, question))
            for stream in printed:
                stream.flush_all()  # this process is killed at the end, with what it has not sent
            if os.getpid() != own_id:  # a function forked and both processes returned: only one may answer
                os._exit(0)
            channel.send(Message(number, answer))
    except EOFError:  # the parent is gone
        pass
    for stream in printed:
        stream.flush_all()
    os._exit(0)  # a function's threads must not keep this process alive


def _load(name: str, given: str | bytes) -> RewardFunction | CallSkipped:
    """Load a dotted path or a pickled callable; on failure return the error of every call."""
    try:
        return replace(RewardFunction.load(given if isinstance(given, str) else pickle.loads(given)), name=name)  # noqa: S301
    except Exception as error:  # the user's module is imported here
        reason = f"{type(error).__name__}: {error}"
        return CallSkipped(f"reward {name!r} could not be loaded in the worker process: {reason}")


def _answer(functions: Mapping[str, RewardFunction | CallSkipped], question: bytes) -> Answer:
    try:
        name, samples, seconds = pickle.loads(question)  # noqa: S301 - from our own parent
    except Exception as error:
        return CallFailed(f"a sample could not be read in the worker process: {type(error).__name__}: {error}")
    function = functions[name]
    if isinstance(function, CallSkipped):
        return function
    _end_after(seconds)
    try:
        return call(function, samples, _finish)
    except CallFailed as failure:
        return type(failure)(str(failure))  # without its cause, which may not be picklable


def _end_after(seconds: float) -> None:
    """End this process if its parent, which kills it at the deadline, is gone.

    This works even while a hang (a regular expression) holds the GIL, where no Python thread can run.
    """
    faulthandler.dump_traceback_later(seconds + _GRACE_SECONDS, exit=True)


_runner: Any = None


def _finish(awaitable: Awaitable[Any]) -> Any:
    """Wait on one event loop for all calls: async clients that a function keeps belong to one loop."""
    global _runner
    import asyncio

    async def wait() -> Any:
        return await awaitable

    if _runner is None:
        _runner = asyncio.Runner()
    return _runner.run(wait())
