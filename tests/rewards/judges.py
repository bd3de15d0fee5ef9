"""Reward functions for the tests, at top level so that worker processes can import them."""

import asyncio
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def length(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


def moody(completions):
    """Does what a completion tells it to; otherwise gives its length."""
    return [_obey(text) for text in completions]


async def moody_later(completions):
    await asyncio.sleep(0)
    return moody(completions)


def _obey(text):
    if text == "raise":
        raise ValueError("boom")
    if text == "exit":
        sys.exit(2)
    if text == "die":
        os._exit(3)
    if text == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "hang":
        time.sleep(60)
    if text == "regex":  # holds Python's lock for years
        re.match(r"(a+)+$", "a" * 50 + "b")
    given = {"none": None, "nan": math.nan, "inf": math.inf, "text": "high", "number in text": "1.5", "list": [1.0]}
    return given.get(text, float(len(text)))


def as_numpy(completions):
    import numpy as np

    return np.array([len(text) for text in completions], dtype=np.float32)


def as_torch(completions):
    import torch

    return torch.tensor([len(text) for text in completions])


def as_scalars(completions):
    import numpy as np
    import torch

    return [np.float64(1.5), torch.tensor(2.0), True, np.int64(4)]


def same_answer(completions, answer):
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def misspelt(completions, anwser):
    return [0.0] * len(completions)


def forgets_to_return(completions):
    [len(text) for text in completions]


def one_number_for_all(completions):
    return 0.5


def talkative(completions, **_):
    print("scoring", *completions)
    return [1.0] * len(completions)


def one_value_for_all(completions):
    return [0.5]


def one_value_too_many(completions):
    return [0.5] * (len(completions) + 1)


def as_text(completions):
    return "x" * len(completions)


def alarm(completions):
    """As math-verify does: works on the main thread only."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    signal.alarm(0)
    return [1.0] * len(completions)


def modules(completions):
    return [float(name in sys.modules) for name in completions]


def process(completions):
    return [float(os.getpid())] * len(completions)


def keeps_a_loop(completions):
    """1 if the event loop is the one of the last call."""

    async def same():
        global _loop
        before, _loop = _loop, asyncio.get_running_loop()
        return [float(before is _loop)] * len(completions)

    return same()


_loop = None


def starts_a_child_and_hangs(completions):
    child, pids = subprocess.Popen(["sleep", "600"]), Path(completions[0])
    pids.with_suffix(".new").write_text(str(child.pid))
    pids.with_suffix(".new").rename(pids)
    time.sleep(600)


def waits_or_releases(completions):
    """`wait FOLDER` says that it waits there, and does until `release FOLDER` comes."""
    what, folder = completions[0].split(" ", 1)
    if what == "release":
        Path(folder, "released").touch()
        return [2.0]
    Path(folder, "waiting").touch()
    while not Path(folder, "released").exists():
        time.sleep(0.01)
    return [1.0]


def hangs_in_a_regex(completions):
    """Having made the file that it is given; other completions are fine."""
    if completions[0].startswith("/"):
        Path(completions[0]).touch()
        _obey("regex")
    return [1.0]


def forks(completions):
    """Leaves two processes behind in the same call, as `multiprocessing` used wrongly does; both of them answer."""
    if "fork" in completions:
        os.fork()
    if "fork in C" in completions:  # Python is not told of this one
        ctypes.CDLL(None).fork()
    return [float(len(text)) for text in completions]


def writes_into_its_channel(completions):
    """As a library does that writes to a descriptor which is no longer its own."""
    for descriptor in own_sockets():
        os.write(descriptor, completions[0].encode())
    return [1.0] * len(completions)


def inheritable_sockets(completions):
    return [float(sum(map(os.get_inheritable, own_sockets())))] * len(completions)


def own_sockets():
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [int(link.name) for link in links if str(link.readlink()).startswith("socket:")]


def starts_a_thread(completions):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return [float(os.getpid())] * len(completions)


class Longer:
    """A reward with a setting."""

    def __init__(self, than=3):
        self.than = than

    def __call__(self, completions, **columns):
        return [float(len(text) > self.than) for text in completions]


class NeedsASetting:
    def __init__(self, setting):
        self.setting = setting

    def __call__(self, completions):
        return [0.0]


class CannotBeReadBack:
    """Pickles, but cannot be unpickled."""

    def __call__(self, completions):
        return [1.0] * len(completions)

    def __reduce__(self):
        return (_refuse, ())


def _refuse():
    raise RuntimeError("not here")


def logs(completions, log_metric, log_extra):
    """Logs a metric of the batch, a number and a text of each sample."""
    log_metric("batch", len(completions))
    log_extra("length", [len(text) for text in completions])
    log_extra("shouted", [text.upper() if text else None for text in completions])
    return [1.0 for _ in completions]


def knows_the_step(completions, trainer_state):
    """The share of the run that the weights have had."""
    return [trainer_state.global_step / trainer_state.max_steps for _ in completions]
