"""A run whose experience is heavy and whose trainer is slow, for tests of what is held back where."""

import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.engines.made_up import MadeUpEngine

from proa import CallbackManager, DetachedTrainer
from proa.data.lease import Prompt
from proa.data.sampling import Sampling
from proa.leases.book import LeaseBook
from proa.leases.plan import LeasePlan
from proa.rewards import InlineRewards
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn
from proa.runtime.ray.driver import RayRuntime
from proa.runtime.ray.maker_host import MakerParts
from proa.runtime.ray.places import RaySettings
from proa.runtime.ray.trainer_host import TrainerParts
from proa.runtime.supervisor import Limits
from proa.tasks.builtin.characters import tokenizer

TOKENS = 50_000
"""Of one completion: a sample is then about a megabyte."""


def resident_bytes():
    """Of its own, and of what it shares: pages of the object store count for everyone who has touched them."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


class HeavyEngine(MadeUpEngine):
    """Makes long completions at once."""

    def tokens(self, request):
        return (1,) * TOKENS, "length"


class SlowTrainer(DetachedTrainer):
    """Takes its time for each step, and notes how much memory it has by then."""

    def __init__(self, step_seconds, store, source):
        super().__init__([], source=source, dataloader_pin_memory=False)
        self.step_seconds, self.store, self.resident = step_seconds, store, []

    def training_step(self, experience):
        time.sleep(self.step_seconds)
        self.resident.append(resident_bytes())
        return {"loss": 0.0}

    def _update_remote_makers(self, fully_update=False, **kwargs):
        version = self.state.policy_version + 1
        self.store.publish(version, {"weight": torch.full((1_000_000,), float(version))})
        self.store.retire(but=self.source.versions_in_use())


def half(completions, **_):
    return [0.5] * len(completions)


@dataclass(frozen=True)
class Heavy:
    steps: int
    step_seconds: float
    buffer_limit: int = 2

    def trainer(self, ties):
        plan = LeasePlan(
            prompts_per_step=4, lease_prompts=1, group_size=2, total_steps=self.steps, max_staleness=1000,
            buffer_limit=self.buffer_limit,
        )  # fmt: skip
        store = WeightStore(shelf=ties.shelf)
        store.publish(0, {"weight": torch.zeros(1_000_000)})
        book = LeaseBook(plan, lambda ordinal: Prompt(ordinal, (1, 2), "text"))
        trainer = SlowTrainer(self.step_seconds, store, book)
        most = []
        trainer.manager.on("step_start")(lambda state: most.append(book.ledger.buffered))
        return TrainerParts(trainer, book, store, lambda: {"resident": trainer.resident, "buffered": most})

    @contextmanager
    def maker(self, name, store, link):
        yield MakerParts(ExperienceMakerHolder(
            engine=HeavyEngine(), name=name,
            rollout=SingleTurn(
                tokenizer(), Sampling(group_size=2, max_new_tokens=TOKENS), scorer=InlineRewards([half])
            ),
        ))  # fmt: skip

    def run(self, *, makers=3):
        """What the trainer noted."""
        runtime = RayRuntime(
            self.trainer, self.maker, makers=makers, manager=CallbackManager(), patience=120.0,
            settings=RaySettings(namespace="heavy"), limits=Limits(),
        )  # fmt: skip
        runtime.run(self.steps, 1)
        return runtime.summary
