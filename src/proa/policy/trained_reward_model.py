"""A reward model in training: a language model's trunk with a score, whole or with an adapter, saved as a plain one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .adapter_folder import digest_base, load_adapter
from .adapter_layout import AdapterOverBase
from .lora import LoraSettings, adapter_layout, adapter_weights, add_lora, base_weights, has_lora
from .lora_policy import check_adapter
from .models import model_weights, seeded_torch
from .reward_model import build_reward_model, save_reward_model
from .trainable import Trainable


class TrainedRewardModel(Trainable):
    """Starts from a language model, which `begin` turns into a reward model, optionally with an adapter."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: list[int],
        *,
        seed: int,
        lora: LoraSettings | None = None,
        adapter_path: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__(model, tokenizer, end_ids, trust_remote_code=trust_remote_code)
        self._seed = seed
        self._lora = lora
        self._adapter_path = adapter_path
        self.base_digest = ""
        """With an adapter, the digest of its base, as the model is saved merged."""
        if lora is not None or adapter_path is not None:
            check_adapter(model, lora, adapter_path)

    def begin(self, start: Path) -> None:
        self.model = model = build_reward_model(self.model, seed=self._seed)
        if self._adapter_path is not None:
            load_adapter(model, self._adapter_path)
        elif self._lora is not None:
            add_lora(model, self._lora, seed=self._seed)
        if has_lora(model):
            self.base_digest = digest_base(model)
            model.get_submodule("score").requires_grad_(True)  # the drawn head must be trained

    def weights(self) -> dict[str, torch.Tensor]:
        if has_lora(self.model):
            return {**base_weights(self.model), **adapter_weights(self.model)}
        return model_weights(self.model)

    def save(self, folder: Path) -> None:
        save_reward_model(self._merged() if has_lora(self.model) else self.model, self.tokenizer, folder)

    def load(self, folder: Path) -> None:
        """Nothing: the saved folder is merged and padded; the trained tensors are in `extra_state`."""

    def extra_state(self) -> dict[str, torch.Tensor]:
        named = self.model.named_parameters()
        return {name: parameter.detach() for name, parameter in named if parameter.requires_grad}

    def load_extra_state(self, saved: Mapping[str, torch.Tensor]) -> None:
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in saved.items():
                own[name].copy_(tensor)

    def _merged(self) -> PreTrainedModel:
        """A plain reward model that is equivalent to the one with an adapter."""
        model = self.model
        weights = AdapterOverBase(base_weights(model), adapter_layout(model)).merged(adapter_weights(model))
        with seeded_torch(self._seed):  # drawn only to be replaced
            plain: Any = type(model)(model.config)
        plain.load_state_dict(weights)
        merged: PreTrainedModel = plain.to(model.device, model.dtype).eval()
        return merged
