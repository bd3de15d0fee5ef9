"""Ctrl-C and SIGTERM: the first asks, the second leaves, and nothing is left behind."""

import contextlib
import io
import os
import signal
import sys
import threading
import time

import pytest

from proa.actors import interruption as module
from proa.actors.interruption import Interruption


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.005)


def send(number=signal.SIGINT):
    """Raise a signal, and see it handled: this is the main thread, in which that is done before the next line."""
    signal.raise_signal(number)


def wait_for(happened, seconds=60.0):
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.002)
    assert happened()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_says_what_a_second_does(number, capfd):
    interruption = Interruption()
    assert interruption.reason == ""
    with interruption.listening():
        send(number)
        assert (interruption.reason, interruption.at_once) == (number.name, False)
    assert "saving a checkpoint after this step; once more to leave at once" in capfd.readouterr().err


@contextlib.contextmanager
def stderr_into(descriptor):
    before = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def test_a_reader_that_is_gone_does_not_turn_a_request_into_an_error():
    """The handler would raise in the middle of a step, and the run would fail."""
    reading, writing = os.pipe()
    os.close(reading)
    interruption = Interruption()
    with stderr_into(writing), interruption.listening():
        send()
    os.close(writing)
    assert (interruption.reason, interruption.at_once) == ("SIGINT", False)


def test_a_reader_that_reads_no_more_does_not_hold_the_handler_up():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"full" * 1024)
    os.set_blocking(writing, True)
    interruption = Interruption()
    with stderr_into(writing), interruption.listening():
        send()
    for descriptor in (writing, reading):
        os.close(descriptor)
    assert interruption.reason == "SIGINT"


@pytest.fixture
def with_a_terminal():
    """Whoever runs these tests may have nohup before them."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("with_a_terminal")
def test_a_closed_terminal_asks_and_never_counts_as_the_second_signal(capfd):
    """The kernel tells the group of a terminal that closes, and the shell may tell its jobs too."""
    interruption = Interruption()
    with interruption.listening():
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            if number == signal.SIGTERM:
                with pytest.raises(KeyboardInterrupt, match="SIGHUP"):
                    send(number)
            else:
                send(number)
                assert (interruption.reason, interruption.at_once) == ("SIGHUP", False)


def test_under_nohup_a_closed_terminal_stays_ignored(capfd):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with interruption.listening():
            interruption.listen_again()
            send(signal.SIGHUP)
        assert interruption.reason == ""
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_signal_leaves_at_once(capfd):
    interruption = Interruption()
    with interruption.listening():
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            send(signal.SIGINT)
    assert (interruption.reason, interruption.at_once) == ("SIGTERM", True)


def test_where_somebody_polls_the_second_signal_raises_nothing(capfd):
    interruption = Interruption()
    interruption.polled = True
    with interruption.listening():
        send()
        send()
        assert interruption.at_once


def test_after_the_grace_period_it_leaves_as_by_a_second_signal(capfd):
    interruption = Interruption(grace=0.02)
    with pytest.raises(KeyboardInterrupt, match="SIGINT"), interruption.listening():
        send()
        time.sleep(60)
    assert interruption.at_once


def test_before_the_grace_period_is_over_it_goes_on(capfd):
    interruption, looks = Interruption(grace=3600), []
    with interruption.listening(), interruption.stop.waking(lambda: looks.append(1)):
        send()
        wait_for(lambda: len(looks) >= 2)  # the watcher has looked again, and at the grace period too
    assert not interruption.at_once


def test_the_grace_period_begins_with_the_first_request(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    interruption = Interruption(grace=60)
    interruption.ask("first")
    clock[0] += 61
    interruption.ask("second")
    with pytest.raises(KeyboardInterrupt, match="first"), interruption.listening():
        time.sleep(60)


def test_the_grace_period_has_begun_when_the_request_can_be_seen(monkeypatch):
    interruption, begun = Interruption(), []
    monkeypatch.setattr(interruption.stop, "note", lambda reason: begun.append(interruption._since > 0))
    interruption.ask("SIGINT")
    assert begun == [True]


def test_a_stop_that_was_requested_from_python_has_its_grace_period_too(monkeypatch):
    monkeypatch.setattr(module, "monotonic", lambda: 1e6)  # of a machine that has been up for long
    interruption, looks = Interruption(grace=60), []
    with interruption.listening(), interruption.stop.waking(lambda: looks.append(1)):
        interruption.stop.request("a callback")
        wait_for(lambda: len(looks) >= 3)
    assert not interruption.at_once


def test_whoever_waits_is_woken_in_another_thread(capfd):
    interruption, woken = Interruption(), []
    with interruption.listening(), interruption.stop.waking(lambda: woken.append(threading.current_thread())):
        assert woken == []
        send()
        wait_for(lambda: woken)
        assert interruption.reason == "SIGINT"
    assert all(thread is not threading.main_thread() for thread in woken)


def test_the_handlers_that_were_there_are_there_again(capfd):
    heard = []
    before = {number: signal.signal(number, lambda *_: heard.append("mine")) for number in module.SIGNALS}
    try:
        for leave in (lambda: None, lambda: 1 / 0):
            try:
                with Interruption().listening():
                    send()
                    leave()
            except ZeroDivisionError:
                pass
            assert heard == []
            for number in module.SIGNALS:
                send(number)
            assert heard == ["mine"] * len(module.SIGNALS)
            heard.clear()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not [thread for thread in threading.enumerate() if thread.name == "proa interruption"]


def test_outside_the_main_thread_no_handler_is_set():
    handlers, heard = [signal.getsignal(number) for number in module.SIGNALS], []

    def elsewhere():
        with Interruption().listening():
            heard.append([signal.getsignal(number) for number in module.SIGNALS])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard == [handlers]


class Proxy(io.StringIO):
    """As rich puts before stderr while a panel is shown."""

    rich_proxied_file = None

    def __init__(self):
        super().__init__()
        self.said = threading.Event()

    def write(self, text):
        super().write(text)
        if "once more" in self.getvalue():
            self.said.set()
        return len(text)


def test_while_a_panel_is_shown_the_notice_goes_through_the_panels_stream(monkeypatch, capfd):
    proxy = Proxy()
    monkeypatch.setattr(sys, "stderr", proxy)
    with Interruption().listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert proxy.said.wait(120)
    assert capfd.readouterr().err == ""
