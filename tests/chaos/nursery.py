"""Real processes for runs, without their start-up: one process imports everything once, and forks for each run.

A fork is a process like any other. It has its own signals and its own exit code, its locks end with it, and it can be
killed. What makes forking safe is that nothing has computed before it: the nursery has a single thread, and says so.
"""

import atexit
import ctypes
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER: whoever outlives its run is then found below the nursery


def with_paths(*folders):
    """A PYTHONPATH with these folders before those that are in it."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


class Nursery:
    """The nursery seen from a test."""

    def __init__(self):
        paths = with_paths(REPOSITORY / "src", REPOSITORY)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error::DeprecationWarning:tests", __file__],
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._hear() == "ready"

    def start(self, folder, *arguments, largest_file=None):
        """Begin `proa ARGUMENTS` in a folder; what it prints goes to `out.txt` there."""
        return self._begin(folder, "proa.cli.main:main", [[*map(str, arguments)]], largest_file)

    def call(self, folder, function, *arguments):
        """Begin a function, given as `module:name`, in a process of its own; what it returns is the exit code."""
        return self._begin(folder, function, arguments)

    def _begin(self, folder, function, arguments, largest_file=None):
        (folder / "out.txt").unlink(missing_ok=True)
        pid = self._ask(
            do="start", folder=str(folder), function=function, arguments=arguments, largest_file=largest_file
        )
        return Run(self, pid, folder / "out.txt")

    def run(self, folder, *arguments, seconds=60.0, **limits):
        """The same, to its end: the exit code, and what was printed."""
        run = self.start(folder, *arguments, **limits)
        return run.wait(seconds), run.printed

    def poll(self, pid):
        return self._ask(do="poll", pid=pid)

    def left_behind(self, seconds=60.0):
        """Everyone who is still there after so long, of all the runs that were started here."""
        until = time.monotonic() + seconds
        while (left := living_below(self._process.pid)) and time.monotonic() < until:
            time.sleep(0.05)
        return left

    def close(self):
        for pid in living_below(self._process.pid):
            os.kill(pid, 9)
        self._process.kill()
        self._process.communicate()

    def _ask(self, **what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self):
        line = self._process.stdout.readline()
        assert line, "the nursery has died"
        return json.loads(line)


class Run:
    """One process of the nursery's."""

    def __init__(self, nursery, pid, out):
        self._nursery, self.pid, self._out = nursery, pid, out
        self._code = None

    @property
    def code(self):
        """None while it goes on, and negative if a signal ended it."""
        if self._code is None:
            self._code = self._nursery.poll(self.pid)
        return self._code

    @property
    def printed(self):
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    def send(self, number):
        if self.code is None:  # else its id may be another's by now
            os.kill(self.pid, number)

    def wait(self, seconds=60.0):
        self.wait_until(lambda: False, seconds, "end")
        return self.code

    def wait_until(self, ready, seconds=60.0, what="get there"):
        """Until something is so, or the process has ended."""
        until = time.monotonic() + seconds
        while self.code is None and not ready():
            if time.monotonic() > until:
                os.kill(self.pid, 9)
                raise AssertionError(f"the run did not {what} within {seconds:g} s:\n{self.printed}")
            time.sleep(0.003)

    def wait_until_it_listens(self, number):
        """Until it has a handler of its own for a signal."""
        self.wait_until(lambda: _catches(self.pid, number), what="listen")


def living_below(pid):
    """Every process below another that is not dead already."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,stat"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()[1:]]
    parents = {int(row[0]): int(row[1]) for row in rows}
    dead = {int(row[0]) for row in rows if row[2].startswith(("Z", "X"))}
    found, level = set(), {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found - dead


def _catches(pid, number):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    # Python has a handler for SIGINT from its start; a run's stands for both.
    return bool(int(caught, 16) >> (int(number) - 1) & 1)


# -- the nursery itself ----------------------------------------------------------------------------------


def main():
    import transformers  # noqa: F401 - here, so that no run needs to
    from tests.chaos.waylaying import register
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401

    import proa.cli.main
    import proa.cli.resume
    import proa.cli.train
    import proa.experiments.processes
    import proa.run.local
    import proa.run.supervised  # noqa: F401

    register()
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a process with threads cannot be forked safely"
    tell("ready")
    ended = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "start":
            pid = os.fork()
            if pid == 0:
                become(**asked)
                leave(call(asked["function"], asked["arguments"]))
            ended.pop(pid, None)  # an earlier run had the same id
            tell(pid)
        else:
            gather(ended)
            tell(ended.get(asked["pid"]))


def become(folder, largest_file, **_):
    """A process as a shell would start it."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have nohup before them
    os.chdir(folder)
    for number, place in ((0, os.devnull), (1, "out.txt"), (2, "out.txt")):
        there = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(there, number)
        os.close(there)
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - the nursery's has lines in it that are for others
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))


def call(function, arguments):
    """The exit code of a process whose main function is that."""
    module, _, name = function.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(*arguments)
    except SystemExit as ends:
        return ends.code
    except BaseException:
        traceback.print_exc()
        return 1


def leave(code):
    """As at the end of a program, but for the modules: to take torch apart would cost more than most runs here."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(120)  # as Python does
    os._exit(code or 0)


def gather(ended):
    """Note who has ended, and how."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended[pid] = os.waitstatus_to_exitcode(status)


def tell(what):
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
