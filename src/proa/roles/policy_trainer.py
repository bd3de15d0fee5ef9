"""Trainers of a policy: the loop around a `Learner`, which publishes the policy to the makers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, Unpack

import torch
from transformers import PreTrainedModel

from ..actors.stop import StopRequest
from ..algorithms import Algorithm, build_algorithm
from ..data.experience import BufferItem, Experience
from ..data.loop import ManifestRow, TrainingBatch
from ..data.masks import action_mask_of
from ..data.sampling import Sampling
from ..errors import SettingError
from ..learning.gradients import show_gradients
from ..learning.group_filter import GroupFilter
from ..learning.learner import Learner, StepSettings
from ..learning.optimizer import OptimizerSettings
from ..learning.process_group import EnvInfo, join_group
from ..learning.replicas import Replicas
from ..lifecycle.manager import Callbacks
from ..lifecycle.spans import Lifecycle
from ..loop.after_step import AfterStep
from ..loop.evaluators import ScheduledEval
from ..loop.savers import Saver
from ..policy.critic import Critic, critic_from_reward_model, separate_critic, shared_critic
from ..policy.opening import Lora, ModelSource, TokenizerSource, open_policy
from ..policy.reward_model import load_reward_model
from ..settings import make_settings
from .named_makers import MakerHandle, NamedMakers
from .probe import Probe
from .source import Source
from .trainer import DetachedTrainer
from .weights import Weights, WeightStore

CriticKind: TypeAlias = Literal["shared", "separate"]


class TrainerSettings(TypedDict, total=False):
    """The arguments that any trainer takes, as documented by `DetachedTrainer`."""

    train_batch_size: int
    buffer_limit: int
    dataloader_pin_memory: bool
    callbacks: Callbacks
    debug: bool
    name: str | None
    wait_timeout: float
    source: Source | None
    evaluators: Sequence[ScheduledEval]
    saver: Saver | None
    output_dir: Path | None
    stop: StopRequest | None


class PolicyTrainer(DetachedTrainer):
    """Takes a learner's step on each batch, and publishes its policy under the next version after each episode.

    Makers that work on leases fetch the weights from the `store`. Makers that are given by name are pushed to.
    """

    def __init__(
        self,
        learner: Learner,
        *,
        store: WeightStore | None = None,
        experience_maker_holder_name_list: Sequence[str] = (),
        find_maker: Callable[[str], MakerHandle] | None = None,
        seed: int = 0,
        **trainer: Unpack[TrainerSettings],
    ) -> None:
        super().__init__(experience_maker_holder_name_list, replicas=learner.replicas, seed=seed, **trainer)
        self.learner = learner
        self.policy = learner.policy
        self.store = store
        self.group_filter = GroupFilter(learner.algorithm)
        self._pushed.filter_group = self.group_filter.filter
        self._named_makers = NamedMakers(
            self.maker_names,
            find_maker,
            lambda maker, reason: self.manager.moments.maker_lost(maker, reason),
            patience=trainer.get("wait_timeout", 600.0),
        )
        learner.activity = self.activity
        self.probed_tokens: Sequence[Sequence[int]] = ()
        """Sequences that makers score with every version, to see that they compute the same policy."""
        settings = fields(learner.algorithm)
        self._algorithm_settings = {field.name: getattr(learner.algorithm, field.name) for field in settings}

    def training_step(self, experience: Experience) -> dict[str, Any]:
        """One optimizer step; the micro-batches inside give the gradient of the whole batch exactly."""
        found = self.learner.find_gradients(experience)
        show_gradients(self.manager, self.state, self.learner.gradients)
        metrics = self.learner.take_step(experience, found)
        if experience.versions is not None:
            lag_BA = (self.state.policy_version - experience.versions).masked_fill(~action_mask_of(experience), 0)
            metrics["staleness"] = float(lag_BA.max())
        return metrics

    def _note_step(self, index: int, metrics: Mapping[str, Any]) -> None:
        super()._note_step(index, metrics)
        if self.learner.algorithm.min_group > 1:
            self._trained_steps.note_groups(metrics)

    def _training_batch(self, experience: Experience) -> TrainingBatch:
        return TrainingBatch(experience, self.learner.algorithm.name, dict(self._algorithm_settings))

    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        """Publish the policy under `version_to_push`, and push it to the makers that this trainer was given by name.

        With `fully_update` they also get the base of an adapter.
        """
        tensors = self.policy.published()  # every rank takes part, and has its own makers
        version = self.version_to_push
        if self.store is not None and self.replicas.rank == 0 and version not in self.store.versions:
            self.store.publish(version, tensors, self.probe())
            self.store.retire(but=self.source.versions_in_use())
        if self.maker_names:
            base = self.policy.published_base() if fully_update else None
            weights = Weights.of(version, tensors, self.probe())
            self._named_makers.push(weights, None if base is None else Weights.of(version, base))
            self._report("version %d is pushed to %s", version, ", ".join(self.maker_names))

    def probe(self) -> Probe | None:
        """The policy's present log-probabilities of the tokens by which makers check their engines."""
        return Probe.of(self.policy, self.probed_tokens) if self.probed_tokens else None

    def save_model(self, folder: Path | str) -> None:
        """Write the policy as a Hugging Face folder, or as an adapter's, outside of `fit`."""
        if self._is_training:
            raise SettingError(f"{self.name} is training: save before or after fit")
        policy = self.policy.gathered()
        if self.replicas.rank == 0:
            policy.save(Path(folder))

    def _expect_steps(self, count: int) -> None:
        self.learner.expect_steps(count - self.state.global_step)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | self.learner.state_dict() | self.group_filter.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any], row: ManifestRow | None = None) -> None:
        super().load_state_dict(saved, row)
        self.learner.load_state_dict(saved)
        self.group_filter.load_state_dict(saved)

    @property
    def _device(self) -> torch.device | str:
        return self.policy.device

    def _next_items(self, life: Lifecycle, after: AfterStep) -> list[BufferItem]:
        self.group_filter.start_step()
        return super()._next_items(life, after)

    def _explain_empty(self) -> str:
        return self.group_filter.describe_step()

    def _explain_idle(self) -> str:
        return self.group_filter.describe_run(self.source.ledger)

    def _explain_unmoved(self) -> str:
        is_compared = self.learner.algorithm.min_group > 1
        return ": did all completions of each prompt get the same reward?" if is_compared else ""


