"""A maker with several leases under way: its engine is kept full, hooks do not interleave, nothing is lost."""

import threading
import time

import torch
from tests.leases.honest_makers import plan, prompt
from tests.rollouts.stepping_engine import SteppingEngine
from tests.small import Numbers

from proa import MakerCallback
from proa.actors.waiting import ClosedError, LeaseFailedError
from proa.data.sampling import Sampling
from proa.leases.book import LeaseBook
from proa.lifecycle.hooks import EveryMoment
from proa.roles import lease_stream
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn

SECONDS = 60.0
FOR_EVER = 1 << 60


class Workshop:
    """A lease book with its trainer, and makers in threads."""

    def __init__(self, *, makers=1, length=lambda request: 3, slots=100, engine=SteppingEngine, **changes):
        settings = {"update_steps": 1, "max_staleness": 1, **changes}
        self.plan = plan(**settings)
        self.book = LeaseBook(self.plan, prompt, wait_timeout=SECONDS)
        self.book.makers = makers
        self.store = WeightStore()
        self.store.publish(0, {"weight": torch.zeros(3)})
        self.engines = [engine(length, slots) for _ in range(makers)]
        self.makers = [
            ExperienceMakerHolder(
                engine=one, name=f"maker_{number}", rollout=SingleTurn(Numbers(), Sampling(group_size=2), scorer=self)
            )
            for number, one in enumerate(self.engines)
        ]
        self.scoring = lambda prompts: None
        self.ends = {}
        self._threads = []

    def score(self, prompts, completions, columns):
        from proa.rewards import InlineRewards

        self.scoring(prompts)
        return InlineRewards(lambda prompts, completions, **_: [1.0] * len(prompts)).score(
            prompts, completions, columns
        )

    def start(self):
        def work(maker):
            try:
                maker.work(self.book, self.store)
            except BaseException as error:
                self.ends[maker.name] = error

        self._threads = [threading.Thread(target=work, args=(maker,), daemon=True) for maker in self.makers]
        for thread in self._threads:
            thread.start()

    def train(self, steps):
        """As a trainer does: an episode, a step, new weights; which versions were trained on."""
        versions = []
        for step in range(steps):
            self.book.start_episode(step)
            items = self.book.take_step()
            versions.append(sorted({int(item.versions[0]) for item in items}))
            self.book.settle(items)
            self.store.publish(step + 1, {"weight": torch.full((3,), step + 1.0)})
        return versions

    def end(self):
        self.book.close("enough")
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        return {name: type(error) for name, error in self.ends.items()}


def leases_in(names):
    """The leases that requests of these names belong to."""
    return {name.partition(":")[0] for name in names}


def test_several_leases_share_the_engine_and_are_trained_with_their_versions():
    begun = threading.Event()
    shop = Workshop(length=lambda request: 3 if begun.is_set() else FOR_EVER)

    def look(names):
        if len(leases_in(names)) == 4:
            begun.set()

    shop.engines[0].before_step = look
    shop.start()
    assert shop.train(6) == [[0], [0], [1], [2], [3], [4]]
    assert shop.end() == {"maker_0": ClosedError}
    assert max(len(leases_in(names)) for names in shop.engines[0].together) == 4
    assert shop.book.ledger.closes


def test_a_lease_is_scored_while_others_decode_and_one_at_a_time():
    released, scoring = threading.Event(), []
    shop = Workshop(length=lambda request: 1 if ":0/" in request.id or ":1/" in request.id else FOR_EVER)

    def hold(prompts):
        scoring.append(threading.current_thread().name)
        steps = len(shop.engines[0].together)
        while len(shop.engines[0].together) < steps + 5:  # the engine goes on with the others
            assert not released.wait(0.001)

    shop.scoring = hold
    shop.start()
    shop.book.start_episode(0)
    with shop.book.room as room:
        room.wait_until(lambda: 0 in shop.book._arrived, owner="test", reason="lease 0", timeout=SECONDS)
    assert scoring == ["maker_0 lease 0"]
    assert shop.end() == {"maker_0": ClosedError}


