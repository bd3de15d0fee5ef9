"""The demo task on Ray, with makers killed at random times: the weights of the local run, bit for bit."""

import contextlib
import json
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from proa import recipes
from proa.config import load_run_config

pytestmark = [pytest.mark.prove, pytest.mark.filterwarnings("ignore::ResourceWarning")]

STEPS = int(os.environ.get("PROA_DEMO_STEPS", "40"))


class Killer(threading.Thread):
    """Kills a maker that is at work every few seconds."""

    def __init__(self, folder, seed):
        super().__init__(daemon=True)
        self.folder, self.random, self.over, self.killed = folder, random.Random(seed), threading.Event(), []

    def run(self):
        while not self.over.wait(self.random.uniform(2, 8)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                actors = json.loads((self.folder / "live.json").read_text())["actors"]
                working = [actor for actor in actors if actor["role"] == "maker" and actor["leases"] and actor["log"]]
                victim = self.random.choice(working)
                os.kill(int(Path(victim["log"]).stem.rpartition("-")[2]), signal.SIGKILL)
                self.killed.append(victim["name"])


def train(repository, tmp_path, name, **changes):
    config = load_run_config(
        repository / "examples" / "sort_digits.yaml", output_dir=tmp_path, name=name, total_steps=STEPS, **changes
    )  # fmt: skip
    killer = Killer(config.folder, seed=name)
    if config.runtime == "ray":
        killer.start()
    recipes.run(config)
    killer.over.set()
    return json.loads((config.folder / "run.json").read_text()), killer.killed


def test_the_demo_task_is_the_same_on_ray_with_makers_killed_at_random(ray_cluster, tmp_path, repository):
    local, _ = train(repository, tmp_path, "local")
    for makers in (1, 2, 3):
        on_ray, killed = train(repository, tmp_path, f"ray-{makers}", runtime="ray", makers=makers)
        print(f"{makers} makers: {len(killed)} killed ({', '.join(killed)}), {on_ray['weights_digest'][:16]}")
        assert on_ray["weights_digest"] == local["weights_digest"]
        assert on_ray["ledger"] == local["ledger"]
        assert on_ray["evals"] == local["evals"]
        assert killed
