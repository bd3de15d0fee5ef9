"""An engine that many generate with: what they ask shares steps, what goes wrong reaches whom it concerns."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from tests.rollouts.stepping_engine import SteppingEngine

from proa.actors.waiting import ClosedError
from proa.data.sampling import Sampling
from proa.engines import EngineBusyError, Request, group_requests
from proa.errors import SettingError
from proa.rollouts import EngineStream, Progress, StreamUser, VersionedEngine, streaming

SECONDS = 180.0
FOR_EVER = 1 << 60


@pytest.fixture
def streams():
    open_ = []

    def begin(engine, **settings):
        open_.append(EngineStream(engine, name="maker_0", **settings))
        return open_[-1]

    yield begin
    for stream in open_:
        stream.close("the test is over")


def user(stream, name, version=0, ensure=lambda: None):
    return StreamUser(stream, name, version, ensure)


def ask(user, seeds=(1, 2)):
    return user.generate(list(group_requests("p", (1, 2), seeds, Sampling(max_new_tokens=9))), Progress("a test"))


class Held(SteppingEngine):
    """Does not take its first step before it has so many requests."""

    def __init__(self, count, **settings):
        super().__init__(**settings)
        self.enough = threading.Event()
        self.count = count

    def submit(self, request):
        super().submit(request)
        if len(self._open) >= self.count:
            self.enough.set()

    @property
    def ready(self):
        return self.enough.is_set()

    def step(self):
        return super().step() if self.ready else []


def test_requests_of_several_share_steps_in_one_thread_and_each_gets_its_own(streams):
    engine = Held(6)
    stream = streams(engine)
    users = [user(stream, f"lease {number}") for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(ask, users))
    assert [len(one.completions) for one in found] == [2, 2, 2]
    assert len(engine.together[0]) == 6
    assert engine.threads == {"maker_0 engine"}
    assert all(one.engine_seconds > 0 for one in users)


def test_the_shares_of_all_are_the_time_of_the_engine(streams, monkeypatch):
    monkeypatch.setattr("proa.rollouts.engine_stream.perf_counter", itertools.count().__next__)  # a step takes 1
    engine = SteppingEngine(lambda request: request.seed)
    stream = streams(engine)
    users = [user(stream, "a"), user(stream, "b")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, users, [(3, 5), (1, 9)]))
    assert sum(one.engine_seconds for one in users) == pytest.approx(len(engine.together))
    assert all(one.engine_seconds > 1 for one in users)


def test_a_request_that_is_refused_fails_whoever_asked_and_nobody_else(streams):
    class Refusing(Held):
        def submit(self, request):
            if request.seed == 13:
                raise SettingError("there is no 13")
            super().submit(request)

    engine = Refusing(2)
    stream = streams(engine)
    with ThreadPoolExecutor(2) as pool:
        bad = pool.submit(ask, user(stream, "bad"), (12, 13))
        with pytest.raises(SettingError, match="no 13"):
            bad.result(SECONDS)
        assert len(ask(user(stream, "good")).completions) == 2
    assert not engine._open


def test_an_engine_that_fails_fails_all_of_them_and_takes_nothing_more(streams):
    engine = Held(4)

    def fail(names):
        raise FloatingPointError("damaged")

    engine.before_step = fail
    stream = streams(engine)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, user(stream, name)) for name in "ab"]
        for one in asked:
            with pytest.raises(FloatingPointError, match="damaged"):
                one.result(SECONDS)
    with pytest.raises(FloatingPointError, match="damaged"):
        ask(user(stream, "c"))


def test_weights_are_loaded_between_two_steps_and_beside_what_is_decoded(streams):
    lengths = {0: FOR_EVER, 1: 2}
    engine, going = SteppingEngine(lambda request: lengths[request.version]), threading.Event()
    engine.before_step = lambda names: going.set()
    stream = streams(engine)
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(ask, user(stream, "old"))
        assert going.wait(SECONDS)
        assert stream.load({"weight": torch.zeros(1)}, 1) > 0
        new = ask(user(stream, "new", version=1))
        assert new.version == 1
        assert not old.done()
        lengths[0] = 1
        assert old.result(SECONDS).version == 0
    assert stream.load({}, 1) == 0.0  # nothing stood still


def test_a_third_version_waits_until_one_is_not_used_any_more(streams):
    lengths = {0: FOR_EVER, 1: FOR_EVER, 2: 1}
    engine, going = SteppingEngine(lambda request: lengths[request.version]), threading.Event()
    stream = streams(engine)
    stream.load({}, 1)
    engine.before_step = lambda names: going.set() if len(names) == 4 else None
    with ThreadPoolExecutor(3) as pool:
        pool.submit(ask, user(stream, "a", 0))
        lasting = pool.submit(ask, user(stream, "b", 1))
        assert going.wait(SECONDS)
        loading = pool.submit(stream.load, {}, 2)
        assert not wait([loading], timeout=0.05).done
        lengths[0] = 1
        loading.result(SECONDS)
        assert sorted(engine.versions) == [1, 2]
        assert ask(user(stream, "c", 2)).version == 2
        assert not lasting.done()
        stream.close("enough")
        with pytest.raises(ClosedError, match="enough"):
            lasting.result(SECONDS)
    assert not engine._open


def test_weights_that_made_room_for_others_are_loaded_again(streams):
    engine, ensured = SteppingEngine(), []
    stream = streams(engine)

    def ensure():
        ensured.append(stream.has(0))
        if len(ensured) == 1:  # others come between the look and the requests
            stream.load({}, 1)
            stream.load({}, 2)
        elif not stream.has(0):
            stream.load({}, 0)

    assert ask(user(stream, "a", 0, ensure)).version == 0
    assert ensured == [True, False]


def test_settings_of_torch_that_a_neighbour_changed_are_put_back(streams, caplog):
    before, seen = torch.get_default_dtype(), []
    engine = SteppingEngine()
    engine.before_step = lambda names: seen.append(torch.get_default_dtype())
    stream = streams(engine, guarded_from="a callback of somebody")
    try:
        ask(user(stream, "a"))
        torch.set_default_dtype(torch.float64)
        ask(user(stream, "b"))
    finally:
        torch.set_default_dtype(before)
    assert set(seen) == {before}
    assert "a callback of somebody called torch.set_default_dtype" in caplog.text


def test_nobody_asks_a_stream_that_is_closed(streams):
    stream = streams(SteppingEngine())
    stream.close("the run is over")
    with pytest.raises(ClosedError, match="the run is over"):
        ask(user(stream, "a"))


class Sleeper(SteppingEngine):
    """Notes how many requests are open whenever it is sent to sleep."""

    def __init__(self):
        super().__init__()
        self.slept = []
        self.has_slept = threading.Event()

    def sleep(self):
        self.slept.append(len(self._open))
        self.has_slept.set()


def test_an_engine_sleeps_when_it_has_nothing_to_decode_and_then_alone(streams):
    engine = Sleeper()
    stream = streams(engine, sleeps=True)
    assert engine.has_slept.wait(SECONDS)
    engine.has_slept.clear()
    assert len(ask(user(stream, "a")).completions) == 2
    assert engine.has_slept.wait(SECONDS)
    assert set(engine.slept) == {0}


def test_unless_it_is_asked_to_an_engine_stays_awake(streams):
    engine = Sleeper()
    ask(user(streams(engine), "a"))
    assert engine.slept == []


# -- one request at a time ---------------------------------------------------------------------------


def request(name, seed=1, **more):
    return Request(name, (1, 2), seed, Sampling(max_new_tokens=9), **more)


def test_coroutines_share_steps_too_and_hear_of_each_token(streams):
    engine = Held(3)
    users = [user(stream := streams(engine), "a"), user(stream, "b"), user(stream, "c")]
    heard = []

    async def all_of_them():
        return await asyncio.gather(*(one.complete(request("x"), listen=heard.append) for one in users))

    found = asyncio.run(all_of_them())
    assert [len(completion) for completion in found] == [3, 3, 3]
    assert len(engine.together[0]) == 3
    assert sorted(progress.id for progress in heard) == sorted(["a:x", "b:x", "c:x"] * 3)


def test_a_request_whose_coroutine_is_cancelled_leaves_the_engine(streams):
    engine = SteppingEngine(lambda request: FOR_EVER)
    one = user(streams(engine), "a")

    async def give_up():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await one.complete(request("x"))

    asyncio.run(give_up())
    assert engine.cancelled.wait(SECONDS)
    assert asyncio.run(user(streams(SteppingEngine()), "b").complete(request("x"))).finish_reason == "length"


def test_what_is_kept_and_never_continued_is_dropped_when_the_stream_is_closed():
    engine = SteppingEngine()
    stream = EngineStream(engine, name="maker_0")
    asyncio.run(user(stream, "a").complete(request("x", keep=True)))
    stream.close("the test is over")
    assert engine.cancelled_ids == ["a:x"]


def test_an_engine_is_a_stream_for_as_long_as_a_rollout_takes():
    engine = VersionedEngine(SteppingEngine())
    engine.load({}, 3)
    with streaming(engine) as one:
        assert len(asyncio.run(one.complete(request("x")))) == 3
        assert one.version == 3
    with pytest.raises(ClosedError):
        asyncio.run(one.complete(request("x")))


# -- ends and waits ----------------------------------------------------------------------------------


def together(stream, *asks):
    """What is asked of the stream before it looks again, which it does once the event is set."""
    holding, release = threading.Event(), threading.Event()

    def hold():
        holding.set()
        assert release.wait(SECONDS)

    stream._ask(hold)
    assert holding.wait(SECONDS)
    return [ask() for ask in asks], release


def test_a_stream_closes_between_the_answers_of_what_was_asked_together(streams):
    stream = streams(SteppingEngine())
    is_in_second, may_end = threading.Event(), threading.Event()

    def second():
        is_in_second.set()
        assert may_end.wait(SECONDS)

    (one, two, three), release = together(
        stream,
        lambda: stream._ask(lambda: "answered"),
        lambda: stream._ask(second),
        lambda: stream._ask(lambda: "late"),
    )
    release.set()
    assert one.result(SECONDS) == "answered"
    assert is_in_second.wait(SECONDS)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(stream.close, "the run is over")
        for asked in (two, three):
            with pytest.raises(ClosedError):
                asked.result(SECONDS)
        may_end.set()
        closing.result(SECONDS)


def test_requests_that_an_engine_takes_while_its_stream_closes_are_failed_too(streams):
    class Noting(SteppingEngine):
        """Takes the request b:x last."""

        def __init__(self):
            super().__init__(lambda request: FOR_EVER)
            self.is_submitting, self.is_ending, self.has_last = (threading.Event() for _ in range(3))

        def submit(self, request):
            self.is_submitting.set()
            assert self.is_ending.wait(SECONDS)
            super().submit(request)
            if request.id == "b:x":
                self.has_last.set()

    engine = Noting()
    stream = streams(engine)
    (first, last), release = together(
        stream, *(lambda name=name: stream.begin([request(f"{name}:x")], user(stream, name)) for name in "ab")
    )

    def submit_meanwhile(_):
        engine.is_ending.set()
        assert engine.has_last.wait(SECONDS)

    first.add_done_callback(submit_meanwhile)
    release.set()
    assert engine.is_submitting.wait(SECONDS)
    stream.close("the run is over")
    for answer in (first, last):
        with pytest.raises(ClosedError):
            answer.result(SECONDS)
    assert not engine._open


def test_an_engine_without_room_is_not_asked_without_a_pause_and_at_once_when_it_has_some(streams):
    class Keeping(SteppingEngine):
        """Has no room for weights before what it keeps is dropped."""

        def __init__(self):
            super().__init__()
            self.loads, self.keeps, self.was_refused = 0, True, threading.Event()

        def load(self, weights, version):
            self.loads += 1
            self.was_refused.set()
            if self.keeps:
                raise EngineBusyError("something is kept")

        def cancel(self, request_id):
            super().cancel(request_id)
            self.keeps = False

    engine = Keeping()
    stream = streams(engine)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(stream.load, {}, 1)
        assert engine.was_refused.wait(SECONDS)
        assert not wait([loading], timeout=0.2).done
        asked = engine.loads
        stream.cancel("a:x")
        loading.result(SECONDS)
    assert asked < 50


def test_an_engine_that_failed_and_cannot_cancel_hides_nothing(streams):
    class Broken(SteppingEngine):
        def step(self):
            raise FloatingPointError("damaged")

        def cancel(self, request_id):
            raise RuntimeError("there is nothing to cancel in")

    stream = streams(Broken())
    with pytest.raises(FloatingPointError, match="damaged"):
        ask(user(stream, "a"))
    stream.close("the maker has ended")
