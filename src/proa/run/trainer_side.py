"""The trainer's half of a run: policy, learner, lease book, evals, checkpoints, and the trainer that has them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..actors.stop import StopRequest
from ..config import ConfigError, DetachedConfig
from ..evals.evaluator import EvalParticipant, PolicyEvaluator
from ..learning.learner import Learner, StepSettings
from ..learning.optimizer import OptimizerSettings
from ..learning.replicas import Alone, Replicas
from ..leases.book import LeaseBook
from ..leases.plan import LeasePlan
from ..lifecycle.manager import CallbackManager
from ..model_shape import context_length
from ..numerics import compute_alike
from ..policy.computing import set_up_computing
from ..policy.critic import Critic, critic_from_reward_model, separate_critic, shared_critic
from ..policy.log_probs import check_causal
from ..policy.lora import add_lora
from ..policy.models import weights_digest
from ..policy.policy import Policy
from ..policy.shared_prompts import check_shares_prompts
from ..record.run_record import RunRecord
from ..resume.checkpoints import Checkpoints, SavingParticipant
from ..resume.inputs import Inputs, Rows, model_architecture, row_tokens, tokenizer_digest
from ..resume.resuming import Resumption, changed_start_error, start_digest
from ..rewards.identity import identity
from ..roles.policy_trainer import PolicyTrainer
from ..roles.probe import SEQUENCES
from ..roles.source import SharedSource
from ..roles.weights import WeightStore
from ..slow_work import saying_if_slow
from ..supervised.sft import fit_sft
from ..tasks import PromptStream, Task
from ..tasks.chat import warn_of_missing_turn, warn_of_unread_values
from ..tasks.prompts import KEPT_ROWS, row_values
from .given import Given
from .job import state_summary
from .loading import (
    begin_training,
    check_matching_reward_model,
    compute_settings,
    load_matching_reward_model,
    load_policy,
    load_training_task,
    lora_settings,
    make_sampling,
    optimizer_settings,
)
from .maker_side import select_rewards
from .placing import TrainerListeners
from .step_record import TakeStepRecord

log = logging.getLogger("proa.run")


@dataclass(frozen=True)
class Surroundings:
    """What the first trainer of a run works with: folder, store, callbacks, record and other trainers."""

    folder: Path
    store: WeightStore
    listeners: TrainerListeners
    record: RunRecord
    replicas: Replicas = field(default_factory=Alone)
    resumption: Resumption | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    journal: Sequence[Mapping[str, Any]] = ()
    """In a replay, that of the original run."""


class TrainerSide:
    """The parts of a trainer. The constructor raises for an unusable model, task or eval.

    With `outline` no model is loaded, for a process that starts the trainer elsewhere. Errors that only weights show
    are then found there: damaged or missing weights, a model that is not causal, or one that cannot share prompts.
    """

    def __init__(self, config: DetachedConfig, given: Given, *, outline: bool = False) -> None:
        self.config = config
        self.algorithm = config.algorithm.build()
        task = load_training_task(config, given)
        self.policy = load_policy(config, given, outline=outline)
        self.prompts = _prompts(config, task, self.policy)
        self.task = self.prompts.task
        self.longest_prompt = _longest_prompt(config, self.prompts.longest, context_length(self.policy.model.config))
        """In tokens; for conversations the longest beginning of a last turn."""
        self.inputs = Inputs(
            rows=Rows.of(
                row_tokens(self.prompts.row_tokens, self.task.rows, KEPT_ROWS),
                (row.columns for row in self.task.rows),
                len(self.task.rows),
            ),
            tokenizer=tokenizer_digest(self.policy.tokenizer),
            architecture=model_architecture(self.policy.model),
            end_ids=self.policy.end_ids,
            algorithm=identity(type(self.algorithm)),
        )
        """The inputs that checkpoints are bound to, which makers complete with rewards."""
        self._critic_start: PreTrainedModel | None = None
        critic = config.critic.path if config.critic is not None else None
        if not outline:
            warn_of_missing_turn(self.task, self.policy.tokenizer)
            if not config.has_environment:
                warn_of_unread_values(row_values(self.task.rows[0]), self.policy.tokenizer)
            self._check_model()
            set_up_computing(self.policy.model, compute_settings(config))
        if critic is not None and outline:
            check_matching_reward_model(config, self.policy.tokenizer, self.longest_prompt, critic)
        elif critic is not None:
            self._critic_start = load_matching_reward_model(
                config, self.policy.tokenizer, self.longest_prompt, critic
            )  # fmt: skip
        rewards = select_rewards(config, given, self.task) if config.eval else None
        self._evaluators = [
            PolicyEvaluator(section, config, self.policy, given.eval_of(section.name, rewards, config.reward.weights))
            for section in config.eval
        ]
        self.trainer: PolicyTrainer | None = None
        self._start_digest = ""

    def _check_model(self) -> None:
        """Raise for faults of the model that only show when it computes."""
        check_causal(self.policy.model)
        if self.config.optimizer.share_prompts is True:
            sampling = self.config.sampling
            longest = self.prompts.longest + sampling.group_size * sampling.max_new_tokens
            check_shares_prompts(self.policy.model, min(longest, 2048))  # longer rows when there are some

    def prepare(self, folder: Path, replicas: Replicas | None = None, *, resumed: bool = False) -> None:
        """Prepare the first version of the weights: the supervised start, the adapter."""
        config = self.config
        compute_alike(config.threads, device=config.model.device, deterministic=config.deterministic)
        replicas = replicas or Alone()
        is_first = replicas.rank == 0
        warm_start = self.config.warm_start
        if warm_start is not None and is_first and not resumed:
            with saying_if_slow(f"the warm start is under way: {warm_start.steps} supervised steps", log):
                fit_sft(
                    self.policy.model,
                    self.policy.tokenizer,
                    self.task,
                    steps=warm_start.steps,
                    batch_size=warm_start.batch_size,
                    optimizer=OptimizerSettings(learning_rate=warm_start.learning_rate),
                    seed=self.config.seed,
                )
        needed_again = warm_start is not None and self.algorithm.needs_reference
        begin_training(self.policy, folder, resumed=resumed, saves=is_first, keep_start=needed_again)
        replicas.copy_first_([*self.policy.model.parameters()])

    def assemble_first(self, around: Surroundings) -> tuple[PolicyTrainer, LeaseBook]:
        """The trainer that publishes, evaluates, saves and has the lease book; the only one, or rank 0 of several."""
        config, resumption = self.config, around.resumption
        for evaluator in self._evaluators:
            evaluator.record = around.record
        content = DetachedContent(self, around)
        checkpoints = Checkpoints(
            config,
            around.folder,
            self.policy,
            content,
            around.record,
            self.inputs,
            resumed=resumption.loop() if resumption is not None else None,
            stop=around.stop,
        )
        self.trainer = trainer = PolicyTrainer(
            self._learner(around.replicas),
            store=around.store,
            callbacks=around.listeners.manager,
            evaluators=self._evaluators,
            saver=checkpoints,
            stop=around.stop,
            **self._trainer_settings(around.replicas),
        )
        book = LeaseBook(
            _plan(config),
            self.prompts.__getitem__,
            filter_group=trainer.group_filter.filter,
            wait_timeout=config.wait_timeout,
        )
        book.makers = config.makers
        trainer.probed_tokens = [self.prompts.tokens(ordinal) for ordinal in range(SEQUENCES)]
        book.repeat(around.journal)
        trainer.learner.repeat(around.journal)
        trainer.source = book if around.replicas.size == 1 else SharedSource(around.replicas, book)
        around.listeners.add(TakeStepRecord(trainer, book, around.record, self.policy.tokenizer, config, self.prompts))
        if resumption is None:
            published = self.policy.published()
            self._start_digest = start_digest(published)
            around.store.publish(0, published, trainer.probe())
        else:
            self._resume(trainer, resumption)
            versions = resumption.part("weights")["versions"]
            for version, tensors in versions.items():
                around.store.publish(version, tensors)
            last = trainer.state.policy_version
            if not trainer.within_episode and last not in versions:  # a complete run, whose last version no lease named
                around.store.publish(last, self.policy.published(), trainer.probe())
        return trainer, book

    def assemble_participant(
        self, replicas: Replicas, manager: CallbackManager, resumption: Resumption | None = None
    ) -> PolicyTrainer:
        """One of the other trainers: it computes its share of every batch."""
        self.trainer = trainer = PolicyTrainer(
            self._learner(replicas),
            store=WeightStore(),
            callbacks=manager,
            evaluators=[EvalParticipant(section, self.policy) for section in self.config.eval],
            saver=SavingParticipant(self.config.checkpoint.save_every, self.policy),
            source=SharedSource(replicas, None),
            **self._trainer_settings(replicas),
        )
        if resumption is not None:
            self._resume(trainer, resumption)
        else:
            self.policy.published()  # rank 0 publishes version 0
        return trainer

    def _resume(self, trainer: PolicyTrainer, resumption: Resumption) -> None:
        """Restore everything from the checkpoint; the reference stays that of the start, which must be the same."""
        self._start_digest = resumption.part("run")["start_digest"]
        needs_start = self.algorithm.needs_reference and self.policy.reference_is_start
        if needs_start and start_digest(self.policy.published()) != self._start_digest:
            raise changed_start_error()
        self.policy.load(resumption.model)
        loop = resumption.loop()
        trainer.load_state_dict(loop.state, loop.row)

    @property
    def start_digest(self) -> str:
        """The digest of the initial weights."""
        return self._start_digest

    def summary(self, callback_errors: dict[str, int]) -> dict[str, Any]:
        """The header's entries about the progress of the run."""
        trainer = self.trainer
        if trainer is None:
            return {}
        failed = trainer.source.ledger.failed_rewards
        failures = {"samples": failed, "first": trainer.group_filter.first_reward_error}
        return {
            **state_summary(trainer.state, [section.name for section in self.config.eval], callback_errors),
            "policy_version": trainer.state.policy_version,
            "weights_digest": weights_digest(self.policy.weights() | trainer.learner.masters()),
            "ledger": trainer.source.ledger.as_dict(),
            **({"reward_failures": failures} if failed else {}),
        }

    # -- parts of a trainer --------------------------------------------------------------------------

    def _trainer_settings(self, replicas: Replicas) -> dict[str, Any]:
        config = self.config
        return {
            "seed": config.seed,
            "output_dir": config.folder,
            "wait_timeout": config.wait_timeout,
            "name": "the trainer" if replicas.size == 1 else f"trainer_{replicas.rank}",
        }

    def _learner(self, replicas: Replicas) -> Learner:
        config = self.config
        critic_rate = config.critic.learning_rate if config.critic else None
        return Learner(
            self.policy,
            self.algorithm,
            optimizer_settings(config),
            self._critic() if self.algorithm.needs_critic else None,
            replicas,
            optimizer_steps=config.total_steps * config.train_epochs,
            sampling=make_sampling(config),
            settings=StepSettings(
                token_budget=config.optimizer.tokens_at_once,
                old=config.algorithm.old,
                importance_cap=config.algorithm.importance_cap,
                share_prompts=config.optimizer.share_prompts is True,
            ),
            critic_optimizer=optimizer_settings(config, learning_rate=critic_rate) if critic_rate else None,
        )

    def _critic(self) -> Critic:
        if self._critic_start is None:
            kind = self.config.critic.kind if self.config.critic else "shared"
            return shared_critic(self.policy.model) if kind == "shared" else separate_critic(self.policy.model)
        if self.config.lora is not None:
            add_lora(self._critic_start, lora_settings(self.config.lora), seed=self.config.seed)
        return critic_from_reward_model(self._critic_start)


