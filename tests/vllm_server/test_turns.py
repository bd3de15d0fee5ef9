"""Turns at a server: one at a time, whoever waits is next, and nobody's end keeps the others out."""

import os
import signal
import subprocess
import sys
import uuid

from proa.engines.vllm_server.turns import Turn

SECONDS = 60.0


def test_one_at_a_time_and_whoever_waits_is_next():
    address = f"http://{uuid.uuid4()}"
    one, other = Turn(address), Turn(address)
    assert one.take(SECONDS)
    assert not one.is_wanted()
    assert not other.take(0.0)
    assert one.is_wanted()
    one.leave()
    assert not one.take(0.0)  # it cannot overtake
    assert other.take(SECONDS)
    assert one.is_mine is False
    other.leave()
    assert one.take(SECONDS)
    one.leave()


def test_servers_do_not_share_a_turn():
    one, other = Turn("http://a.test"), Turn("http://b.test")
    assert one.take(SECONDS)
    assert other.take(SECONDS)
    one.leave()
    other.leave()


def test_a_process_that_is_killed_leaves_its_turn():
    address = f"http://{uuid.uuid4()}"
    code = (
        "import sys, time; from proa.engines.vllm_server.turns import Turn; "
        f"t = Turn({address!r}); print(t.take(60), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "True\n"
        mine = Turn(address)
        assert not mine.take(0.0)
        os.kill(child.pid, signal.SIGKILL)
        assert mine.take(SECONDS)
        mine.leave()
