"""The replay buffer: order, whole batches, a limit that holds back and never drops."""

import threading
import time

import pytest
import torch

from proa.actors.waiting import ClosedError, WaitTimeoutError
from proa.data.experience import BufferItem, merge
from proa.roles.buffer import DetachedReplayBuffer


def items(*numbers):
    return [BufferItem(torch.tensor([n, n]), torch.zeros(1)) for n in numbers]


def numbers(experience):
    return experience.sequences[:, 0].tolist()


def test_batches_come_in_order_of_arrival_and_a_remainder_waits():
    buffer = DetachedReplayBuffer(2)
    buffer.extend(items(1, 2, 3))
    buffer.append(merge(items(4, 5)))
    assert buffer.get_length() == 2
    assert [numbers(buffer.sample()), numbers(buffer.sample())] == [[1, 2], [3, 4]]
    assert buffer.get_length() == 0
    buffer.extend(items(6))
    assert numbers(buffer.sample()) == [5, 6]


def test_a_full_buffer_holds_the_sender_back_and_drops_nothing():
    buffer = DetachedReplayBuffer(2, limit=1)
    sent = []

    def send():
        for number in range(7):
            buffer.extend(items(number))
            sent.append(number)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.05)
    assert sent == [0, 1]
    taken = [numbers(buffer.sample()) for _ in range(3)]
    thread.join(120)
    assert taken == [[0, 1], [2, 3], [4, 5]]
    assert len(sent) == 7


def test_a_list_longer_than_the_limit_goes_in_as_room_is_made():
    buffer = DetachedReplayBuffer(1, limit=1)
    thread = threading.Thread(target=buffer.extend, args=(items(*range(5)),))
    thread.start()
    assert [numbers(buffer.sample())[0] for _ in range(5)] == list(range(5))
    thread.join(120)


def test_waits_have_a_deadline_and_a_reason():
    buffer = DetachedReplayBuffer(4, limit=1, wait_timeout=0.05)
    with pytest.raises(WaitTimeoutError, match="the trainer has waited .* for a batch of 4 in the replay buffer"):
        buffer.sample()
    buffer.extend(items(1, 2, 3, 4))
    with pytest.raises(WaitTimeoutError, match="maker_1 has waited .* for room in the replay buffer"):
        buffer.extend(items(5), owner="maker_1")


def test_closing_tells_whoever_waits():
    buffer = DetachedReplayBuffer(1)
    threading.Timer(0.02, buffer.close, ("the run is over",)).start()
    with pytest.raises(ClosedError, match="the run is over"):
        buffer.sample()


def test_clearing_makes_room_and_says_how_much_is_lost():
    buffer = DetachedReplayBuffer(2, limit=1)
    buffer.extend(items(1, 2))
    assert buffer.clear() == 2
    buffer.extend(items(3, 4))
    assert numbers(buffer.sample()) == [3, 4]


def test_senders_from_many_threads_lose_nothing():
    buffer = DetachedReplayBuffer(5, limit=2)
    threads = [threading.Thread(target=buffer.extend, args=(items(*range(100 * k, 100 * k + 100)),)) for k in range(4)]
    for thread in threads:
        thread.start()
    seen = [number for _ in range(80) for number in numbers(buffer.sample())]
    for thread in threads:
        thread.join(120)
    assert sorted(seen) == list(range(400))
    for k in range(4):
        assert [n for n in seen if n // 100 == k] == list(range(100 * k, 100 * k + 100))


@pytest.mark.parametrize("wrong", [{"sample_batch_size": 0}, {"sample_batch_size": 1, "limit": -1}])
def test_wrong_sizes_are_refused(wrong):
    with pytest.raises(ValueError):
        DetachedReplayBuffer(**wrong)
