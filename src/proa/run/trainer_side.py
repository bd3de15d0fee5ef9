"""The trainer's half of a run: policy, critic, lease book, evals, and the trainer that has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..algorithms import PPO
from ..config import ConfigError, DetachedConfig
from ..data.results import EvalResult
from ..data.state import LoopState
from ..evals.evaluation import evaluator_for
from ..learning.optimizer import OptimizerSettings
from ..learning.replicas import Alone, Replicas
from ..leases.book import LeaseBook
from ..leases.plan import LeasePlan
from ..lifecycle.hooks import BaseCallback
from ..lifecycle.manager import CallbackManager
from ..model_shape import context_length
from ..policy.critic import Critic, critic_from_reward_model, separate_critic, shared_critic
from ..policy.log_probs import check_causal
from ..policy.lora import add_lora, trained_weights
from ..policy.material import Material
from ..policy.models import weights_digest
from ..policy.shared_prompts import check_shares_prompts
from ..policy.whole import all_parameters
from ..record.run_record import RunRecord
from ..resume.checkpoints import Checkpoints
from ..resume.inputs import Inputs, Rows, architecture_of, row_tokens, tokenizer_digest
from ..resume.resuming import Resumption, load_policy, other_start, start_digest
from ..rewards.identity import identity
from ..roles.grpo_trainer import DetachedGRPOTrainer
from ..roles.policy_trainer import PolicyTrainer, StepSettings
from ..roles.ppo_trainer import DetachedPPOTrainer
from ..roles.source import SharedSource
from ..roles.weights import WeightStore
from ..supervised.sft import fit_sft
from ..tasks import PromptStream, Task
from ..tasks.prompts import KEPT_ROWS
from .given import Given
from .job import state_summary
from .maker_side import reward_model_for, sampling_of
from .material import (
    BASE_NAME,
    load_material,
    load_training_task,
    lora_settings,
    prepare_lora,
    save_base,
    save_policy,
)
from .step_record import TakeStepRecord


@dataclass(frozen=True)
class Surroundings:
    """What is around the first trainer of a run."""

    folder: Path
    store: WeightStore
    manager: CallbackManager
    listen: Callable[[BaseCallback], object]
    """Adds a callback to the manager for this run."""
    record: RunRecord
    replicas: Replicas = field(default_factory=Alone)
    resumption: Resumption | None = None
    asked_to_leave: Callable[[], str] = str
    of_this_process: Callable[[], dict[str, Any]] = dict
    """For checkpoints, where the driver is another process."""
    journal: Sequence[Mapping[str, Any]] = ()
    """Of a run that is repeated."""


class TrainerSide:
    """What trains. What is wrong with model, task or evals is found when it is built."""

    def __init__(self, config: DetachedConfig, given: Given) -> None:
        self.config = config
        self.algorithm = config.algorithm.build()
        self.task = load_training_task(config, given)
        self.material = load_material(config, given)
        self.stream = _prompts(config, self.task, self.material)
        check_causal(self.material.model)
        if config.optimizer.share_prompts:
            longest = self.stream.longest + config.sampling.group_size * config.sampling.max_new_tokens
            check_shares_prompts(self.material.model, min(longest, 2048))  # longer rows when there are some
        self.inputs = Inputs(
            rows=Rows.of(
                row_tokens(self.stream.row_tokens, self.task.rows, KEPT_ROWS),
                (row.columns for row in self.task.rows),
                len(self.task.rows),
            ),
            tokenizer=tokenizer_digest(self.material.tokenizer),
            architecture=architecture_of(self.material.model),
            end_ids=self.material.end_ids,
            algorithm=identity(type(self.algorithm)),
        )
        """What checkpoints are bound to; makers have rewards to add."""
        self.critic_start = _critic_start(config, self.material, self.stream)
        self.trainer: PolicyTrainer | None = None
        self._record: RunRecord | None = None
        self.evaluators = [
            evaluator_for(
                section, config, self.material, self._state, self._report_eval, given.evaluators.get(section.name)
            )
            for section in config.eval
        ]
        self._start_digest = ""

    def prepare(self, folder: Path, replicas: Replicas | None = None, *, resumed: bool = False) -> None:
        """What comes before the first version of the weights: the supervised start, the adapter."""
        torch.set_num_threads(self.config.threads)
        replicas = replicas or Alone()
        is_first = replicas.rank == 0
        if is_first and not resumed:
            self._warm_start(folder)
        elif is_first and (folder / BASE_NAME).is_dir():
            self._load(folder / BASE_NAME)
        prepare_lora(self.config, self.material, folder, is_new=is_first and not resumed)
        replicas.copy_first_([*self.material.model.parameters()])

    def assemble_first(self, around: Surroundings) -> tuple[PolicyTrainer, LeaseBook]:
        """The trainer that publishes, evaluates, saves and has the lease book; with others beside it, or alone."""
        self._record = around.record
        checkpoints = self._checkpoints(around)
        resumed = around.resumption.loop() if around.resumption is not None else None
        trainer = self._trainer(
            around.store,
            around.manager,
            around.replicas,
            evaluators=self.evaluators,
            saver=checkpoints.saver(resumed),
        )
        wait = self.config.wait_timeout
        book = LeaseBook(_plan(self.config), self.stream.__getitem__, sift=trainer.sift, wait_timeout=wait)
        book.repeat(around.journal)
        trainer.source = book if around.replicas.size == 1 else SharedSource(around.replicas, book)
        around.listen(TakeStepRecord(trainer, book, around.record, self.material.tokenizer, self.config))
        if around.resumption is None:
            self._start_digest = around.store.publish(0, trained_weights(self.material.model)).digest
        else:
            self._go_on(trainer, around.resumption)
            for version, tensors in around.resumption.part("weights")["versions"].items():
                around.store.publish(version, tensors)
        return trainer, book

    def assemble_other(
        self, replicas: Replicas, manager: CallbackManager, resumption: Resumption | None = None
    ) -> PolicyTrainer:
        """One of the other trainers: it computes its share of every batch."""
        trainer = self._trainer(WeightStore(), manager, replicas)
        trainer.source = SharedSource(replicas, None)
        if resumption is not None:
            self._go_on(trainer, resumption)
        return trainer

    def _checkpoints(self, around: Surroundings) -> Checkpoints:
        def more() -> dict[str, Mapping[str, Any]]:
            assert self.trainer is not None, "it is built with them"
            in_use = self.trainer.source.versions_in_use() or set()
            return {"weights": {"versions": around.store.recall(in_use)}}

        return Checkpoints(
            self.config,
            around.folder,
            self.material.model,
            lambda model, into: save_policy(self.config, replace(self.material, model=model), around.folder, into),
            around.record,
            self.inputs,
            asked_to_leave=around.asked_to_leave,
            more=more,
            of_this_process=lambda: {**around.of_this_process(), "start_digest": self._start_digest},
        )

    def _go_on(self, trainer: PolicyTrainer, resumption: Resumption) -> None:
        """Make everything what it was when the checkpoint was written; the reference is what it was at the start."""
        self._start_digest = resumption.part("run")["start_digest"]
        if self.algorithm.needs_reference and self.config.lora is None:
            self._check_start()
        self._load(resumption.model)
        loop = resumption.loop()
        trainer.load_state_dict(loop.state, loop.row)

    def _check_start(self) -> None:
        if start_digest(self.material.model) != self._start_digest:
            raise other_start()

    def _load(self, folder: Path) -> None:
        load_policy(self.material.model, folder, trust_remote_code=self.config.model.trust_remote_code)

    def summary(self, callback_errors: dict[str, int]) -> dict[str, Any]:
        """What the run's header says of how far it came."""
        if self.trainer is None:
            return {}
        return {
            **state_summary(self.trainer.state, [section.name for section in self.config.eval], callback_errors),
            "policy_version": self.trainer.state.policy_version,
            "weights_digest": weights_digest(all_parameters(self.trainer.model) | self.trainer.optimizer.masters),
            "ledger": self.trainer.source.ledger.as_dict(),
            **_failed_rewards(self.trainer),
        }

    def _warm_start(self, folder: Path) -> None:
        if self.config.warm_start is None:
            return
        fit_sft(
            self.material.model,
            self.material.tokenizer,
            self.task,
            steps=self.config.warm_start.steps,
            batch_size=self.config.warm_start.batch_size,
            optimizer=OptimizerSettings(learning_rate=self.config.warm_start.learning_rate),
            seed=self.config.seed,
        )
        if self.algorithm.needs_reference and self.config.lora is None:
            save_base(self.material, folder)  # a run that goes on needs it again, as its reference

    def _trainer(
        self, store: WeightStore, manager: CallbackManager, replicas: Replicas, **of_the_first: Any
    ) -> PolicyTrainer:
        self.trainer = trainer = self._build_trainer(store, manager, replicas, of_the_first)
        return trainer

    def _build_trainer(
        self, store: WeightStore, manager: CallbackManager, replicas: Replicas, of_the_first: dict[str, Any]
    ) -> PolicyTrainer:
        config, algorithm = self.config, self.algorithm
        common: dict[str, Any] = {
            "sampling": sampling_of(config),
            "optimizer": _optimizer_settings(config),
            "optimizer_steps": config.total_steps * config.train_epochs,
            "store": store,
            "settings": StepSettings(
                token_budget=config.optimizer.token_budget,
                old=config.algorithm.old,
                importance_cap=config.algorithm.importance_cap,
                share_prompts=config.optimizer.share_prompts,
            ),
            "callbacks": manager,
            "seed": config.seed,
            "output_dir": config.folder,
            "wait_timeout": config.wait_timeout,
            "replicas": replicas,
            "name": "the trainer" if replicas.size == 1 else f"trainer_{replicas.rank}",
            **of_the_first,
        }
        if not isinstance(algorithm, PPO):
            return DetachedGRPOTrainer(self.material.model, algorithm=algorithm, **common)
        rate = config.critic.learning_rate if config.critic else None
        return DetachedPPOTrainer(
            self.material.model,
            critic=self._critic(),
            algorithm=algorithm,
            critic_optimizer=_optimizer_settings(config, learning_rate=rate) if rate else None,
            **common,
        )

    def _critic(self) -> Critic:
        if self.critic_start is None:
            kind = self.config.critic.kind if self.config.critic else "shared"
            return shared_critic(self.material.model) if kind == "shared" else separate_critic(self.material.model)
        if self.config.lora is not None:
            add_lora(self.critic_start, lora_settings(self.config.lora), seed=self.config.seed)
        return critic_from_reward_model(self.critic_start)

    def _state(self) -> LoopState:
        return self.trainer.state if self.trainer is not None else LoopState()

    def _report_eval(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        assert self._record is not None, "evals come while it trains"
        self._record.report_eval(result, predictions)


def _failed_rewards(trainer: PolicyTrainer) -> dict[str, Any]:
    failed = trainer.source.ledger.failed_rewards
    return {"reward_failures": {"samples": failed, "first": trainer.first_reward_error}} if failed else {}


def _critic_start(config: DetachedConfig, material: Material, stream: PromptStream) -> PreTrainedModel | None:
    """The reward model that a critic starts as, if it does."""
    if config.critic is None or config.critic.path is None:
        return None
    return reward_model_for(config, material, stream.longest, config.critic.path)


def _prompts(config: DetachedConfig, task: Task, material: Material) -> PromptStream:
    """The prompts in their order, each of which leaves room for a completion."""
    most = _room_for_prompts(material.model, config.sampling.max_new_tokens)
    stream = PromptStream(task, material.tokenizer, seed=config.seed, max_prompt_tokens=most)
    stream.check()
    return stream


def _plan(config: DetachedConfig) -> LeasePlan:
    return LeasePlan(
        prompts_per_step=config.prompts_per_step,
        lease_prompts=config.prompts_per_lease,
        group_size=config.sampling.group_size,
        total_steps=config.total_steps,
        update_steps=config.update_steps,
        max_staleness=config.max_staleness,
        schedule=config.schedule,
        buffer_limit=config.buffer_limit,
        seed=config.seed,
    )


def _optimizer_settings(config: DetachedConfig, **changes: Any) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump(exclude={"token_budget", "share_prompts"}) | changes)


def _room_for_prompts(model: PreTrainedModel, max_new_tokens: int) -> int | None:
    context = context_length(model.config)
    if context is not None and context <= max_new_tokens:
        raise ConfigError(
            f"sampling.max_new_tokens={max_new_tokens} leaves no room for a prompt in the context of {context} tokens"
        )
    return None if context is None else context - max_new_tokens
