"""The parts of a maker, made from a model's folder or configuration, rewards and a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from ..data.sampling import Sampling
from ..engines import Engine, EngineFactory, build_engine, is_engine
from ..errors import SettingError
from ..policy.opening import Lora, ModelSource, TokenizerSource, load_tokenizer, open_policy
from ..policy.policy import Receiver, WholeWeights
from ..policy.reward_model import load_reward_model
from ..rewards import InlineRewards, Scorer
from ..rewards.function import GivenReward
from ..rollouts import ModelReward, Rollout, SingleTurn
from ..spelling import did_you_mean
from ..tasks import Task
from ..tasks.builtin import BUILTIN, builtin_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class MakerParts:
    """What a maker is made of."""

    engine: Engine
    rollout: Rollout
    receiver: Receiver
    tokenizer: PreTrainedTokenizerBase | None


@dataclass(frozen=True, kw_only=True)
class MakerSource:
    """The arguments of a maker: a model, rewards and a task, or parts. `open` makes the parts that are not given."""

    model: ModelSource | None = None
    tokenizer: TokenizerSource | None = None
    task: Task | None = None
    reward: GivenReward | Sequence[GivenReward] | None = None
    reward_model: str | Path | PreTrainedModel | None = None
    scorer: Scorer | None = None
    lora: Lora | None = None
    engine: Engine | EngineFactory | str = "native"
    rollout: Rollout | None = None
    receiver: Receiver | None = None
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0

    def open(self, generate_kwargs: Mapping[str, Any]) -> MakerParts:
        if self.rollout is not None and generate_kwargs:
            raise SettingError(
                f"the rollout that was given has its own sampling settings: leave out {', '.join(generate_kwargs)}"
            )
        sampling, engine = read_sampling(generate_kwargs), self.engine
        if is_engine(engine) and self.rollout is not None:
            tokenizer = self.tokenizer
            if isinstance(tokenizer, str | Path):
                tokenizer = load_tokenizer(str(tokenizer), trust_remote_code=False)
            return MakerParts(engine, self.rollout, self.receiver or WholeWeights(), tokenizer)
        if self.model is None:
            raise SettingError(
                "a maker needs a model: give its folder or its configuration, or the parts engine= and rollout="
            )
        tokenizer = self.tokenizer
        if (
            tokenizer is None
            and isinstance(self.model, Mapping)
            and self.task is not None
            and self.task.name in BUILTIN
        ):
            tokenizer = builtin_tokenizer(self.task.name)
        policy = open_policy(
            self.model, tokenizer, lora=self.lora, dtype=self.dtype, device=self.device, seed=self.seed
        )
        if not policy.has_tokenizer:
            raise SettingError("a maker needs a tokenizer: give tokenizer=, a folder or an object")
        if not is_engine(engine):
            engine = build_engine(engine, policy.model, end_ids=policy.end_ids)
        rollout = self.rollout or SingleTurn(
            policy.tokenizer, sampling, scorer=self._scorer(), model_reward=self._model_reward(policy.model)
        )
        return MakerParts(engine, rollout, self.receiver or policy.receiver(), policy.tokenizer)

    def _scorer(self) -> Scorer | None:
        if self.scorer is not None:
            return self.scorer
        rewards = self.reward or (self.task.reward if self.task is not None else None)
        if rewards is None:
            if self.reward_model is None:
                raise SettingError(
                    "nobody scores what this maker makes: give reward=, a function or several, reward_model=, a task "
                    "that brings its reward, or scorer="
                )
            return None
        scorer = InlineRewards(rewards)
        if self.task is not None:
            scorer.check(self.task.rows[0].columns)  # a misspelt column is found now, not at the first score
        return scorer

    def _model_reward(self, policy: PreTrainedModel) -> ModelReward | None:
        model = self.reward_model
        if model is None:
            return None
        if not isinstance(model, PreTrainedModel):
            model = load_reward_model(model, dtype=self.dtype, device=str(policy.device))
        return ModelReward(model.requires_grad_(False))


def read_sampling(generate_kwargs: Mapping[str, Any]) -> Sampling:
    """The settings of generation, also under the names that Hugging Face's `generate` has for them."""
    settings = dict(generate_kwargs)
    if "num_return_sequences" in settings:
        settings["group_size"] = settings.pop("num_return_sequences")
    if settings.pop("do_sample", True) is False:
        settings["temperature"] = 0.0
    known = [one.name for one in fields(Sampling)]
    for name in settings:
        if name not in known:
            near = did_you_mean(name, known) or f" (there are: {', '.join(known)})"
            raise SettingError(f"a maker has no setting {name!r}{near}")
    return Sampling(**settings)