def test_a_delivery_that_is_held_back_stops_neither_the_stream_nor_the_lease_that_is_awaited(monkeypatch):
    """Lease 0 is the longest of all, in the same engine, and the buffer is full before it is made."""
    monkeypatch.setattr(lease_stream, "PROGRESS_SECONDS", 0.0)  # that it moved on is said when it is made already
    arrived = threading.Event()
    shop = Workshop(
        buffer_limit=1, max_staleness=3, total_steps=8,
        length=lambda request: 1 if arrived.is_set() or not request.id.startswith("lease 0:") else FOR_EVER,
    )  # fmt: skip

    def look(names):
        if len(shop.book._arrived) == 2 and leases_in(names) == {"lease 0"}:  # full, and one more waits to be let in
            arrived.set()

    shop.engines[0].before_step = look
    shop.start()
    assert len(shop.train(8)) == 8
    assert shop.end() == {"maker_0": ClosedError}
    assert shop.book.ledger.closes


def test_what_is_made_does_not_pile_up_behind_a_delivery_that_is_held_back(monkeypatch):
    """Sixty leases could be made while the first waits at the door. No more are taken when more wait than were ever
    made at once; those that were being made then may still be added."""
    streams, waited, begin = set(), [], lease_stream.LeaseStream._begin

    def noting(self, *taken):
        streams.add(self)
        waited.append(len(self._made))
        begin(self, *taken)

    monkeypatch.setattr(lease_stream.LeaseStream, "_begin", noting)
    shop = Workshop(buffer_limit=1, max_staleness=30, total_steps=40, slots=2, makers=1, lease_prompts=1)
    shop.start()
    shop.book.start_episode(0)
    for _ in range(40):
        items = shop.book.take_step()
        time.sleep(0.01)  # slower than the maker
        shop.book.settle(items)
    [stream] = streams
    assert 0 < max(waited) <= 2 * stream._most_making + 1
    assert shop.end() == {"maker_0": ClosedError}


class Hears(EveryMoment):
    def __init__(self):
        self.heard, self.threads = [], set()

    def on_moment(self, event, payload):
        self.heard.append(event.removeprefix("maker."))
        self.threads.add(threading.current_thread().name)


