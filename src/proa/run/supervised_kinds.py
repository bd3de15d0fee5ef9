"""The kinds of supervised runs: SFT, DPO and reward models, each with its data, its model and its training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

from ..config import SupervisedConfig
from ..config.eval_section import EvalSection
from ..config.supervised_settings import DPOSettings, RewardModelSettings, SFTSettings
from ..data.state import LoopState
from ..evals.evaluation import eval_columns, eval_source
from ..learning.optimizer import Optimizer
from ..lifecycle.manager import CallbackManager
from ..loop import Evaluator, Saver
from ..policy.policy import Policy
from ..policy.trainable import Trainable
from ..policy.trained_reward_model import TrainedRewardModel
from ..resume.resuming import start_digest
from ..supervised.dpo import fit_dpo
from ..supervised.reward_model import fit_reward_model
from ..supervised.sft import Examples, fit_sft
from ..supervised.training import HeldOut
from ..tasks import Task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.overlong import Overlong
from ..tasks.preferences import PreferencePair, builtin_pairs, load_preferences, tokenise_pair
from .given import Given
from .loading import load_data, load_policy, load_trained_reward_model, load_training_task

Data = TypeVar("Data")
Pairs = Sequence[PreferencePair]


class FitOptions(TypedDict):
    """The training options that all kinds share."""

    steps: int
    batch_size: int
    epochs: int
    optimizer: Optimizer
    token_budget: int
    overlong: Overlong
    seed: int
    callbacks: CallbackManager
    evaluators: Sequence[Evaluator]
    saver: Saver
    output_dir: Path


class SupervisedKind(ABC, Generic[Data]):
    """One kind of run, with its data and its model. The constructor loads the data, which is quick; `load_model`
    follows."""

    generates: ClassVar[bool] = True
    """Whether the model can complete prompts, for evals that generate."""
    trained: Trainable

    def __init__(self, config: SupervisedConfig, given: Given) -> None:
        self.config = config
        self.given = given
        self.data = self.load_data()

    @abstractmethod
    def load_data(self) -> Data: ...

    @abstractmethod
    def load_held_out(self, section: EvalSection) -> Data:
        """The data of an eval of kind loss."""

    @abstractmethod
    def load_model(self) -> None:
        """Set `trained`."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Any]: ...

    @abstractmethod
    def row_tokens(self, place: int) -> Any:
        """The tokens of the row at a place, as training will use them."""

    def start_digest(self) -> str:
        """The digest of the initial weights, if they are needed again and no saved folder has them; otherwise empty."""
        return ""

    @abstractmethod
    def fit(self, options: FitOptions, held_out: HeldOut[Data] | None) -> LoopState: ...


class SFTKind(SupervisedKind[Task]):
    """Answers of a task are learned."""

    trained: Policy
    _examples: Examples | None = None

    def load_data(self) -> Task:
        return load_training_task(self.config, self.given)

    def load_held_out(self, section: EvalSection) -> Task:
        source = eval_source(section, self.config, self.given.eval_of(section.name))
        if isinstance(source, str) and source in BUILTIN:
            return builtin_task(source, "test", section.count)
        task = load_data(source, self.config, columns=eval_columns(section, self.config), split=section.split)
        return Task(task.name, task.rows[: section.count], task.reward)

    def load_model(self) -> None:
        self.trained = load_policy(self.config, self.given)

    @property
    def rows(self) -> Sequence[Any]:
        return self.data.rows

    def row_tokens(self, place: int) -> Any:
        if self._examples is None:
            # Settings of what is learned, and of lengths, do not change the tokens.
            settings = replace(self._settings, train_on_prompt=False, max_length=None)
            self._examples = Examples(self.data, self.trained.tokenizer, settings)
        return [self._examples[place].sequences, self._examples[place].action_mask]

    def fit(self, options: FitOptions, held_out: HeldOut[Task] | None) -> LoopState:
        trained = self.trained
        return fit_sft(
            trained.model, trained.tokenizer, self.data, settings=self._settings, held_out=held_out, **options
        )

    @property
    def _settings(self) -> SFTSettings:
        settings = self.config.algorithm.settings()
        assert isinstance(settings, SFTSettings)
        return settings


class PairsKind(SupervisedKind[Pairs]):
    """Learns from pairs of completions, one of which is preferred."""

    def load_data(self) -> Pairs:
        task, given = self.config.task, self.given.data
        if given is None and task.source in BUILTIN:
            return builtin_pairs(task.source, "train", task.count, self.config.seed)
        source = task.source if given is None else given
        return load_preferences(source, columns=task.named_columns, split=task.split)[: task.count]

    def load_held_out(self, section: EvalSection) -> Pairs:
        source = eval_source(section, self.config, self.given.eval_of(section.name))
        if isinstance(source, str) and source in BUILTIN:
            return builtin_pairs(source, "test", section.count)
        columns = eval_columns(section, self.config)
        return load_preferences(source, columns=columns, split=section.split)[: section.count]

    @property
    def rows(self) -> Sequence[Any]:
        return self.data

    def row_tokens(self, place: int) -> Any:
        return tokenise_pair(self.data[place], self.trained.tokenizer, where="")


class DPOKind(PairsKind):
    """A policy against its reference."""

    trained: Policy

    def load_model(self) -> None:
        self.trained = load_policy(self.config, self.given)

    def start_digest(self) -> str:
        """The digest of the initial model, if that is the reference. (An adapter's reference is its base.)"""
        is_reference = self.trained.reference_is_start and not self._settings.reference_free
        return start_digest(self.trained.published()) if is_reference else ""

    def fit(self, options: FitOptions, held_out: HeldOut[Pairs] | None) -> LoopState:
        policy, settings = self.trained, self._settings
        # If the initial model is the reference, its log-probabilities are computed before the first step.
        other = not settings.reference_free and not policy.reference_is_start
        return fit_dpo(
            policy.model,
            policy.tokenizer,
            self.data,
            reference=policy.reference() if other else None,
            settings=settings,
            held_out=held_out,
            **options,
        )

    @property
    def _settings(self) -> DPOSettings:
        settings = self.config.algorithm.settings()
        assert isinstance(settings, DPOSettings)
        return settings


class RewardModelKind(PairsKind):
    """A score for completions."""

    generates: ClassVar[bool] = False
    trained: TrainedRewardModel

    def load_model(self) -> None:
        self.trained = load_trained_reward_model(self.config, self.given)

    def start_digest(self) -> str:
        """The digest of an adapter's base, as the model is saved merged."""
        return self.trained.base_digest

    def fit(self, options: FitOptions, held_out: HeldOut[Pairs] | None) -> LoopState:
        settings = self.config.algorithm.settings()
        assert isinstance(settings, RewardModelSettings)
        trained = self.trained
        return fit_reward_model(
            trained.model, trained.tokenizer, self.data, settings=settings, held_out=held_out, **options
        )


_KINDS: dict[str, type[SupervisedKind[Any]]] = {"sft": SFTKind, "dpo": DPOKind, "reward_model": RewardModelKind}


def supervised_kind(config: SupervisedConfig, given: Given) -> SupervisedKind[Any]:
    """The kind that a configuration names, with its data; raises for unusable data."""
    return _KINDS[config.algorithm.name](config, given)
