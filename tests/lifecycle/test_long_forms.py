"""The long forms of what other tests prove in small; `make prove` runs them."""

import random
import threading

import pytest

from proa import CallbackManager, LoopState
from proa.testing import assert_lifecycle

pytestmark = pytest.mark.prove


def test_a_long_detached_run_keeps_the_lifecycle_whatever_happens_at_any_of_its_firings():
    from tests.testing.test_conformance import detached

    conformance = assert_lifecycle(lambda m: detached(m, episodes=3, steps=3, epochs=3), every_occurrence=True)
    assert conformance.cases == 3 * len(conformance.success) + 2 > 300


def test_firing_adding_and_removing_from_many_threads_loses_and_repeats_nothing():
    """Each listener that stays from the first firing to the last hears every one of them."""
    manager, counts = CallbackManager(), [0] * 4
    lock = threading.Lock()

    def counter(place):
        def count():
            with lock:
                counts[place] += 1

        return count

    for place in range(4):
        manager.on("maker.batch_end")(counter(place))
    firings, threads = 2000, 6

    def fire():
        for _ in range(firings):
            manager.fire("maker.batch_end", LoopState())

    def churn(seed):
        generator = random.Random(seed)
        for _ in range(300):
            guest = manager.on(generator.choice(["maker.batch_end", "step_end"]))(lambda: None)
            manager.remove(guest)

    workers = [threading.Thread(target=fire) for _ in range(threads)]
    workers += [threading.Thread(target=churn, args=(seed,)) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert counts == [firings * threads] * 4
