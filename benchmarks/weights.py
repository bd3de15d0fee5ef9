"""What a push of weights costs, beside two memory copies of the same bytes, in one run.

A push is timed from before `publish` until the last maker has switched. The trainer takes the digest and puts the
weights into Ray's object store, once; makers, which wait for that version, fetch it, check names, shapes, dtypes and
digest, and copy it into their engines' tensors, all of them or none. Trainer and makers are actors on this machine. A
memory copy is torch's `copy_` between two tensors that were touched before. All are interleaved, and of each the
fastest round counts: the makers copy at the same time, so it takes two cores with nothing else to do.

The first pushes write to pages of the store that nobody has touched, which takes several times as long: they are shown,
and are not among the rounds. 500 MB of parameters take about 5 GB of memory in all.

    python benchmarks/weights.py [--json] [--rounds N] [--megabytes N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
import torch

from proa.actors.concurrency import concurrency_group
from proa.actors.waiting import WaitTimeoutError
from proa.data.sampling import Sampling
from proa.engines.weights import WeightPlaces
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn
from proa.runtime.ray.cluster import cluster
from proa.runtime.ray.maker_host import RemoteStore
from proa.runtime.ray.replies import Reply
from proa.runtime.ray.shelf import RayShelf
from proa.tasks.builtin.characters import tokenizer

MAKERS = 2
FIRST_PUSHES = 4
COPIES_LIMIT = 2.5
SECOND_MAKER_LIMIT = 1.2
HELD_UP_LIMIT = 1.2
PATIENCE = 60.0


def parameters(megabytes: int) -> dict[str, torch.Tensor]:
    """100 tensors: an embedding with a fifth of all bytes, matrices of two sizes, and small vectors."""
    total = megabytes * 1_000_000 // 4
    shapes = [(total // 5 // 512, 512)]
    shapes += [(1024,)] * 19
    rest = total - shapes[0][0] * 512 - 19 * 1024
    shapes += [(rest // 160 // 64, 64)] * 40 + [(3 * rest // 160 // 256, 256)] * 40
    return {f"layers.{number:02}.weight": torch.ones(shape) for number, shape in enumerate(shapes)}


class Trainer:
    """What a trainer's actor does about weights, and memory copies for comparison."""

    def __init__(self, megabytes: int) -> None:
        torch.set_num_threads(1)
        self.parameters = parameters(megabytes)
        self.bytes = sum(tensor.nbytes for tensor in self.parameters.values())
        self.shelf = RayShelf()
        self.store = WeightStore(shelf=self)
        self.puts = 0
        self.here, self.there = torch.ones(self.bytes // 4), torch.zeros(self.bytes // 4)

    def put(self, tensors: Any) -> tuple[Any, str]:
        self.puts += 1
        return self.shelf.put(tensors)

    def get(self, reference: Any) -> Any:
        return self.shelf.get(reference)

    def drop(self, reference: Any) -> None:
        self.shelf.drop(reference)

    @concurrency_group("compute")
    def two_copies(self) -> float:
        begun = time.perf_counter()
        self.there.copy_(self.here)
        self.here.copy_(self.there)
        return time.perf_counter() - begun

    @concurrency_group("compute")
    def publish(self, version: int, waiting: int) -> tuple[float, float]:
        """When it began and when it was over; it begins when so many makers wait for it."""
        for tensor in self.parameters.values():
            tensor.fill_(version)
        deadline = time.perf_counter() + PATIENCE
        while len(self.store.room.waits()) < waiting:
            if time.perf_counter() > deadline:
                raise WaitTimeoutError(f"{waiting} makers were to wait for version {version}, and do not")
            time.sleep(0.001)
        begun = time.perf_counter()
        self.store.publish(version, self.parameters)
        self.store.retire(but=set())
        return begun, time.perf_counter()

    # -- what makers ask, answered as the trainer of a run does

    @concurrency_group("weights")
    def prepared(self) -> Reply:
        return Reply(True)

    @concurrency_group("weights")
    def weights(self, version: int, gpu: str = "") -> Reply:
        try:
            kept = self.store.fetch(version, owner="a maker", seconds=2.0)
        except WaitTimeoutError:
            return Reply()
        return Reply([*kept.tensors.offer(gpu), None])

    @concurrency_group("weights")
    def counted(self) -> tuple[int, int]:
        return self.puts, self.bytes


class Places:
    """An engine that has weights and samples nothing."""

    context_length = 0

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.loading = 0.0
        self._places = WeightPlaces(tensors, {})

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.loading = time.perf_counter()
        self._places.fill(weights)


@dataclass(frozen=True)
class Switched:
    """When a maker had fetched, checked and copied; one clock serves all processes of a machine."""

    fetched: float
    checked: float
    copied: float


class Maker:
    def __init__(self, trainer: Any, megabytes: int) -> None:
        torch.set_num_threads(1)
        self.engine = Places(parameters(megabytes))
        self.store = RemoteStore(trainer, PATIENCE)
        engine: Any = self.engine  # of an engine, only what pushes need
        self.maker = ExperienceMakerHolder(engine=engine, rollout=SingleTurn(tokenizer(), Sampling()))

    def switch(self, version: int) -> Switched:
        weights = self.store.fetch(version, owner="a maker")
        fetched = time.perf_counter()
        self.maker.update_experience_maker(weights)
        copied = time.perf_counter()
        assert all(float(tensor.view(-1)[-1]) == version for tensor in self.engine.tensors.values())
        return Switched(fetched, self.engine.loading, copied)


@dataclass
class Push:
    """Seconds of one push; `publish` is all that the trainer spends on it."""

    makers: int
    publish: float
    fetch: float = 0.0
    check: float = 0.0
    copy: float = 0.0
    whole: float = 0.0


@dataclass
class Rounds:
    copies: list[float] = field(default_factory=list)
    pushes: dict[int, list[Push]] = field(default_factory=lambda: {count: [] for count in range(MAKERS + 1)})
    first: list[Push] = field(default_factory=list)
    puts: int = 0
    bytes: int = 0

    def best(self, makers: int) -> Push:
        return min(self.pushes[makers], key=lambda push: push.whole)

    def ratios(self) -> dict[str, float]:
        """What is limited, each of the fastest rounds."""
        publish = {makers: min(push.publish for push in pushes) for makers, pushes in self.pushes.items()}
        return {
            "one maker / two copies": self.best(1).whole / min(self.copies),
            "two makers / one": self.best(2).whole / self.best(1).whole,
            "publish with two waiting / with none": publish[2] / publish[0],
        }


class Bench:
    """The actors, and the version they are at."""

    def __init__(self, megabytes: int) -> None:
        remote: Any = ray.remote
        groups = {"compute": 1, "weights": 8}
        self.trainer = remote(num_cpus=0, concurrency_groups=groups)(Trainer).remote(megabytes)
        maker = remote(num_cpus=0)(Maker)
        self.makers = [maker.remote(self.trainer, megabytes) for _ in range(MAKERS)]
        self.version = 0

    def push(self, count: int) -> Push:
        """One push to so many makers; the others have nothing to do."""
        self.version += 1
        switching = [maker.switch.remote(self.version) for maker in self.makers[:count]]
        begun, published = ray.get(self.trainer.publish.remote(self.version, count))
        push = Push(count, published - begun, whole=published - begun)
        ended: list[Switched] = ray.get(switching)
        if ended:
            last = max(ended, key=lambda switched: switched.copied)
            push.fetch, push.check, push.copy = (
                last.fetched - published, last.checked - last.fetched, last.copied - last.checked,
            )  # fmt: skip
            push.whole = last.copied - begun
        return push

    def run(self, rounds: int) -> Rounds:
        found = Rounds(first=[self.push(MAKERS) for _ in range(FIRST_PUSHES)])
        for _ in range(rounds):  # interleaved, so that a busy second of the machine hits everyone
            found.copies.append(ray.get(self.trainer.two_copies.remote()))
            for count in range(MAKERS + 1):
                found.pushes[count].append(self.push(count))
        found.puts, found.bytes = ray.get(self.trainer.counted.remote())
        return found


def verdicts(found: Rounds) -> dict[str, bool]:
    pushes = FIRST_PUSHES + sum(map(len, found.pushes.values()))
    copies, second, held_up = found.ratios().values()
    return {
        f"one maker has the weights within {COPIES_LIMIT} times two copies": copies <= COPIES_LIMIT,
        f"with a second, everyone has them within {SECOND_MAKER_LIMIT} times that": second < SECOND_MAKER_LIMIT,
        f"makers that wait make publishing at most {HELD_UP_LIMIT} times as long": held_up <= HELD_UP_LIMIT,
        f"{pushes} pushes to none, one and two makers are {pushes} puts": found.puts == pushes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What a push of weights costs, beside memory copies.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=20, help="rounds over copies and pushes; the fastest count")
    parser.add_argument("--megabytes", type=int, default=500, help="of float32 parameters")
    options = parser.parse_args()
    with cluster(None, "proa-benchmark"):
        found = Bench(options.megabytes).run(options.rounds)
    checks = verdicts(found)
    if options.json:
        print(json.dumps(_plain(found, checks), indent=2))
    else:
        _print(found, checks)
    return 0 if all(checks.values()) else 1


def _plain(found: Rounds, checks: dict[str, bool]) -> dict[str, Any]:
    return {
        "bytes": found.bytes,
        "two_copies_seconds": min(found.copies),
        "push_seconds": [asdict(found.best(makers)) for makers in found.pushes],
        "first_push_seconds": asdict(found.first[0]),
        "ratios": {name: round(ratio, 3) for name, ratio in found.ratios().items()},
        "checks": checks,
    }


def _print(found: Rounds, checks: dict[str, bool]) -> None:
    copies = min(found.copies)
    columns = " ".join(f"{name:>8}" for name in ("publish", "fetch", "check", "copy", "push", "/ copies"))
    print(f"{f'ms for {found.bytes / 1e6:,.0f} MB':28} {columns}")
    print(f"{'two memory copies':28} {'':35} {copies * 1e3:8,.0f} {1.0:8.2f}")
    rows = {f"push to {count} makers": found.best(count) for count in found.pushes}
    for name, push in {**rows, "first push, pages untouched": found.first[0]}.items():
        parts = (push.publish, push.fetch, push.check, push.copy, push.whole)
        print(f"{name:28} {' '.join(f'{part * 1e3:8,.0f}' for part in parts)} {push.whole / copies:8.2f}")
    print("; ".join(f"{name}: {ratio:.2f}" for name, ratio in found.ratios().items()))
    for check, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {check}")


if __name__ == "__main__":
    sys.exit(main())
