"""A model that is trained and saved, of any kind: what a run needs of it besides its step."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .models import ModelError, load_model, save_model
from .snapshot import snapshot_model


class Trainable(ABC):
    """A model with its tokenizer, from the start of a run to its saved folder.

    Every trainer of a run holds one. `gathered` is collective: with several trainers every rank calls it at the same
    point, as a model may be spread over them; rank 0 saves and scores the result.
    """

    keeps_start = False
    """Whether the initial model is needed again and is in no folder yet; it is then saved with the run."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        end_ids: list[int] | None = None,
        *,
        trust_remote_code: bool = False,
    ) -> None:
        self.model = model
        self.end_ids = end_ids or []
        """Tokens that end a completion."""
        self._tokenizer = tokenizer
        self._trust_remote_code = trust_remote_code

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        assert self._tokenizer is not None, "in a run there is one"
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @property
    def device(self) -> torch.device:
        return self.model.device

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters by name; those that are trained require a gradient."""
        return list(self.model.named_parameters())

    def save_start(self, folder: Path) -> None:
        """Save the initial model."""
        save_model(self.model, self._tokenizer, folder)

    def load_start(self, folder: Path) -> None:
        """Load the weights of the initial model."""
        self._load_whole(folder)

    def begin(self, start: Path) -> None:  # noqa: B027 - a plain model needs nothing
        """Prepare the model for training, once, before the first step. `start` is the folder of `save_start`."""

    def gathered(self) -> Self:
        """The same with all weights in this process, if it is rank 0. Collective."""
        return self

    def with_model(self, model: PreTrainedModel) -> Self:
        """A copy with another model of its kind."""
        other = copy.copy(self)
        other.model = model
        return other

    def whole(self) -> Mapping[str, torch.Tensor]:
        """All weights by their Hugging Face names, as an engine loads them."""
        raise ModelError("this model generates nothing: only a language model completes prompts")

    @abstractmethod
    def weights(self) -> dict[str, torch.Tensor]:
        """All tensors that affect the model's results, by name, for a run's digest."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that Hugging Face's libraries load."""

    def mend_copy(self, folder: Path) -> None:  # noqa: B027 - optional
        """Correct paths in a copy of a saved folder. Its files may be links, and are replaced rather than changed."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load the weights of a folder that `save` wrote into the same model object."""

    def snapshot(self) -> Self:
        """A snapshot to be saved while training continues."""
        return self.with_model(snapshot_model(self.model))

    def extra_state(self) -> dict[str, torch.Tensor]:
        """Trained tensors that the saved folder does not hold as they are."""
        return {}

    def load_extra_state(self, saved: Mapping[str, torch.Tensor]) -> None:  # noqa: B027 - optional
        """Restore the result of `extra_state`."""

    def _load_whole(self, folder: Path) -> None:
        saved = load_model(
            str(folder),
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            trust_remote_code=self._trust_remote_code,
        )
        self.model.load_state_dict(saved.state_dict())
