"""Detached RL from one configuration: model, task, makers, trainer, evals, record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..algorithms import build_algorithm
from ..config import ConfigError, RunConfig
from ..data.sampling import Sampling
from ..data.state import TrainState
from ..engines import build_engine
from ..engines.protocol import Engine
from ..lifecycle.manager import Callbacks
from ..policy.critic import Critic, critic_from_reward_model, separate_critic, shared_critic
from ..policy.lora import add_lora, trained_weights
from ..policy.models import ModelError, weights_digest
from ..policy.optimizer import OptimizerSettings
from ..policy.reward_model import check_same_tokenizer, load_reward_model, sequence_scores
from ..policy.whole import all_parameters, whole_weights_over
from ..record.run_folder import RunFolder
from ..rewards import InlineRewards, RewardWorkers
from ..roles.grpo_trainer import DetachedGRPOTrainer
from ..roles.lease_book import LeaseBook, LeasePlan
from ..roles.maker import ExperienceMakerHolder, ModelReward
from ..roles.policy_trainer import PolicyTrainer, StepSettings
from ..roles.ppo_trainer import DetachedPPOTrainer
from ..roles.weights import WeightStore
from ..runtime.local import LocalRuntime, Supervision
from ..tasks import PromptStream, Task
from .evaluation import evaluator_for
from .fit_sft import fit_sft
from .given import Given, configured
from .job import carry_out, final_saver, state_summary
from .material import (
    Material,
    load_material,
    load_tokenizer,
    load_training_task,
    lora_settings,
    prepare_lora,
    save_policy,
)
from .placing import ToDriver, fresh, place_callbacks


def detached(
    config: RunConfig | Path | str | None = None,
    its_algorithm: str | None = None,
    /,
    *,
    callbacks: Callbacks = None,
    **changes: Any,
) -> TrainState:
    """Run detached RL as configured (a `RunConfig`, a YAML file, or keywords alone) and return the final state.

    The run folder `<output_dir>/<name>` holds the record, and the final weights in `model/`.
    """
    settled, given = configured(config, its_algorithm, changes)
    return carry_out(settled, lambda: DetachedRun(settled, given, callbacks))


class DetachedRun:
    """One run's parts, put together. What is wrong with model, task or callbacks is found when it is built."""

    def __init__(self, config: RunConfig, given: Given, callbacks: Callbacks) -> None:
        self.config = config
        self.algorithm = build_algorithm(config.algorithm.name, **config.algorithm.params)
        self.task = load_training_task(config, given)
        self.scorer = _scorer(config, given, self.task)
        self.material = load_material(config, given)
        self.stream = _prompts(config, self.task, self.material)
        self.model_reward = _model_reward(config, self.material, self.stream)
        self.critic_start = _critic_start(config, self.material, self.stream)
        self.trainer: PolicyTrainer | None = None
        self.evaluators = [evaluator_for(section, config, self.material, self._steps_done) for section in config.eval]
        self.listeners = place_callbacks(config, callbacks)
        self.manager = self.listeners.manager

    def train(self, folder: RunFolder) -> TrainState:
        config = self.config
        torch.set_num_threads(config.threads)
        self._warm_start()
        prepare_lora(config, self.material, folder.path)
        with self.scorer as scorer:
            runtime = self._assemble(scorer, folder.path)
            runtime.run(config.total_steps, config.update_steps, config.train_epochs)
        assert self.trainer is not None
        return self.trainer.state

    def close(self) -> None:
        self.listeners.leave()

    def summary(self) -> dict[str, Any]:
        if self.trainer is None:
            return {}
        return {
            **state_summary(self.trainer.state, [e.name for e in self.config.eval], self.manager.errors),
            "policy_version": self.trainer.state.policy_version,
            "weights_digest": weights_digest(all_parameters(self.trainer.model)),
            "ledger": self.trainer.source.ledger.as_dict(),
        }

    # -- putting it together -------------------------------------------------------------------------

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

    def _assemble(self, scorer: Any, folder: Path) -> LocalRuntime:
        config, model = self.config, self.material.model
        store = WeightStore(wait_timeout=config.wait_timeout)
        store.publish(0, trained_weights(model))
        self.trainer = trainer = self._trainer(store, folder)
        book = LeaseBook(_plan(config), self.stream.__getitem__, sift=trainer.sift, wait_timeout=config.wait_timeout)
        trainer.source = book
        patience = Supervision(lease_timeout=config.lease_timeout or config.wait_timeout / 2)
        return LocalRuntime(
            trainer, self._maker_factory(scorer), makers=config.makers, book=book, store=store, supervision=patience
        )  # fmt: skip

    def _trainer(self, store: WeightStore, folder: Path) -> PolicyTrainer:
        config, algorithm = self.config, self.algorithm
        common: dict[str, Any] = {
            "sampling": _sampling(config),
            "optimizer": _optimizer_settings(config),
            "optimizer_steps": config.total_steps * config.train_epochs,
            "store": store,
            "settings": StepSettings(
                token_budget=config.optimizer.token_budget,
                old=config.algorithm.old,
                importance_cap=config.algorithm.importance_cap,
                share_prompts=config.optimizer.share_prompts,
            ),
            "callbacks": self.manager,
            "seed": config.seed,
            "evaluators": self.evaluators,
            "saver": final_saver(folder, lambda into: save_policy(config, self.material, folder, into)),
            "output_dir": config.folder,
            "wait_timeout": config.wait_timeout,
        }
        if not algorithm.needs_critic:
            return DetachedGRPOTrainer(self.material.model, algorithm=algorithm, **common)
        rate = config.critic.learning_rate if config.critic else None
        return DetachedPPOTrainer(
            self.material.model,
            critic=self._critic(),
            algorithm=algorithm,  # type: ignore[arg-type]  # the only one with a critic
            critic_optimizer=_optimizer_settings(config, learning_rate=rate) if rate else None,
            **common,
        )

    def _maker_factory(self, scorer: Any) -> Callable[[str], ExperienceMakerHolder]:
        config, material = self.config, self.material
        decode = material.tokenizer.decode

        def make_maker(name: str) -> ExperienceMakerHolder:
            engine: Engine = build_engine(
                config.engine.kind, material.model, end_ids=material.end_ids, slots=config.engine.slots
            )
            return ExperienceMakerHolder(
                engine=engine,
                decode=lambda ids: str(decode(list(ids), skip_special_tokens=True)),
                scorer=scorer,
                sampling=_sampling(config),
                model_reward=self.model_reward,
                whole_weights=whole_weights_over(material.model),
                callbacks=[ToDriver(self.manager), *(fresh(callback) for callback in self.listeners.makers)],
                name=name,
                seed=config.seed,
            )

        return make_maker

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
    return _reward_model(config, material, stream, config.critic.path)


