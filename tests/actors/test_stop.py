"""One request to stop, from whoever asks to whoever works or waits."""

import threading

import pytest

from proa.actors.stop import StopRequest


def test_the_first_reason_stays():
    stop = StopRequest()
    stop.check()
    stop.request("SIGTERM")
    stop.request("SIGINT")
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        stop.check()


def test_whoever_waits_is_woken_and_nobody_after_that():
    stop, woken = StopRequest(), threading.Event()
    with stop.waking(woken.set):
        threading.Thread(target=stop.request, args=("SIGTERM",)).start()
        assert woken.wait(120)
    woken.clear()
    stop.request("again")
    assert not woken.is_set()


def test_whoever_comes_late_is_woken_at_once():
    stop, woken = StopRequest(), []
    stop.note("SIGTERM")
    with stop.waking(lambda: woken.append(1)):
        assert woken == [1]


def test_noting_wakes_nobody():
    stop, woken = StopRequest(), []
    with stop.waking(lambda: woken.append(1)):
        stop.note("SIGTERM")
        assert woken == []
        stop.wake()
        assert woken == [1]
