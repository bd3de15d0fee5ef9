"""`algorithm.params` of the supervised algorithms: `sft`, `dpo`, `reward_model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..errors import SettingError
from ..settings import Settings

MaxLength = Annotated[int, Field(ge=1)] | None
"""The most tokens of a sequence; None is the model's context."""


@dataclass(frozen=True, kw_only=True)
class SFTSettings(Settings):
    """Which tokens of a row are learned."""

    answer_column: str = "answer"
    train_on_prompt: bool = False
    every_answer: bool = False
    """Learn all messages of the assistant in a conversation, not only the last."""
    packing: bool = False
    """Put several rows in one sequence, without padding."""
    max_length: MaxLength = None


@dataclass(frozen=True, kw_only=True)
class DPOSettings(Settings):
    """The loss of a pair."""

    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    reference_free: bool = False
    max_length: MaxLength = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "ipo" and self.label_smoothing:
            raise SettingError("label_smoothing is for the sigmoid loss; IPO is made for noisy preferences")


@dataclass(frozen=True, kw_only=True)
class RewardModelSettings(Settings):
    """The input of a reward model."""

    max_length: MaxLength = None


SupervisedSettings = SFTSettings | DPOSettings | RewardModelSettings

SUPERVISED: dict[str, type[SupervisedSettings]] = {
    "sft": SFTSettings,
    "dpo": DPOSettings,
    "reward_model": RewardModelSettings,
}
"""Algorithms that learn from data: no makers, no sampling, no reward."""
