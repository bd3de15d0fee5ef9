"""A run of a few seconds: a model of a few thousand parameters sorts digits, with faults where asked for."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.small import MODEL as CONFIG

from proa import CallbackManager
from proa.algorithms import build_algorithm
from proa.data.sampling import Sampling
from proa.engines import NativeEngine, Progress, build_engine
from proa.learning.optimizer import OptimizerSettings
from proa.leases.book import LeaseBook
from proa.leases.plan import LeasePlan
from proa.policy.critic import separate_critic, shared_critic
from proa.policy.lora import LoraSettings, add_lora
from proa.policy.lora_policy import as_policy
from proa.policy.models import load_model, model_weights, weights_digest
from proa.rewards import InlineRewards
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.policy_trainer import DetachedGRPOTrainer, DetachedPPOTrainer, PolicyTrainer, StepSettings
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn
from proa.runtime.local import LocalRuntime
from proa.runtime.supervisor import Limits
from proa.tasks import PromptStream
from proa.tasks.builtin import builtin_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer

SAMPLING = Sampling(group_size=4, max_new_tokens=6)
STEPS, PROMPTS = 5, 4


def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """Digits in common, with a bit of the prompt so that no two groups look alike."""
    return [
        len(set(c) & set(a)) / 6 + 0.01 * len(c) + 0.001 * int(p[0])
        for p, c, a in zip(prompts, completions, answer, strict=True)
    ]


class SmallRun:
    """All parts of one run, built the same way each time; `disturb` wraps each maker."""

    def __init__(
        self,
        *,
        algorithm: str = "grpo",
        scorer: Any = None,
        callbacks: Any = (),
        old: Any = "sampler",
        wait_timeout: float = 30.0,
        train_epochs: int = 1,
        kl: float = 0.0,
        params: Any = (),
        critic: str = "shared",
        lora: LoraSettings | None = None,
        share_prompts: bool = False,
        token_budget: int = 120,
        **plan: Any,
    ) -> None:
        torch.set_num_threads(1)
        self.model = load_model(CONFIG, seed=1)
        if lora is not None:
            add_lora(self.model, lora, seed=2)
        self.tokenizer = make_tokenizer()
        self.task = builtin_task("sort_digits", "train", count=64, seed=3)
        self.stream = PromptStream(self.task, self.tokenizer, seed=5)
        self.plan = LeasePlan(**{
            "prompts_per_step": PROMPTS, "lease_prompts": 1, "group_size": SAMPLING.group_size, "total_steps": STEPS,
            "seed": 7, **plan,
        })  # fmt: skip
        self.epochs = train_epochs
        self.store = WeightStore(wait_timeout=wait_timeout)
        self.store.publish(0, as_policy(self.model).published())
        self.manager = CallbackManager.create(callbacks)
        self.trainer: PolicyTrainer = _trainer(
            self.model,
            critic,
            algorithm=build_algorithm(algorithm, **{"entropy_coefficient": 0.01, "kl_coefficient": kl, **dict(params)}),
            sampling=SAMPLING,
            optimizer=OptimizerSettings(learning_rate=3e-3, schedule="linear"),
            optimizer_steps=self.plan.total_steps * train_epochs,
            store=self.store,
            settings=StepSettings(token_budget=token_budget, old=old, share_prompts=share_prompts),
            callbacks=self.manager,
            seed=7,
        )
        self.book = LeaseBook(
            self.plan, self.stream.__getitem__, filter_group=self.trainer.group_filter.filter, wait_timeout=wait_timeout
        )
        self.trainer.source = self.book
        self.scorer = scorer or InlineRewards(reward)

    def make_maker(self, name: str) -> ExperienceMakerHolder:
        return ExperienceMakerHolder(
            engine=build_engine("native", self.model, end_ids=[self.tokenizer.eos_token_id]),
            rollout=SingleTurn(self.tokenizer, SAMPLING, scorer=self.scorer),
            receiver=as_policy(self.model).receiver(),
            name=name,
        )

    def run(
        self,
        makers: int = 1,
        *,
        disturb: Callable[[ExperienceMakerHolder], None] = lambda maker: None,
        limits: Limits | None = None,
    ) -> str:
        """Train to the end; returns the digest of the final weights."""

        def make(name: str) -> ExperienceMakerHolder:
            maker = self.make_maker(name)
            disturb(maker)
            return maker

        runtime = LocalRuntime(
            self.trainer, SimpleNamespace(make=make), makers=makers, book=self.book, store=self.store, limits=limits
        )  # fmt: skip
        runtime.run(self.plan.total_steps, self.plan.update_steps, self.epochs)
        return self.digest

    @property
    def digest(self) -> str:
        return weights_digest(model_weights(self.model))


def _trainer(model: Any, critic: str, *, algorithm: Any, **settings: Any) -> PolicyTrainer:
    if not algorithm.needs_critic:
        return DetachedGRPOTrainer([], model, algorithm=algorithm, **settings)
    made = shared_critic(model) if critic == "shared" else separate_critic(model)
    return DetachedPPOTrainer([], model, critic=made, algorithm=algorithm, **settings)


def with_random_delays(seed: int) -> Callable[[ExperienceMakerHolder], None]:
    """Makers that dawdle before and after they generate."""
    stream = random.Random(seed)

    def disturb(maker: ExperienceMakerHolder) -> None:
        step = maker.engine.step

        def slow() -> list[Progress]:
            time.sleep(stream.random() * 0.005)
            made = step()
            time.sleep(stream.random() * 0.005)
            return made

        maker.engine.step = slow  # type: ignore[method-assign]

    return disturb


class OneLeaseAtATime(NativeEngine):
    """Never has room for a second."""

    free = 0


def failing_once(at_call: int, how: Callable[[], None]) -> Callable[[ExperienceMakerHolder], None]:
    """The first maker does something bad in the middle of its n-th lease; its replacements do not.

    The others wait with theirs until then, or they might leave it none."""
    makers, happened = itertools.count(), threading.Event()

    def disturb(maker: ExperienceMakerHolder) -> None:
        step, leases, is_first = maker.engine.step, set[str](), next(makers) == 0

        def faulty() -> list[Progress]:
            if not is_first:
                assert happened.wait(60.0)
                return step()
            made = step()
            leases.update(progress.id.partition("/")[0] for progress in made)  # one prompt is one lease here
            if len(leases) > at_call and not happened.is_set():
                happened.set()
                how()
            return made

        maker.engine.__class__ = OneLeaseAtATime
        maker.engine.step = faulty  # type: ignore[method-assign]

    return disturb


def hanging_once(run: SmallRun, at_call: int, limits: Limits) -> Callable[[ExperienceMakerHolder], None]:
    """The first maker hangs in the middle of its n-th lease until it is given up; nobody else is too slow."""
    given_up = threading.Event()

    def hang() -> None:
        limits.lease_timeout = 0.05
        assert given_up.wait(60.0)

    @run.manager.on("maker.lost")
    def lost(maker: str, reason: str) -> None:
        if maker == "maker_0":  # another may have waited with its lease for as long
            limits.lease_timeout = 300.0
            given_up.set()

    return failing_once(at_call, hang)
