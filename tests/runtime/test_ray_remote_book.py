"""The lease book as a maker on Ray sees it, over a book in this process: what a full buffer does to the maker."""

import threading

import pytest
from tests.leases.honest_makers import fulfil
from tests.runtime.test_ray_trainer_host import host

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from proa.runtime.ray import maker_host, trainer_host
from proa.runtime.ray.maker_host import RemoteBook, RemoteStore


@pytest.fixture
def trainer(monkeypatch):
    """A trainer whose buffer has room for two leases, called as if it were here; calls that wait return soon."""
    monkeypatch.setattr(maker_host, "request", lambda method, *arguments, who, seconds: method(*arguments))
    monkeypatch.setattr(trainer_host, "POLL_SECONDS", 0.01)
    return host(buffer_limit=1, max_staleness=2)


def remote_book(trainer):
    return RemoteBook(trainer, RemoteStore(trainer, 60.0), 60.0)


def test_a_maker_that_is_held_back_with_two_leases_is_not_late_with_either(trainer):
    other, book = remote_book(trainer), remote_book(trainer)
    awaited = other.next_lease("other")
    for _ in range(2):
        book.deliver(fulfil(book.next_lease("m")), "m")
    held_back = [book.next_lease("m") for _ in range(2)]
    book.deliver(fulfil(held_back[0]), "m")
    delivering = threading.Thread(target=book.deliver, args=(fulfil(held_back[1]), "m"))
    delivering.start()
    with trainer._book.room:
        assert trainer._book.room._condition.wait_for(lambda: len(trainer._book._open._made) == 2, 60.0)
    delivering.join(0.1)  # longer than the trainer holds a call
    assert trainer.overdue(-1) == {awaited.id: "other"}
    other.deliver(fulfil(awaited), "other")
    trainer._book.take_step()
    trainer._book.take_step()
    delivering.join(60.0)
    assert not delivering.is_alive()


def test_a_maker_that_got_the_awaited_lease_late_delivers_what_it_made_before_it(trainer):
    """Else both would wait: the trainer for the one, and that one's delivery for room for the other."""
    book = remote_book(trainer)
    remote_book(trainer).next_lease("lost")
    for _ in range(2):
        book.deliver(fulfil(book.next_lease("m")), "m")
    book.deliver(fulfil(book.next_lease("m")), "m")  # held back
    with trainer._book.room:  # and nobody looks in between, when no maker has the awaited one
        assert trainer._book.dismiss("lost") == [0]
        awaited = trainer._book.next_lease("m")
    assert awaited.id == 0
    book.deliver(fulfil(awaited), "m")
    assert len(trainer._book.take_step()) == 8
