"""Work in the background: in order, tried again, and finished or given up at the end."""

import threading

import pytest

from proa.callbacks.deliveries import BusyError, Deliveries, Delivery, RefusedError

DEADLINE = 60.0


class Parcel(Delivery):
    """Raises the given errors, one by one, then succeeds; a gate holds it up."""

    def __init__(self, name, *errors, gate=None, log=None):
        self.name, self.errors, self.gate = name, list(errors), gate
        self.log = [] if log is None else log
        self.entered, self.ended = threading.Event(), 0

    def __str__(self):
        return self.name

    def attempt(self, until):
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(DEADLINE)
        self.log.append(self.name)
        if self.errors:
            raise self.errors.pop(0)

    def end(self):
        self.ended += 1


def deliveries(**settings):
    return Deliveries("post", **{"timeout": DEADLINE, "first_delay": 0.001} | settings)


def counts(post):
    return post.done, post.failed, post.skipped


def test_they_are_done_in_order_also_if_one_is_tried_again():
    post, log = deliveries(), []
    parcels = [Parcel("a", log=log), Parcel("b", OSError("down"), OSError("still"), log=log), Parcel("c", log=log)]
    for parcel in parcels:
        post.submit(parcel)
    post.drain(DEADLINE)
    assert log == ["a", "b", "b", "b", "c"]
    assert counts(post) == (3, 0, 0)
    assert [parcel.ended for parcel in parcels] == [1, 1, 1]


def test_one_that_fails_each_time_is_counted_and_logged_and_the_next_one_goes(caplog):
    post = deliveries(attempts=2)
    post.submit(Parcel("a", OSError("down"), OSError("still down")))
    post.submit(Parcel("b"))
    post.drain(DEADLINE)
    assert counts(post) == (1, 1, 0)
    assert "post: a failed: still down" in caplog.text


def test_one_that_is_refused_is_not_tried_again():
    post, parcel = deliveries(), Parcel("a", RefusedError("never"))
    post.submit(parcel)
    post.drain(DEADLINE)
    assert (parcel.log, counts(post)) == (["a"], (0, 1, 0))


@pytest.mark.parametrize(("timeout", "tries"), [(DEADLINE, 2), (0.05, 1)])
def test_the_other_side_may_say_when_to_come_again_within_the_timeout(timeout, tries):
    post, parcel = deliveries(timeout=timeout), Parcel("a", BusyError("busy", 0.1))
    post.submit(parcel)
    post.drain(DEADLINE)
    assert len(parcel.log) == tries


def test_at_the_end_what_hangs_and_what_waits_for_it_has_failed(caplog):
    post, gate = deliveries(), threading.Event()
    hangs, waits = Parcel("hangs", gate=gate), Parcel("waits")
    post.submit(hangs)
    post.submit(waits)
    assert hangs.entered.wait(DEADLINE)
    post.drain(0.05)
    assert counts(post) == (0, 2, 0)
    assert "hangs was not done 0.05 s after the end of training" in caplog.text
    assert (hangs.ended, waits.ended, waits.log) == (0, 1, [])
    gate.set()
    post._thread.join(DEADLINE)
    assert counts(post) == (0, 2, 0)
    assert (hangs.ended, waits.log) == (1, [])


def test_the_end_does_not_wait_for_the_next_attempt():
    post, parcel = deliveries(first_delay=DEADLINE / 2), Parcel("a", OSError("down"))
    post.submit(parcel)
    assert parcel.entered.wait(DEADLINE)
    post.drain(0.05)
    post._thread.join(DEADLINE / 4)
    assert not post._thread.is_alive()
    assert counts(post) == (0, 1, 0)


def test_newer_ones_take_the_place_of_those_that_wait(caplog):
    post, gate, log = deliveries(), threading.Event(), []
    first = Parcel("first", gate=gate, log=log)
    post.submit(first, most_waiting=1)
    assert first.entered.wait(DEADLINE)
    second, third = Parcel("second", log=log), Parcel("third", log=log)
    post.submit(second, most_waiting=1)
    post.submit(third, most_waiting=1)
    gate.set()
    post.drain(DEADLINE)
    assert (log, second.ended) == (["first", "third"], 1)
    assert counts(post) == (2, 0, 1)
    assert "second is skipped, because newer ones are waiting" in caplog.text


def test_one_that_says_more_takes_the_place_of_what_it_says_again(caplog):
    class Letter(Parcel):
        def supersedes(self, earlier):
            return earlier.name == self.name

    post, gate, log = deliveries(), threading.Event(), []
    first = Parcel("first", gate=gate, log=log)
    post.submit(first)
    assert first.entered.wait(DEADLINE)
    letters = [Letter(name, log=log) for name in ("a", "b", "b")]
    for letter in letters:
        post.submit(letter, most_waiting=2)
    gate.set()
    post.drain(DEADLINE)
    assert (log, [letter.ended for letter in letters]) == (["first", "a", "b"], [1, 1, 1])
    assert counts(post) == (3, 0, 0)
    assert "skipped" not in caplog.text


def test_nothing_is_started_for_nothing():
    post = deliveries()
    post.drain(DEADLINE)
    assert post._thread is None