def test_hooks_of_leases_do_not_interleave_and_all_fire_in_one_thread():
    shop, hears = Workshop(), Hears()
    shop.makers[0].manager.add(hears)
    shop.start()
    shop.train(6)
    shop.end()
    batch = ["batch_start", "make_experience_start", "make_experience_end", "send_start", "send_end", "batch_end"]
    assert (hears.heard[0], hears.heard[-1]) == ("loop_start", "loop_end")
    between = [event for event in hears.heard[1:-1] if event != "weights_loaded"]
    whole = len(between) - len(between) % len(batch)
    assert between[:whole] == batch * (whole // len(batch))
    assert len(hears.threads) == 1
    while "weights_loaded" in hears.heard:
        place = hears.heard.index("weights_loaded")
        assert hears.heard[place - 1] in ("loop_start", "batch_end", "removed")
        hears.heard[place] = "removed"


def test_makers_get_their_share():
    may_end = threading.Event()
    shop = Workshop(makers=2, max_staleness=3, length=lambda request: 1 if may_end.is_set() else FOR_EVER)
    shop.book.start_episode(0)
    shop.start()
    with shop.book.room as room:
        room.wait_until(lambda: len(shop.book._open.handed_out) == 8, owner="test", reason="8", timeout=SECONDS)
    assert [len(shop.book.held_by(maker.name)) for maker in shop.makers] == [4, 4]
    may_end.set()
    assert set(shop.end().values()) == {ClosedError}


def test_no_more_leases_are_taken_than_the_engine_has_room_for():
    together = threading.Event()
    length = lambda request: 1 if together.is_set() else FOR_EVER  # noqa: E731
    shop = Workshop(slots=5, max_staleness=3, length=length)  # a lease is 4 sequences

    def look(names):
        if len(leases_in(names)) == 2:
            together.set()

    shop.engines[0].before_step = look
    shop.start()
    shop.train(6)
    shop.end()
    assert max(len(leases_in(names)) for names in shop.engines[0].together) == 2


def test_what_fails_in_one_lease_ends_the_maker_and_the_others_go_to_another():
    shop = Workshop(length=lambda request: FOR_EVER)
    together = threading.Event()

    def fail(names):
        if len(leases_in(names)) == 4:
            together.set()
            raise RuntimeError("no such kernel")

    shop.engines[0].before_step = fail
    shop.start()
    shop.book.start_episode(0)
    assert together.wait(SECONDS)
    for thread in shop._threads:
        thread.join(SECONDS)
    error = shop.ends["maker_0"]
    assert isinstance(error, LeaseFailedError)
    assert "maker_0 failed on lease" in str(error)
    assert "no such kernel" in str(error)
    assert shop.book.held_by("maker_0") == []
    assert shop.book._open.unassigned == {0, 1, 2, 3}


def test_a_reward_that_raises_ends_the_maker_with_its_lease():
    shop = Workshop()

    def fail(prompts):
        raise OSError("the grader is gone")

    shop.scoring = fail
    hears = Hears()
    shop.makers[0].manager.add(hears)
    shop.start()
    shop.book.start_episode(0)
    for thread in shop._threads:
        thread.join(SECONDS)
    assert "the grader is gone" in str(shop.ends["maker_0"])
    assert hears.heard[-4:] == ["make_experience_start", "make_experience_end", "batch_end", "loop_end"]
    assert shop.book.held_by("maker_0") == []


def test_a_hook_that_raises_ends_the_maker_and_nothing_stays_with_it():
    class Fails(MakerCallback):
        def on_send_end(self):
            raise ValueError("my bug")

    shop = Workshop()
    shop.makers[0].manager.add(Fails())
    shop.start()
    shop.book.start_episode(0)
    for thread in shop._threads:
        thread.join(SECONDS)
    assert isinstance(shop.ends["maker_0"], LeaseFailedError)
    assert shop.book.held_by("maker_0") == []


def test_a_lease_that_moves_on_is_not_overdue_and_one_that_does_not_is(monkeypatch):
    monkeypatch.setattr(lease_stream, "PROGRESS_SECONDS", 0.02)

    class Stuck(SteppingEngine):
        """Goes on with lease 1 only."""

        def step(self):
            return [progress for progress in super().step() if progress.id.startswith("lease 1:")]

    shop = Workshop(length=lambda request: FOR_EVER, engine=Stuck)
    shop.start()
    shop.book.start_episode(0)
    for _ in range(1000):
        overdue = shop.book.overdue(0.5)
        if 0 in overdue and 1 not in overdue:
            break
        time.sleep(0.05)
    else:
        raise AssertionError(f"overdue are {overdue}")
    assert shop.end() == {"maker_0": ClosedError}


def test_an_engine_that_is_not_independent_gets_one_lease_after_the_other():
    class Dependent(SteppingEngine):
        is_independent = False

    shop = Workshop(engine=Dependent)
    shop.start()
    assert shop.train(6) == [[0], [0], [1], [2], [3], [4]]
    shop.end()
    prompts = [{name.partition("/")[0] for name in names} for names in shop.engines[0].together]
    assert max(map(len, prompts)) == 2  # of one lease


def test_a_hook_that_hangs_makes_its_lease_overdue_and_those_that_wait_behind_it():
    released = threading.Event()

    class Hangs(MakerCallback):
        def on_make_experience_start(self):
            released.wait(SECONDS)

    shop = Workshop()
    shop.makers[0].manager.add(Hangs())
    shop.start()
    shop.book.start_episode(0)
    for _ in range(1000):
        if len(shop.book.overdue(0.3)) == 4:
            break
        time.sleep(0.05)
    else:
        raise AssertionError(f"overdue are {shop.book.overdue(0.3)}")
    released.set()
    assert shop.end() == {"maker_0": ClosedError}