def _model_reward(config: RunConfig, material: Material, stream: PromptStream) -> ModelReward | None:
    section = config.reward.model
    if section is None:
        return None
    model = _reward_model(config, material, stream, section.path).requires_grad_(False)

    def score(sequences: Any) -> list[float]:
        with torch.no_grad():
            scores: list[float] = sequence_scores(model, sequences, token_budget=section.token_budget).tolist()
        return scores

    return ModelReward(score, section.weight)


def _reward_model(config: RunConfig, material: Material, stream: PromptStream, folder: str) -> PreTrainedModel:
    """A reward model that reads what this policy writes."""
    own = config.model
    model = load_reward_model(
        folder, dtype=own.dtype, device=own.device, trust_remote_code=own.trust_remote_code
    )  # fmt: skip
    check_same_tokenizer(material.tokenizer, load_tokenizer(folder, own.trust_remote_code))
    context = getattr(model.config, "max_position_embeddings", None)
    longest = stream.longest + config.sampling.max_new_tokens
    if context is not None and longest > context:
        raise ModelError(
            f"the reward model in {folder} reads {context} tokens, and a prompt with its completion may have {longest}"
        )
    return model


def _scorer(config: RunConfig, given: Given, task: Task) -> AbstractContextManager[Any]:
    rewards: Any = given.rewards or config.reward.functions
    if not rewards and config.reward.model is not None:
        return nullcontext()  # the reward model alone
    rewards = rewards or task.reward
    if not rewards:
        raise ConfigError(f"the task {task.name} brings no reward: give reward.functions, or a reward.model")
    rewards = list(rewards) if isinstance(rewards, tuple) else rewards
    scorer: InlineRewards | RewardWorkers
    if config.reward.workers == 0:
        scorer = InlineRewards(rewards, weights=config.reward.weights)
    else:
        scorer = RewardWorkers(
            rewards, weights=config.reward.weights, timeout=config.reward.timeout, workers=config.reward.workers
        )
    if task.rows:
        scorer.check(task.rows[0].columns)  # a misspelt column is found now, not at the first score
    return scorer if isinstance(scorer, RewardWorkers) else nullcontext(scorer)


def _prompts(config: RunConfig, task: Task, material: Material) -> PromptStream:
    """The prompts in their order, each of which leaves room for a completion."""
    most = _room_for_prompts(material.model, config.sampling.max_new_tokens)
    stream = PromptStream(task, material.tokenizer, seed=config.seed, max_prompt_tokens=most)
    stream.check()
    return stream


def _sampling(config: RunConfig) -> Sampling:
    return Sampling(**config.sampling.model_dump())


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
