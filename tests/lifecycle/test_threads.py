"""Hooks of one callback never run in two threads at once, unless it says that they may."""

import threading

import pytest

from proa import CallbackManager, LoopState, MakerCallback
from proa.lifecycle import EveryMoment, Role


class Overlap:
    """Notes whether two threads are ever inside at once; waits a little for a second, which may not come."""

    def __init__(self):
        self.inside = 0
        self.most = 0
        self._changed = threading.Condition()

    def enter(self, seconds=0.002):
        with self._changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > 1, seconds)
            self.inside -= 1


def from_threads(actions, times=10):
    def repeat(action):
        for _ in range(times):
            action()

    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


class Shared(MakerCallback):
    def __init__(self):
        self.overlap = Overlap()

    def on_batch_end(self):
        self.overlap.enter(60.0 if self.thread_safe else 0.002)


@pytest.mark.parametrize("safe", [False, True])
def test_a_callback_shared_by_makers(safe):
    callback = Shared()
    callback.thread_safe = safe
    managers = [CallbackManager([callback], role=Role.MAKER) for _ in range(3)]
    from_threads([lambda m=m: m.fire("maker.batch_end", LoopState()) for m in managers])
    assert (callback.overlap.most > 1) == safe


def test_a_callback_of_one_maker_alone_is_not_locked():
    callback = Shared()
    manager = CallbackManager([callback], role=Role.MAKER)
    manager.fire("maker.batch_end", LoopState())
    assert manager._wrapped_call(manager._registrations[0].listeners[0]) == callback.on_batch_end


def test_a_function_in_the_driver_that_makers_call():
    overlap, manager = Overlap(), CallbackManager()
    manager.on("maker.batch_end")(lambda: overlap.enter())
    from_threads([lambda: manager.fire("maker.batch_end", LoopState())] * 3)
    assert overlap.most == 1


def test_a_listener_to_trainer_and_makers():
    class Everything(EveryMoment):
        def __init__(self):
            self.overlap = Overlap()

        def on_moment(self, event, payload):
            self.overlap.enter()

    callback = Everything()
    manager = CallbackManager([callback])
    from_threads(
        [
            lambda: manager.fire("step_end", LoopState()),
            lambda: manager.fire("maker.batch_end", LoopState()),
            lambda: manager.fire("maker.lost", "maker_1", "killed"),
        ]
    )
    assert callback.overlap.most == 1


def test_a_hook_may_fire_a_moment_that_its_own_callback_hears():
    heard = []

    class Nested(EveryMoment):
        def on_moment(self, event, payload):
            heard.append(event)
            if event == "step_end":
                manager.fire("eval_end", LoopState())

    manager = CallbackManager([Nested()])
    manager.fire("step_end", LoopState())
    assert heard == ["step_end", "eval_end"]


def test_a_callback_can_be_unhashable():
    class Unhashable(MakerCallback):
        __hash__ = None

        def on_batch_end(self): ...

    CallbackManager([Unhashable(), Unhashable()]).fire("maker.batch_end", LoopState())


def test_adding_while_others_fire_loses_nothing():
    heard, manager = [], CallbackManager()
    stop = threading.Event()

    def fire():
        while not stop.is_set():
            manager.fire("step_end", LoopState())

    thread = threading.Thread(target=fire)
    thread.start()
    for i in range(50):
        manager.on("step_end")(lambda i=i: heard.append(i))
    stop.set()
    thread.join(60)
    heard.clear()
    manager.fire("step_end", LoopState())
    assert heard == list(range(50))


def test_a_function_heard_from_trainer_and_makers_runs_in_one_thread_at_a_time():
    overlap, manager = Overlap(), CallbackManager()

    def hear():
        overlap.enter()

    manager.on("step_end")(hear)
    manager.on("maker.batch_end")(hear)
    from_threads(
        [lambda: manager.fire("step_end", LoopState()), lambda: manager.fire("maker.batch_end", LoopState())], times=20
    )
    assert overlap.most == 1


def test_managers_that_share_a_callback_do_not_deadlock():
    import sys

    callback = Shared()
    managers = [CallbackManager(role=Role.MAKER) for _ in range(2)]
    for manager in managers:
        manager.add(callback)

    def churn(manager):
        for _ in range(200):
            manager.remove(callback)
            manager.add(callback)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=churn, args=(manager,), daemon=True) for manager in managers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        sys.setswitchinterval(interval)
