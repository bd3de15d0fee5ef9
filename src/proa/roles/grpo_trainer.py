"""`DetachedGRPOTrainer`: the critic-free family on a Hugging Face model."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..algorithms import Algorithm
from .policy_trainer import PolicyTrainer, StepSettings

__all__ = ["DetachedGRPOTrainer", "StepSettings"]


class DetachedGRPOTrainer(PolicyTrainer):
    """Trains a policy by comparing completions with one another: GRPO, Dr.GRPO, DAPO, RLOO, GSPO, CISPO, …"""

    def __init__(self, model: PreTrainedModel, *, algorithm: Algorithm, **settings: Any) -> None:
        if algorithm.needs_critic:
            raise ValueError(f"{algorithm.name} needs a critic: use DetachedPPOTrainer")
        super().__init__(model, algorithm=algorithm, **settings)
