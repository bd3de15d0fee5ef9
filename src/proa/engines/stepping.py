"""A Hugging Face model stepped token by token, with its cache if that is correct, otherwise without."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch

from ..errors import SettingError
from ..model_trials import trial_length, trial_tokens, vectors_agree

log = logging.getLogger("proa.engines")

_CACHES = ("past_key_values", "cache_params", "state", "mems")
"""Names of caches in different architectures: attention, Mamba, RWKV, Transformer-XL."""

_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a forward pass with missing or wrong inputs, including NotImplementedError."""


class Steps:
    """One batch of equally long rows: called with the prompts, then with each step's tokens, it returns logits."""

    def __init__(self, model: Any, *, cached: bool) -> None:
        self._model = model
        self._cached = cached
        self._parameters = inspect.signature(model.forward).parameters
        self._cache: dict[str, Any] = {}
        self._tokens_BT: torch.Tensor | None = None

    @torch.inference_mode()
    def __call__(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """The logits after the last of these tokens, which follow those of earlier calls."""
        before = 0 if self._tokens_BT is None else self._tokens_BT.shape[1]
        self._tokens_BT = tokens_BT if self._tokens_BT is None else torch.cat((self._tokens_BT, tokens_BT), dim=1)
        inputs = {"input_ids": tokens_BT if self._cached else self._tokens_BT, "use_cache": self._cached, **self._cache}
        if "logits_to_keep" in self._parameters:
            inputs["logits_to_keep"] = 1
        if self._cached and "position_ids" in self._parameters:  # some derive them wrongly from their cache
            places_T = torch.arange(before, self._tokens_BT.shape[1], device=tokens_BT.device)
            inputs["position_ids"] = places_T.expand_as(tokens_BT)
        outputs = self._model(**inputs)
        self._cache = {name: outputs[name] for name in _CACHES if self._cached and outputs.get(name) is not None}
        logits_BV: torch.Tensor = outputs.logits[:, -1]
        return logits_BV


class Trials:
    """Trials of a model's cache at different lengths, and their results."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._cached: dict[int, bool] = {}

    def is_cache_right(self, length: int) -> bool:
        """Whether steps through the cache agree with a full pass; raises if steps without the cache disagree too."""
        length = trial_length(self._model.config, length)
        if length not in self._cached:
            self._cached[length] = self._try(length)
            if not self._cached[length] and list(self._cached.values()).count(False) == 1:
                log.warning(
                    "%s gives other logits through its cache than in a full pass: the engine computes the whole text "
                    "again for each token, which is right and slow",
                    type(self._model).__name__,
                )
        return self._cached[length]

    @torch.inference_mode()
    def _try(self, length: int) -> bool:
        name, steps = type(self._model).__name__, min(4, length - 1)
        tokens_BT = trial_tokens(self._vocabulary, 2, length).to(self._model.device)
        try:
            wanted = self._full_pass(tokens_BT, steps)
        except _FAILURES as error:
            raise SettingError(
                f"the engine 'hf' cannot run {name}: given tokens alone it fails, with {type(error).__name__}: {error}"
            ) from error
        if self._are_right(tokens_BT, steps, wanted, cached=True):
            return True
        if self._are_right(tokens_BT, steps, wanted, cached=False):
            return False
        is_encoder = getattr(self._model.config.get_text_config(), "is_decoder", None) is False
        remedy = ". Set is_decoder to true in its configuration" if is_encoder else ""
        raise SettingError(
            f"the engine 'hf' cannot run {name}: it is not causal, for what it says after a text depends on what "
            f"follows{remedy}"
        )

    def _full_pass(self, tokens_BT: torch.Tensor, steps: int) -> torch.Tensor:
        """The logits of the last tokens, and before them: (B, steps + 1, V)."""
        inputs = {"input_ids": tokens_BT, "use_cache": False}
        if "logits_to_keep" in inspect.signature(self._model.forward).parameters:
            inputs["logits_to_keep"] = steps + 1
        logits_BTV: torch.Tensor = self._model(**inputs).logits
        return logits_BTV[:, -steps - 1 :]

    def _are_right(self, tokens_BT: torch.Tensor, steps: int, wanted_BTV: torch.Tensor, *, cached: bool) -> bool:
        follow = Steps(self._model, cached=cached)
        try:
            logits = [follow(part_Bt) for part_Bt in tokens_BT.tensor_split([*range(-steps, 0)], dim=1)]
        except _FAILURES:
            return False
        return vectors_agree(_centred(torch.stack(logits, dim=1)), _centred(wanted_BTV))


def _centred(logits_BTV: torch.Tensor) -> torch.Tensor:
    """Logits with mean 0, as a common constant is meaningless and would hide real differences."""
    logits_BTV = logits_BTV.masked_fill(logits_BTV.isinf(), 0.0)
    return logits_BTV - logits_BTV.mean(-1, keepdim=True)