class OpenedTrainer(PolicyTrainer):
    """A trainer built from the folder or the configuration of a model.

    `model` may also be a model or a `Policy`, and `tokenizer` is needed only to save folders that have one. `lora` is
    the settings of an adapter, e.g. `{"rank": 16}`, or an adapter's folder. `algorithm` is an object or a name,
    `optimizer` its settings, of which `learning_rate` may also be given by itself. `critic` is `"shared"`,
    `"separate"`, or the folder of a reward model that it starts from.
    """

    default_algorithm: ClassVar[str]
    default_critic: ClassVar[CriticKind | None] = None

    def __init__(
        self,
        experience_maker_holder_name_list: Sequence[str],
        model: ModelSource,
        tokenizer: TokenizerSource | None = None,
        *,
        algorithm: Algorithm | str | None = None,
        learning_rate: float | None = None,
        optimizer: OptimizerSettings | Mapping[str, Any] | None = None,
        lora: Lora | None = None,
        critic: Critic | CriticKind | Path | None = None,
        critic_optimizer: OptimizerSettings | Mapping[str, Any] | None = None,
        sampling: Sampling | None = None,
        optimizer_steps: int | None = None,
        settings: StepSettings | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        seed: int = 0,
        env_info: EnvInfo | None = None,
        replicas: Replicas | None = None,
        store: WeightStore | None = None,
        find_maker: Callable[[str], MakerHandle] | None = None,
        **trainer: Unpack[TrainerSettings],
    ) -> None:
        patience = trainer.get("wait_timeout", 600.0)
        replicas = replicas if env_info is None else join_group(env_info, patience=patience)
        policy = open_policy(model, tokenizer, lora=lora, dtype=dtype, device=device, seed=seed)
        if lora is not None:
            policy.begin(Path("base"))
        if replicas is not None:
            replicas.copy_first_([*policy.model.parameters()])
        algorithm = algorithm or self.default_algorithm
        learner = Learner(
            policy,
            build_algorithm(algorithm) if isinstance(algorithm, str) else algorithm,
            _optimizer_settings(optimizer, learning_rate),
            _open_critic(critic or self.default_critic, policy.model),
            replicas,
            optimizer_steps=optimizer_steps,
            sampling=sampling,
            settings=settings,
            critic_optimizer=_optimizer_settings(critic_optimizer) if critic_optimizer is not None else None,
        )
        super().__init__(
            learner,
            store=store,
            experience_maker_holder_name_list=experience_maker_holder_name_list,
            find_maker=find_maker,
            seed=seed,
            **trainer,
        )


class DetachedGRPOTrainer(OpenedTrainer):
    """Trains a policy by comparing completions with one another: GRPO, Dr.GRPO, DAPO, RLOO, GSPO, CISPO, …"""

    default_algorithm = "grpo"


class DetachedPPOTrainer(OpenedTrainer):
    """Trains a policy by PPO: a critic predicts returns, and tokens are credited with the difference.

    A critic that shares the policy's decoder learns with the policy's optimizer; one with its own decoder has an
    optimizer too (`critic_optimizer`). Only the policy is published.
    """

    default_algorithm = "ppo"
    default_critic = "shared"


def _optimizer_settings(
    given: OptimizerSettings | Mapping[str, Any] | None, learning_rate: float | None = None
) -> OptimizerSettings:
    if given is None:
        given = OptimizerSettings()
    elif not isinstance(given, OptimizerSettings):
        given = make_settings(OptimizerSettings, given, "optimizer")
    return given if learning_rate is None else replace(given, learning_rate=learning_rate)


def _open_critic(critic: Critic | CriticKind | Path | None, policy: PreTrainedModel) -> Critic | None:
    if critic is None or isinstance(critic, Critic):
        return critic
    if critic == "shared":
        return shared_critic(policy)
    if critic == "separate":
        return separate_critic(policy)
    if not Path(critic).is_dir():
        raise SettingError(f"critic={str(critic)!r}: write 'shared', 'separate', or the folder of a reward model")
    dtype = str(policy.dtype).removeprefix("torch.")
    return critic_from_reward_model(load_reward_model(str(critic), dtype=dtype, device=str(policy.device)))
