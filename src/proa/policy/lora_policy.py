"""A policy that is an adapter over a frozen base: only the adapter is trained, published and saved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .adapter_folder import digest_base, load_adapter, point_to_base, save_adapter
from .adapter_layout import AdapterLayout, AdapterOverBase
from .lora import LoraSettings, adapter_layout, adapter_off, adapter_weights, add_lora, base_weights, has_lora
from .models import ModelError, check_base, model_weights
from .policy import PlainPolicy, Policy, Receiver, Reference
from .saved_adapter import read_adapter


class AdapterOff(Reference):
    """The model itself with its adapter off, at no cost."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    @contextmanager
    def active(self) -> Iterator[PreTrainedModel]:
        with adapter_off(self._model):
            yield self._model


class OverBase(Receiver):
    """Merges published adapters with a base that it keeps, each time from the base."""

    def __init__(self, base: Mapping[str, torch.Tensor], layout: AdapterLayout) -> None:
        self._layout = layout
        self._over_base = AdapterOverBase(base, layout)

    def use_base(self, base: Mapping[str, torch.Tensor]) -> None:
        self._over_base = AdapterOverBase(base, self._layout)

    def whole(self, published: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return self._over_base.adapted(published)


class LoraPolicy(Policy):
    """An adapter, new with these `settings` or continued from the folder `path`. `begin` adds it to the model.

    `base_folder` is the folder of the base, for saved adapters to refer to; None if there is none. With `base_changes`
    the base is trained before the adapter is added, so it is not compared with the base of `path`.
    """

    reference_is_start = False  # the reference is the base, which saved adapters refer to

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        end_ids: list[int] | None = None,
        *,
        settings: LoraSettings | None = None,
        path: str | None = None,
        seed: int = 0,
        base_folder: str | None = None,
        base_changes: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__(model, tokenizer, end_ids, trust_remote_code=trust_remote_code)
        self._settings = settings
        self._path = path
        self._seed = seed
        self._base_folder = base_folder
        self._base_digest: str | None = None
        self.keeps_start = base_folder is None
        if has_lora(model):
            self._layout = adapter_layout(model)
            return
        self._layout = check_adapter(model, settings, path, base_changes=base_changes)

    def begin(self, start: Path) -> None:
        if self._path is not None:
            load_adapter(self.model, self._path)
        else:
            add_lora(self.model, self._settings or LoraSettings(), seed=self._seed)
        self._base_folder = self._base_folder or str(start)
        self._base_digest = digest_base(self.model)

    def reference(self) -> Reference:
        return AdapterOff(self.model)

    def published(self) -> dict[str, torch.Tensor]:
        return adapter_weights(self.model)

    def published_base(self) -> dict[str, torch.Tensor]:
        return base_weights(self.model)

    def receiver(self, base: Mapping[str, torch.Tensor] | None = None) -> Receiver:
        return OverBase(base_weights(self.model) if base is None else base, self._layout)

    def whole(self) -> Mapping[str, torch.Tensor]:
        return self.receiver().whole(self.published())

    def weights(self) -> dict[str, torch.Tensor]:
        return {**base_weights(self.model), **adapter_weights(self.model)}

    def save(self, folder: Path) -> None:
        save_adapter(
            self.model, self._tokenizer, folder, base_path=self._base_path(folder), base_digest=self._base_digest
        )  # fmt: skip

    def mend_copy(self, folder: Path) -> None:
        point_to_base(folder, self._base_path(folder))

    def load(self, folder: Path) -> None:
        load_adapter(self.model, folder)

    def _base_path(self, folder: Path) -> str | None:
        """The path of the base: absolute, or relative to the adapter's folder if it is saved with the run, which may
        move."""
        if self._base_folder is None or not self.keeps_start:
            return self._base_folder
        return os.path.relpath(self._base_folder, folder)


def check_adapter(
    model: PreTrainedModel, settings: LoraSettings | None, path: str | None, *, base_changes: bool = False
) -> AdapterLayout:
    """The layout of an adapter from settings or a folder; raises if it does not fit the model."""
    if path is None:
        return (settings or LoraSettings()).layout(model)
    saved = read_adapter(path)
    layout = saved.layout_in(model)
    if not base_changes:
        check_base(saved, model_weights(model), str(model.dtype).removeprefix("torch."))
    return layout


def as_policy(model: PreTrainedModel) -> Policy:
    """A model as a policy: a `LoraPolicy` if it has an adapter."""
    return LoraPolicy(model) if has_lora(model) else PlainPolicy(model)


def refuse_adapter(model: PreTrainedModel) -> None:
    """Raise for a model with an adapter, as a run adds its own."""
    if has_lora(model):
        raise ModelError(
            "the model has an adapter already: give the plain model, and the adapter's folder as lora.path"
        )
