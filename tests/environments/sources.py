"""Tools, environments and agents for the tests, at top level so that worker processes can import them."""

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from proa.environments import Start, Step


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def obey(order: str):
    """Do what is told.

    Args:
        order: what to do
    """
    return _obey(order)


async def obey_later(order: str):
    """Do what is told, on the event loop.

    Args:
        order: what to do
    """
    await asyncio.sleep(0)
    if order in ("hang", "hang_later"):
        await asyncio.sleep(600)
    return _obey(order)


def evaluate(function: str, opened: int, self: str = "x") -> str:
    """A tool whose parameters have names that its callers may have too.

    Args:
        function: what to evaluate
        opened: how often
        self: of what
    """
    return f"{function} {opened} {self}"


class TakesColumns:
    """For TRL: its columns have such names too."""

    def reset(self, function, opened, **_):
        return f"{function} {opened}"

    def look(self) -> str:
        """Look."""
        return ""


class UnsendableError(Exception):
    """Cannot be pickled, nor read."""

    def __init__(self):
        super().__init__("boom")
        self.lock = threading.Lock()

    def __str__(self):
        raise ValueError("no text either")


class Thing:
    def __repr__(self):
        return "a thing"


def _obey(order):
    what, _, given = order.partition(" ")
    return _ORDERS[what](given) if what in _ORDERS else f"did {order}"


def _raise(error):
    raise error


def _loop(_):
    while True:
        pass


def _stubborn(_):
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


def _print(_):
    while True:
        print("x" * 1000)


def _hold(path):
    """Say that it is here, and hold Python's lock for years."""
    Path(path).touch()
    re.match(r"(a+)+$", "a" * 50 + "b")


def _wait(path):
    """Say that it is here, and wait until told otherwise."""
    Path(path).touch()
    while not Path(path + ".go").exists():
        time.sleep(0.005)
    return "waited"


def _eat(_):
    eaten = []
    while True:
        eaten.append(bytearray(10_000_000))


_kept = []


def _keep(_):
    while True:
        _kept.append(bytearray(10_000_000))


def _write_to_sockets(text):
    """As a library does that writes to a descriptor which is no longer its own."""
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and str(link.readlink()).startswith("socket:"):
            os.write(int(link.name), text.encode())


def _child(path):
    Path(path).write_text(str(subprocess.Popen(["sleep", "600"]).pid))


_ORDERS = {
    "raise": lambda _: _raise(ValueError("boom")),
    "raise_unsendable": lambda _: _raise(UnsendableError()),
    "exit": lambda _: sys.exit(2),
    "interrupt": lambda _: _raise(KeyboardInterrupt()),
    "cancel": lambda _: _raise(asyncio.CancelledError()),
    "die": lambda _: os._exit(3),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda _: time.sleep(600),
    "loop": _loop,
    "stubborn": _stubborn,
    "hold": _hold,
    "wait": _wait,
    "print": _print,
    "say": lambda text: print(text),
    "mutter": lambda text: print(text, end=""),
    "long": lambda _: "x" * 10_000_000,
    "bytes": lambda _: b"ok \xff\xfe",
    "surrogate": lambda _: "half \ud800",
    "thing": lambda _: {"it": Thing()},
    "lock": lambda _: threading.Lock(),
    "nothing": lambda _: None,
    "take": lambda _: f"took {len(bytearray(100_000_000))}",
    "fork": lambda _: str(bool(os.fork())),
    "fork_in_c": lambda _: str(bool(ctypes.CDLL(None).fork())),
    "eat": _eat,
    "keep": _keep,
    "ask": lambda _: bytearray(10**13),
    "touch": lambda path: Path(path).touch(),
    "write": _write_to_sockets,
    "child": _child,
    "pid": lambda _: str(os.getpid()),
    "thread": lambda _: str(threading.get_ident()),
    "modules": lambda names: ",".join(name for name in names.split(",") if name in sys.modules),
}


