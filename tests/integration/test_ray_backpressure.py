"""A full buffer holds makers back: memory and disk stay flat however slow the trainer is."""

import threading
import time
from pathlib import Path

import pytest
from tests.integration.heavy_run import Heavy

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Watch(threading.Thread):
    """Notes what Ray has in its object store, and what it spilled."""

    def __init__(self, ray):
        super().__init__(daemon=True)
        self.ray, self.over, self.stored = ray, threading.Event(), []

    def run(self):
        total = self.ray.cluster_resources()["object_store_memory"]
        while not self.over.wait(0.5):
            self.stored.append(total - self.ray.available_resources().get("object_store_memory", total))


def spilled_bytes(ray):
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    return sum(file.stat().st_size for file in session.glob("ray_spilled_objects*/**/*") if file.is_file())


@pytest.mark.prove
@pytest.mark.parametrize(("steps", "step_seconds"), [(12, 0.4), (60, 1.0)], ids=["short", "a minute"])
def test_memory_and_disk_stay_flat_while_the_trainer_is_slow(ray_cluster, steps, step_seconds):
    watch = Watch(ray_cluster)
    watch.start()
    begun = time.monotonic()
    noted = Heavy(steps, step_seconds).run()
    watch.over.set()
    watch.join()
    assert time.monotonic() - begun > steps * step_seconds
    own, shared = zip(*noted["resident"], strict=True)
    print("resident MB:", [round(r / 2**20) for r in own], "shared:", [round(r / 2**20) for r in shared])
    print("buffered:", noted["buffered"], "stored MB:", [round(s / 2**20, 1) for s in watch.stored])
    # A batch is 8 MB: unlimited, that is what it would grow by in each step. Working memory is there after a few, but
    # for what the allocator cannot use again: over 200 steps that came to rest, at less than 1 MB a step before.
    third = len(own) // 3
    assert max(own[2 * third :]) - max(own[third : 2 * third]) < max(20, third * 8 / 4) * 2**20
    # The limit, the batch that is being trained on, and what the maker of an awaited lease has to deliver before it: a
    # lease that is in flight and one that waits for that, of two samples each.
    assert max(noted["buffered"]) <= 2 * 8 + 8 + 4
    assert max(watch.stored, default=0) < 100 * 2**20
    assert spilled_bytes(ray_cluster) == 0
