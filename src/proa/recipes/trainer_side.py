"""The trainer's half of a run: policy, critic, lease book, evals, and the trainer that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..algorithms import PPO, build_algorithm
from ..config import ConfigError, RunConfig
from ..lifecycle.manager import CallbackManager
from ..policy.critic import Critic, critic_from_reward_model, separate_critic, shared_critic
from ..policy.lora import add_lora, trained_weights
from ..policy.models import weights_digest
from ..policy.optimizer import OptimizerSettings
from ..policy.whole import all_parameters
from ..roles.grpo_trainer import DetachedGRPOTrainer
from ..roles.lease_book import LeaseBook
from ..roles.lease_plan import LeasePlan
from ..roles.policy_trainer import PolicyTrainer, StepSettings
from ..roles.ppo_trainer import DetachedPPOTrainer
from ..roles.replicas import Alone, Replicas, SharedSource
from ..roles.weights import WeightStore
from ..tasks import PromptStream, Task
from .evaluation import evaluator_for
from .fit_sft import fit_sft
from .given import Given
from .job import final_saver, state_summary
from .maker_side import reward_model_for, sampling_of
from .material import Material, load_material, load_training_task, lora_settings, prepare_lora, save_policy


class TrainerSide:
    """What trains. What is wrong with model, task or evals is found when it is built."""

    def __init__(self, config: RunConfig, given: Given) -> None:
        self.config = config
        self.algorithm = build_algorithm(config.algorithm.name, **config.algorithm.params)
        self.task = load_training_task(config, given)
        self.material = load_material(config, given)
        self.stream = _prompts(config, self.task, self.material)
        self.critic_start = _critic_start(config, self.material, self.stream)
        self.evaluators = [evaluator_for(section, config, self.material, self._steps_done) for section in config.eval]
        self.trainer: PolicyTrainer | None = None

    def prepare(self, folder: Path, replicas: Replicas | None = None) -> None:
        """What comes before the first version of the weights: the supervised start, the adapter."""
        torch.set_num_threads(self.config.threads)
        replicas = replicas or Alone()
        is_first = replicas.rank == 0
        if is_first:
            self._warm_start()
        prepare_lora(self.config, self.material, folder, save_base=is_first)
        replicas.copy_first_([*self.material.model.parameters()])

    def assemble(self, store: WeightStore, manager: CallbackManager, folder: Path) -> tuple[PolicyTrainer, LeaseBook]:
        """The trainer and its lease book, with version 0 of the weights published."""
        return self.assemble_first(Alone(), store, manager, folder)

    def assemble_first(
        self, replicas: Replicas, store: WeightStore, manager: CallbackManager, folder: Path
    ) -> tuple[PolicyTrainer, LeaseBook]:
        """The same as the first of several trainers: it publishes, evaluates, saves and has the lease book."""
        store.publish(0, trained_weights(self.material.model))
        saver = final_saver(folder, lambda into: save_policy(self.config, self.material, folder, into))
        trainer = self._trainer(store, manager, replicas, evaluators=self.evaluators, saver=saver)
        wait = self.config.wait_timeout
        book = LeaseBook(_plan(self.config), self.stream.__getitem__, sift=trainer.sift, wait_timeout=wait)
        trainer.source = book if replicas.size == 1 else SharedSource(replicas, book)
        return trainer, book

    def assemble_other(self, replicas: Replicas, manager: CallbackManager) -> PolicyTrainer:
        """One of the other trainers: it computes its share of every batch."""
        trainer = self._trainer(WeightStore(), manager, replicas)
        trainer.source = SharedSource(replicas, None)
        return trainer

    def summary(self, callback_errors: dict[str, int]) -> dict[str, Any]:
        """What the run's header says of how far it came."""
        if self.trainer is None:
            return {}
        return {
            **state_summary(self.trainer.state, [section.name for section in self.config.eval], callback_errors),
            "policy_version": self.trainer.state.policy_version,
            "weights_digest": weights_digest(all_parameters(self.trainer.model)),
            "ledger": self.trainer.source.ledger.as_dict(),
        }

    def _warm_start(self) -> None:
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

    def _steps_done(self) -> int:
        return self.trainer.state.global_step if self.trainer is not None else 0


def _critic_start(config: RunConfig, material: Material, stream: PromptStream) -> PreTrainedModel | None:
    """The reward model that a critic starts as, if it does."""
    if config.critic is None or config.critic.path is None:
        return None
    return reward_model_for(config, material, stream.longest, config.critic.path)


def _prompts(config: RunConfig, task: Task, material: Material) -> PromptStream:
    """The prompts in their order, each of which leaves room for a completion."""
    most = _room_for_prompts(material.model, config.sampling.max_new_tokens)
    stream = PromptStream(task, material.tokenizer, seed=config.seed, max_prompt_tokens=most)
    stream.check()
    return stream


def _plan(config: RunConfig) -> LeasePlan:
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


def _optimizer_settings(config: RunConfig, **changes: Any) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump(exclude={"token_budget", "share_prompts"}) | changes)


def _room_for_prompts(model: PreTrainedModel, max_new_tokens: int) -> int | None:
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and context <= max_new_tokens:
        raise ConfigError(
            f"sampling.max_new_tokens={max_new_tokens} leaves no room for a prompt in the context of {context} tokens"
        )
    return None if context is None else context - max_new_tokens