class Obedient:
    """Does what the row and the messages tell it to."""

    def __init__(self, on_start="nothing"):
        _obey(on_start)
        self._row = None

    def reset(self, row, *, seed):
        self._row = row
        _obey(row.get("reset", "nothing"))

    def step(self, message):
        return Step([{"role": "user", "content": str(_obey(message["content"]))}], reward=1.0)

    def close(self):
        _obey(self._row.get("close", "nothing"))


class ObedientLater:
    """The same, on the event loop."""

    async def reset(self, row, *, seed):
        self._row = row
        if row.get("reset") == "hang":
            await asyncio.sleep(600)
        return await obey_later(row.get("reset", "nothing")) or Start([{"role": "user", "content": f"seed {seed}"}])

    async def step(self, message):
        return Step([{"role": "user", "content": str(await obey_later(message["content"]))}], reward=1.0)

    async def close(self):
        await obey_later(self._row.get("close", "nothing"))


class Shapes:
    """Returns what the row says, written in Python."""

    def reset(self, row, *, seed):
        self._step = row.get("step", "None")
        return eval(row.get("start", "None"))

    def step(self, message):
        return eval(self._step)


async def obey_later_badly(order: str):
    """Do what is told, and hold up the event loop meanwhile.

    Args:
        order: what to do
    """
    return _obey(order)


class StartsTasks:
    """Its tasks end on their own."""

    async def reset(self, row, *, seed):
        return None

    async def step(self, message):
        async def leave():
            sys.exit(7)

        self._task = asyncio.create_task(leave())
        await asyncio.sleep(0.01)
        return "still here"


class CannotBeReadBack:
    """Pickles, but cannot be unpickled."""

    def __reduce__(self):
        return (_refuse, ())


def _refuse():
    raise RuntimeError("not here")


class Diary:
    """Notes what happens to it, in a file of the row's."""

    def reset(self, row, *, seed):
        self._file = Path(row["file"])
        self._note("reset")
        _obey(row.get("reset", "nothing"))

    def step(self, message):
        self._note(message["content"])
        return _obey(message["content"])

    def close(self):
        self._note("close")

    def _note(self, what):
        with self._file.open("a") as file:
            file.write(what + "\n")


class Limits:
    """Says how much memory it may have."""

    def reset(self, row, *, seed):
        pass

    def step(self, message):
        import resource

        return str(resource.getrlimit(resource.RLIMIT_DATA)[0])


class Wordle:
    """As TRL's `environment_factory` takes it."""

    def __init__(self, most: int = 3):
        self.most = most

    @property
    def broken(self):
        raise RuntimeError("a property is not asked")

    def reset(self, **row):
        self.columns = sorted(row)
        self.word = row.get("word", "ocean")
        self.guesses = []
        return row.get("hint")

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: of five letters
        """
        if len(word) != 5:
            raise ValueError("five letters")
        self.guesses.append(word)
        return f"{len(self.guesses)}: " + "".join("=" if a == b else "." for a, b in zip(word, self.word, strict=True))

    async def look(self, place: int) -> str:
        """Look at a letter.

        Args:
            place: which
        """
        await asyncio.sleep(0)
        return f"{len(self.guesses)} guesses, {self.word[place]}"

    def _secret(self):
        return self.word

    def get_reward(self):
        self.times_asked = getattr(self, "times_asked", 0) + 1
        return float(self.word in self.guesses) / self.times_asked


class Silent:
    """The least that TRL takes: its reward is of reward functions."""

    def reset(self, prompt):
        self.prompt = prompt

    def echo(self, text: str) -> str:
        """Echo.

        Args:
            text: what
        """
        return text + str(self.prompt)


async def agent(base_url, api_key, row):
    await asyncio.sleep(0)
    if row["prompt"] == "hang":
        await asyncio.sleep(600)
    found = _obey(row["prompt"])
    return len(base_url + api_key) / 10 if found == "did x" else found


def agent_in_a_thread(base_url, api_key, row):
    return _obey(row["prompt"]) and 0.5
