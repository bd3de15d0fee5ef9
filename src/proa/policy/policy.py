"""The policy: a model that is trained, published to makers and saved, and that scores completions.

Its kind, plain or an adapter over a frozen base, is decided once, where it is built; no other code depends on it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from ..data.experience import Experience
from ..data.masks import attention_mask_of, prompt_indices
from .decoder_pass import find_decoder, takes_segments
from .log_probs import ActionStatistics, action_statistics
from .models import model_weights, save_model
from .shared_prompts import shared_prompt_statistics
from .trainable import Trainable


class Receiver(Protocol):
    """Turns what a policy publishes into weights for a maker's engine."""

    def whole(self, published: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """All weights by their Hugging Face names, as an engine loads them."""

    def use_base(self, base: Mapping[str, torch.Tensor]) -> None:
        """Merge adapters published from now on with this base, which is kept and must not change."""


class WholeWeights:
    """Receives weights that are published whole."""

    def use_base(self, base: Mapping[str, torch.Tensor]) -> None:
        """Nothing: whole weights have no base."""

    def whole(self, published: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return published


class Reference(ABC):
    """The policy as it was before training, frozen."""

    @abstractmethod
    def active(self) -> AbstractContextManager[PreTrainedModel]:
        """A context in which the model is the reference: `with reference.active() as model:`."""

    def statistics(
        self, experience: Experience, *, temperature: float, share_prompts: bool = False
    ) -> ActionStatistics:
        """Statistics of each completion token of a batch."""
        with self.active() as model:
            return model_statistics(model, experience, temperature=temperature, share_prompts=share_prompts)


class FrozenModel(Reference):
    """A model that is not trained."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def active(self) -> AbstractContextManager[PreTrainedModel]:
        return nullcontext(self._model)


class FrozenCopy(FrozenModel):
    """A frozen copy of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(copy.deepcopy(model).requires_grad_(False))


class Policy(Trainable):
    """A model that makers sample from while it is trained. Publishing is collective, as `gathered` is."""

    reference_is_start = True
    """Whether the reference is a copy of the initial model, so that a resumed run must start with the same."""

    def statistics(
        self,
        experience: Experience,
        *,
        temperature: float,
        with_entropy: bool = False,
        entropy_gradient: bool = True,
        share_prompts: bool = False,
        value_head: nn.Module | None = None,
    ) -> ActionStatistics:
        """Statistics of each completion token of a batch under the policy."""
        return model_statistics(
            self.model,
            experience,
            temperature=temperature,
            with_entropy=with_entropy,
            entropy_gradient=entropy_gradient,
            share_prompts=share_prompts,
            value_head=value_head,
        )

    def pads_rows(self, length: int) -> bool:
        """Whether rows of up to `length` tokens are computed with padding, rather than end to end."""
        return not takes_segments(find_decoder(self.model), length)

    @abstractmethod
    def reference(self) -> Reference:
        """The present policy, frozen."""

    @abstractmethod
    def published(self) -> dict[str, torch.Tensor]:
        """The tensors of a push; not copies. Collective; rank 0 pushes them."""

    def published_base(self) -> dict[str, torch.Tensor] | None:
        """The base of adapters, which makers get once before the first push; None without one. Collective too."""
        return None

    def receiver(self, base: Mapping[str, torch.Tensor] | None = None) -> Receiver:
        """A receiver for makers; `base` is a copy of `published_base`, if there is one."""
        return WholeWeights()

    @abstractmethod
    def whole(self) -> Mapping[str, torch.Tensor]:
        """All weights under their Hugging Face names, as an engine loads them."""


class PlainPolicy(Policy):
    """A model whose weights are all trained."""

    def reference(self) -> Reference:
        return FrozenCopy(self.model)

    def published(self) -> dict[str, torch.Tensor]:
        return model_weights(self.model)

    def whole(self) -> Mapping[str, torch.Tensor]:
        return model_weights(self.model)

    def weights(self) -> dict[str, torch.Tensor]:
        return model_weights(self.model)

    def save(self, folder: Path) -> None:
        save_model(self.model, self._tokenizer, folder)

    def load(self, folder: Path) -> None:
        self._load_whole(folder)


def model_statistics(
    model: PreTrainedModel,
    experience: Experience,
    *,
    temperature: float,
    with_entropy: bool = False,
    entropy_gradient: bool = True,
    share_prompts: bool = False,
    value_head: nn.Module | None = None,
) -> ActionStatistics:
    """Statistics of each completion token of a batch; with `share_prompts` a group's prompt is computed once."""
    mask_BS, actions = attention_mask_of(experience), experience.action_log_probs.shape[1]
    if share_prompts:
        return shared_prompt_statistics(
            model,
            experience.sequences,
            mask_BS,
            actions,
            groups_B=prompt_indices(experience),
            temperature=temperature,
            with_entropy=with_entropy,
            entropy_gradient=entropy_gradient,
            value_head=value_head,
        )
    return action_statistics(
        model,
        experience.sequences,
        mask_BS,
        actions,
        temperature=temperature,
        with_entropy=with_entropy,
        entropy_gradient=entropy_gradient,
        value_head=value_head,
    )
