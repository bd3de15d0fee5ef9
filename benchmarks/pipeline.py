"""Whether trainer and makers keep each other busy: throughput beside what the slower side allows.

Makers whose engine takes a known time for each lease, and a trainer that takes a known time for each step, both asleep;
all between them is real: the lease book, honest items that are checked on arrival, weights that are published and
loaded after every step, on `local` in threads and on `ray` in actors. A step needs 8 leases of 8 samples, so

    steps/s  <=  min(1 / step time, makers / (8 * lease time))           and a step takes, in seconds,
    asynchronous (max_staleness 1)  max(make, train)                     make = 8 / makers * lease time
    synchronous  (max_staleness 0)  make + train

Steps are counted from the end of the third one: until the first, makers start, and what was made meanwhile is used up
in the second. This is about waiting, not about computing: the sides sleep, as if each had hardware of its own. A round
takes about three and a half minutes, a third of it for starting actors. What is lost per lease are calls and checks.

    python benchmarks/pipeline.py [--json] [--rounds N] [--runtime local|ray|both]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from proa.data.experience import Experience
from proa.data.lease import Lease, Prompt
from proa.data.sampling import Sampling
from proa.engines import Progress, Request
from proa.engines.weights import WeightPlaces
from proa.leases.book import LeaseBook
from proa.leases.plan import LeasePlan
from proa.rewards import InlineRewards
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.trainer import DetachedTrainer
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn
from proa.runtime.local import LocalRuntime
from proa.tasks.builtin.characters import tokenizer

LEASES = 8
SAMPLING = Sampling(group_size=8, max_new_tokens=128)
SKIPPED = 3
REACHED_LIMIT = 0.95
GAIN_LIMIT = 0.05
PATIENCE = 120.0


@dataclass(frozen=True)
class Case:
    """How many makers, and how fast everyone is."""

    makers: int
    lease_seconds: float
    step_seconds: float
    steps: int
    max_staleness: int = 1

    @property
    def make_seconds(self) -> float:
        """Of all leases of a step; the makers share them evenly."""
        return LEASES / self.makers * self.lease_seconds

    @property
    def theory(self) -> float:
        """Seconds per step."""
        if self.max_staleness:
            return max(self.make_seconds, self.step_seconds)
        return self.make_seconds + self.step_seconds


SPEEDS = (
    Case(makers=1, lease_seconds=0.3, step_seconds=0.2, steps=5),
    Case(makers=2, lease_seconds=0.3, step_seconds=0.2, steps=7),
    Case(makers=4, lease_seconds=0.5, step_seconds=0.4, steps=7),
    Case(makers=8, lease_seconds=1.0, step_seconds=0.7, steps=7),
    Case(makers=8, lease_seconds=0.6, step_seconds=0.9, steps=7),
)
"""The makers are the slower side, but for the last. Where there are many their leases take longer: makers of one speed
deliver all at once, and on two cores the calls of each then wait for those of the others."""
GAINS = (
    (Case(4, 0.2, 0.4, steps=9), Case(4, 0.2, 0.4, steps=7, max_staleness=0)),
    (Case(4, 0.2, 0.2, steps=9), Case(4, 0.2, 0.2, steps=7, max_staleness=0)),
)
"""Asynchronous and synchronous: once with both sides equally fast, once with a trainer of twice the speed."""


class SleepingEngine:
    """Takes a known time for all that it was asked at once, and makes up tokens that follow from the seeds."""

    context_length = 1024
    free = 1024
    is_independent = False  # one lease at a time: what theory says of the pipeline is about leases
    versions = ()

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._places = WeightPlaces({"weight": torch.zeros(1024)}, {})
        self._open: list[Request] = []

    def submit(self, request: Request) -> None:
        self._open.append(request)

    def step(self) -> list[Progress]:
        until = time.perf_counter() + self._seconds
        made, self._open = [_progress(request) for request in self._open], []
        _sleep_until(until)
        return made

    def cancel(self, request_id: str) -> None:
        self._open = [request for request in self._open if request.id != request_id]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        raise NotImplementedError

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._places.fill(weights)

    def sleep(self) -> None:
        pass


class SleepingTrainer(DetachedTrainer):
    """Takes a known time for each step, and notes when each was over."""

    def __init__(self, case: Case, book: CountingBook, store: WeightStore, **settings: Any) -> None:
        super().__init__([], source=book, dataloader_pin_memory=False, wait_timeout=PATIENCE, **settings)
        self.ends: list[float] = []
        self._case = case
        self._book = book
        self._store = store

    def training_step(self, experience: Experience) -> dict[str, Any]:
        while len(self._book.at_work) < self._case.makers:  # starting actors takes seconds
            time.sleep(0.01)
        until = time.perf_counter() + self._case.step_seconds
        assert experience.reward is not None
        reward = float(experience.reward.mean())
        _sleep_until(until)
        self.ends.append(time.perf_counter())
        return {"reward": reward}

    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        version = self.state.policy_version + 1
        self._store.publish(version, _weights(version))
        self._store.retire(but=self.source.versions_in_use())


class CountingBook(LeaseBook):
    """Knows which makers have come up."""

    def __init__(self, case: Case) -> None:
        plan = LeasePlan(
            prompts_per_step=LEASES,
            lease_prompts=1,
            group_size=SAMPLING.group_size,
            total_steps=case.steps,
            max_staleness=case.max_staleness,
        )
        super().__init__(plan, _prompt, wait_timeout=PATIENCE)
        self.at_work: set[str] = set()

    def next_lease(self, maker: str, *, seconds: float | None = None) -> Lease:
        self.at_work.add(maker)
        return super().next_lease(maker, seconds=seconds)


def build_trainer(case: Case, shelf: Any = None) -> tuple[SleepingTrainer, CountingBook, WeightStore]:
    torch.set_num_threads(1)
    store = WeightStore(wait_timeout=PATIENCE, shelf=shelf)
    store.publish(0, _weights(0))
    book = CountingBook(case)
    return SleepingTrainer(case, book, store), book, store


def build_maker(case: Case, name: str) -> ExperienceMakerHolder:
    return ExperienceMakerHolder(
        engine=SleepingEngine(case.lease_seconds),
        rollout=SingleTurn(tokenizer(), SAMPLING, scorer=InlineRewards(_reward)),
        name=name,
    )


def _prompt(ordinal: int) -> Prompt:
    return Prompt(ordinal, tuple(range(1, 33)), f"prompt {ordinal}")


def _progress(request: Request) -> Progress:
    length = 16 + request.seed % (request.sampling.max_new_tokens - 15)
    return Progress(request.id, (1 + request.seed % 999,) * length, (-0.5,) * length, request.version, "length")


def _reward(completions: Sequence[str], **_: Any) -> list[float | None]:
    return [float(len(completion)) for completion in completions]


def _weights(version: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((1024,), float(version))}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


# -- the two runtimes ------------------------------------------------------------------------------------

Play = Callable[[Case], list[float]]
"""Runs a case and returns when each step was over."""


@dataclass(frozen=True)
class Makers:
    """Builds the makers of a case, in this process."""

    case: Case

    def make(self, name: str) -> ExperienceMakerHolder:
        return build_maker(self.case, name)


def play_local(case: Case) -> list[float]:
    trainer, book, store = build_trainer(case)
    LocalRuntime(trainer, Makers(case), makers=case.makers, book=book, store=store).run(case.steps, 1)
    return trainer.ends


def play_on_ray(case: Case) -> list[float]:
    from proa import CallbackManager
    from proa.runtime.ray.driver import RayRuntime
    from proa.runtime.ray.places import RaySettings
    from proa.runtime.supervisor import Limits

    runtime = RayRuntime(
        BuildTrainer(case),
        BuildMaker(case),
        makers=case.makers,
        manager=CallbackManager(),
        settings=RaySettings(namespace=f"proa-benchmark-{next(_NUMBERS)}"),
        limits=Limits(),
        patience=PATIENCE,
    )
    runtime.run(case.steps, 1)
    ends: list[float] = runtime.summary["ends"]
    return ends


@dataclass(frozen=True)
class BuildTrainer:
    """Builds the trainer, in its actor."""

    case: Case

    def __call__(self, ties: Any) -> Any:
        from proa.runtime.ray.trainer_host import TrainerParts

        trainer, book, store = build_trainer(self.case, ties.shelf)
        return TrainerParts(trainer, book, store, lambda: {"ends": trainer.ends})


@dataclass(frozen=True)
class BuildMaker:
    """Builds a maker, in its actor."""

    case: Case

    @contextmanager
    def __call__(self, name: str, store: Any, link: Any) -> Iterator[Any]:
        from proa.runtime.ray.maker_host import MakerParts

        torch.set_num_threads(1)
        yield MakerParts(build_maker(self.case, name))


_NUMBERS = itertools.count()


# -- measuring -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """A case, and the seconds that a step of it took."""

    runtime: str
    case: Case
    seconds: float

    @property
    def reached(self) -> float:
        """Of the throughput that the slower side allows."""
        return self.case.theory / self.seconds

    @property
    def lost(self) -> float:
        """Seconds for each lease that its maker, or else the trainer, did not work at all."""
        share = self.case.makers if self.case.make_seconds > self.case.step_seconds else 1
        return (self.seconds - self.case.theory) * share / LEASES

    @property
    def named(self) -> str:
        slower = "makers" if self.case.make_seconds > self.case.step_seconds else "trainer"
        return f"{self.runtime}, {self.case.makers} makers, the {slower} slower"


@dataclass(frozen=True)
class Gain:
    """What working at the same time brings."""

    asynchronous: Speed
    synchronous: Speed

    @property
    def theory(self) -> float:
        return self.synchronous.case.theory / self.asynchronous.case.theory

    @property
    def measured(self) -> float:
        return self.synchronous.seconds / self.asynchronous.seconds

    @property
    def named(self) -> str:
        case = self.synchronous.case
        return f"{self.synchronous.runtime}, make {case.make_seconds:.2g} s, train {case.step_seconds:.2g} s"


def measure(runtime: str, play: Play, case: Case, rounds: int) -> Speed:
    """Other work on the machine can only make a round slower, so the fastest counts."""
    return Speed(runtime, case, min(_seconds_per_step(play(case)) for _ in range(rounds)))


def _seconds_per_step(ends: Sequence[float]) -> float:
    return (ends[-1] - ends[SKIPPED - 1]) / (len(ends) - SKIPPED)


def measure_all(runtime: str, play: Play, rounds: int) -> tuple[list[Speed], list[Gain]]:
    def one(case: Case) -> Speed:
        return measure(runtime, play, case, rounds)

    return [one(case) for case in SPEEDS], [Gain(one(together), one(in_turn)) for together, in_turn in GAINS]


def measure_on_ray(rounds: int) -> tuple[list[Speed], list[Gain]]:
    from proa.runtime.ray.cluster import cluster

    with cluster(None, "proa-benchmark"):
        return measure_all("ray", play_on_ray, rounds)


def verdicts(speeds: Sequence[Speed], gains: Sequence[Gain]) -> dict[str, bool]:
    reached = {
        f"{speed.named}: at least {REACHED_LIMIT:.0%} of what it allows": speed.reached >= REACHED_LIMIT
        for speed in speeds
    }
    gained = {
        f"{gain.named}: the gain is that of theory within {GAIN_LIMIT:.0%}": (
            abs(gain.measured / gain.theory - 1) <= GAIN_LIMIT
        )
        for gain in gains
    }
    return reached | gained


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput of makers and trainer, beside what the slower allows.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--runtime", choices=["local", "ray", "both"], default="both", help="where the two sides run")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each case; the fastest counts")
    options = parser.parse_args()
    speeds: list[Speed] = []
    gains: list[Gain] = []
    if options.runtime != "ray":
        found = measure_all("local", play_local, options.rounds)
        speeds, gains = speeds + found[0], gains + found[1]
    if options.runtime != "local":
        found = measure_on_ray(options.rounds)
        speeds, gains = speeds + found[0], gains + found[1]
    checks = verdicts(speeds, gains)
    if options.json:
        print(json.dumps(_plain(speeds, gains, checks), indent=2))
    else:
        _print(speeds, gains, checks)
    return 0 if all(checks.values()) else 1


def _plain(speeds: Sequence[Speed], gains: Sequence[Gain], checks: dict[str, bool]) -> dict[str, Any]:
    return {
        "steps_per_second": {
            speed.named: {"allowed": 1 / speed.case.theory, "reached": 1 / speed.seconds} for speed in speeds
        },
        "gain_of_asynchronous": {gain.named: {"theory": gain.theory, "measured": gain.measured} for gain in gains},
        "checks": checks,
    }


def _print(speeds: Sequence[Speed], gains: Sequence[Gain], checks: dict[str, bool]) -> None:
    print(f"{'steps per second':40} {'allowed':>9} {'reached':>9} {'share':>8} {'lost per lease':>15}")
    for speed in speeds:
        allowed, reached = 1 / speed.case.theory, 1 / speed.seconds
        print(f"{speed.named:40} {allowed:9.3f} {reached:9.3f} {speed.reached:8.1%} {speed.lost * 1e3:12.1f} ms")
    print(f"{'synchronous / asynchronous':40} {'theory':>9} {'measured':>9} {'off by':>8}")
    for gain in gains:
        print(f"{gain.named:40} {gain.theory:9.2f} {gain.measured:9.2f} {gain.measured / gain.theory - 1:+8.1%}")
    for check, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {check}")


if __name__ == "__main__":
    sys.exit(main())