class DetachedContent:
    """The content of a detached run's checkpoint beside its policy and its loop."""

    def __init__(self, side: TrainerSide, around: Surroundings) -> None:
        self._side = side
        self._around = around

    def parts(self) -> dict[str, Mapping[str, Any]]:
        """The published versions that open leases may name."""
        assert self._side.trainer is not None, "the trainer is built with it"
        in_use = self._side.trainer.source.versions_in_use() or set()
        return {"weights": {"versions": self._around.store.recall(in_use)}}

    def run_part(self) -> Mapping[str, Any]:
        return {**self._around.listeners.process_state(), "start_digest": self._side.start_digest}


def _prompts(config: DetachedConfig, task: Task, policy: Policy) -> PromptStream:
    """The prompts in their order; raises for one that leaves no room for a completion."""
    context, new_tokens = context_length(policy.model.config), config.sampling.max_new_tokens
    if context is not None and context <= new_tokens:
        raise ConfigError(
            f"sampling.max_new_tokens={new_tokens} leaves no room for a prompt in the context of {context} tokens"
        )
    most = None if context is None else context - new_tokens
    prompts = PromptStream(
        task,
        policy.tokenizer,
        seed=config.seed,
        max_prompt_tokens=most,
        overlong=config.task.overlong,
        begins_conversations=config.has_environment,
    )
    prompts.check()
    return prompts


def _longest_prompt(config: DetachedConfig, longest: int, context: int | None) -> int:
    limits = [size for size in (config.environment.max_trajectory_tokens, context) if size is not None]
    if not config.has_environment or not limits:
        return longest
    return max(longest, min(limits) - config.sampling.max_new_tokens)


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
