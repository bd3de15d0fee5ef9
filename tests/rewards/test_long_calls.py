"""A reward that takes long is told of while it does: who waits, for what, until when."""

import itertools
import logging
import threading

import pytest

from proa.rewards import InlineRewards, RewardWorkers, long_calls


@pytest.fixture
def told(monkeypatch):
    """What was said of long calls, and an event for the first and the second time."""
    monkeypatch.setattr(long_calls, "FIRST_SECONDS", 0.01)
    long_calls.long_calls._patience.clear()
    told = Told()
    long_calls.log.addHandler(told)
    yield told
    long_calls.log.removeHandler(told)


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        self.times = [threading.Event() for _ in range(3)]

    def emit(self, record):
        self.lines.append(record.getMessage())
        if len(self.lines) <= len(self.times):
            self.times[len(self.lines) - 1].set()


def test_an_inline_reward_that_hangs_is_told_of_at_growing_intervals(told):
    def hangs(completions):
        assert all(event.wait(120) for event in told.times)
        return [1.0] * len(completions)

    InlineRewards(hangs).score(["p"] * 2, ["a", "b"])
    seconds = [float(line.partition("waited ")[2].split()[0]) for line in told.lines]
    assert "MainThread has waited" in told.lines[0]
    assert "for reward 'hangs' to judge 2 samples; it has no deadline" in told.lines[0]
    assert all(later >= 1.9 * earlier for earlier, later in itertools.pairwise(seconds))  # 3 digits of each


def test_a_reward_with_a_deadline_is_told_of_with_it(told):
    def hangs(completions):
        assert told.times[0].wait(120)
        return [1.0] * len(completions)

    with RewardWorkers(hangs, timeout=30) as rewards:  # it cannot be pickled: a thread of this process calls it
        assert rewards.score(["p"], ["a"])[0].value == 1.0
    assert "for reward 'hangs' to judge 1 sample; its deadline is 30 s" in told.lines[0]


def test_calls_that_take_as_long_as_others_did_are_not_told_of_again(told):
    def slow(completions):
        assert told.times[0].wait(120)
        return [1.0] * len(completions)

    InlineRewards(slow).score(["p"], ["a"])
    said = len(told.lines)
    InlineRewards(slow).score(["p"], ["a"])  # at once, now
    assert len(told.lines) == said
    assert long_calls.long_calls._patience["slow"] >= 2 * long_calls.FIRST_SECONDS
