"""Log-probabilities and entropies of completions, without ever holding a batch's logits.

Logits are the largest tensor of a training step: B x A x V, 10 GiB in float32 for 64 completions of 256
tokens over a vocabulary of 150,000. Here the output head is applied to `chunk_tokens` positions at a
time, real completion tokens only, and again in the backward pass, so neither pass holds more than one
chunk's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import SettingError
from ..model_trials import trial_length, trial_tokens, uncompiled, vectors_agree
from .decoder_pass import find_decoder, hidden_states, vocabulary_of
from .head import LEAST, HeadSettings, head_statistics

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class UnsupportedModelError(SettingError, TypeError):
    """The model's logits cannot be computed in chunks."""


@dataclass(frozen=True, slots=True)
class ActionStatistics:
    """Statistics of each completion token under the policy; exactly 0, without gradient, under the mask."""

    log_probs_BA: torch.Tensor  # noqa: N815 - a shape, not a word
    entropy_BA: torch.Tensor | None = None  # noqa: N815
    values_BA: torch.Tensor | None = None  # noqa: N815
    """The output of `value_head` for the state before each token."""


def action_statistics(
    model: PreTrainedModel,
    sequences_BS: torch.Tensor,
    attention_mask_BS: torch.Tensor | None,
    actions: int,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
    entropy_gradient: bool = True,
    value_head: nn.Module | None = None,
) -> ActionStatistics:
    """Log-probability (and entropy) of the last `actions` tokens of each sequence at the sampling temperature.

    Prompts are padded on the left, completions on the right; no mask means no padding. Values under the mask are
    never read. Differentiable (the entropy only with `entropy_gradient`), in float32 at least for any dtype of the
    model.
    """
    mask_BS = checked_mask(sequences_BS, attention_mask_BS, actions)
    _check_settings(temperature, chunk_tokens)
    # The last token predicts nothing that is needed.
    hidden_BSH = hidden_states(find_decoder(model), sequences_BS[:, :-1], mask_BS[:, :-1])
    first = sequences_BS.shape[1] - actions
    mask_BA = mask_BS[:, first:]
    hidden_NH = hidden_BSH[:, first - 1 :][mask_BA]  # the position before a token predicts it
    tokens_N = sequences_BS[:, first:][mask_BA]
    statistics_KN = token_statistics(
        model,
        hidden_NH,
        tokens_N,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=with_entropy,
        entropy_gradient=entropy_gradient,
    )
    statistics_KBA = scatter_tokens(statistics_KN, mask_BA)
    values_BA = None
    if value_head is not None:
        values_BA = scatter_tokens(value_head(hidden_NH)[None], mask_BA)[0]
    return ActionStatistics(statistics_KBA[0], statistics_KBA[1] if with_entropy else None, values_BA)


def token_statistics(
    model: PreTrainedModel,
    hidden_NH: torch.Tensor,
    tokens_N: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
    entropy_gradient: bool = True,
) -> torch.Tensor:
    """Log-probability of each token after the hidden state before it and, as a second row, the entropy there."""
    logits_of = _find_logits(model)
    head: Any = cast(Any, model).get_output_embeddings()
    if logits_of.is_linear and len(tokens_N):
        settings = HeadSettings(
            scale=logits_of.factor / temperature, chunk_tokens=chunk_tokens, with_entropy=with_entropy,
            entropy_gradient=entropy_gradient, is_compiled=compiles_head(model),
        )  # fmt: skip
        return head_statistics(hidden_NH, head.weight, head.bias, tokens_N, settings)

    def statistics_of(hidden_nH: torch.Tensor, tokens_n: torch.Tensor) -> torch.Tensor:
        found_Kn = _statistics(logits_of(hidden_nH), tokens_n, temperature, with_entropy)
        return found_Kn if entropy_gradient else torch.cat((found_Kn[:1], found_Kn[1:].detach()))

    parts = [
        # Nothing in the head is random, so no generator state is needed for the recomputation.
        checkpoint(statistics_of, hidden_nH, tokens_n, use_reentrant=False, preserve_rng_state=False)
        for hidden_nH, tokens_n in zip(
            torch.split(hidden_NH, chunk_tokens), torch.split(tokens_N, chunk_tokens), strict=True
        )
    ]
    return torch.cat(parts, dim=1)


def _statistics(
    logits_nV: torch.Tensor, tokens_n: torch.Tensor, temperature: float, with_entropy: bool
) -> torch.Tensor:
    """Log-probability of each token and, as a second row, the entropy of its distribution."""
    log_probs_nV = (_widen(logits_nV) / temperature).log_softmax(-1)
    log_probs_n = log_probs_nV.gather(-1, tokens_n[:, None])[:, 0]
    if not with_entropy:
        return log_probs_n[None]
    # An impossible token adds 0 · log 0 = 0, and no gradient; numerically, 0 × -inf would be NaN in both.
    entropy_n = -(log_probs_nV.exp() * log_probs_nV.clamp(min=LEAST)).sum(-1)
    return torch.stack((log_probs_n, entropy_n))


def scatter_tokens(statistics_KN: torch.Tensor, mask_BA: torch.Tensor) -> torch.Tensor:
    """Scatter numbers of the mask's tokens to their places, with 0 elsewhere."""
    zeros_KBA = statistics_KN.new_zeros((statistics_KN.shape[0], *mask_BA.shape))
    return zeros_KBA.masked_scatter(mask_BA, statistics_KN)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def check_causal(model: PreTrainedModel) -> None:
    """Raise, before training, for a model whose log-probabilities cannot be computed from its decoder."""
    _find_logits(model)


def _find_logits(model: PreTrainedModel) -> LogitsOf:
    """The map from hidden states to logits, checked once against the model's own logits."""
    head: nn.Module | None = cast(Any, model).get_output_embeddings()
    if head is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no output head: not a causal language model")
    logits_of = LogitsOf(model, head)
    if model not in _compared:
        with uncompiled(model):
            _compare(model, logits_of)
        _compared.add(model)
    return logits_of


class LogitsOf:
    """A model's output head, with its architecture's changes to the logits."""

    def __init__(self, model: PreTrainedModel, head: nn.Module) -> None:
        config = model.config.get_text_config()
        self.factor: float = (getattr(config, "logit_scale", None) or 1.0) / (
            getattr(config, "logits_scaling", None) or 1.0
        )  # Cohere, Granite
        self._head = head
        self._cap: float | None = getattr(config, "final_logit_softcapping", None) or getattr(
            config, "logits_soft_cap", None
        )  # Gemma, RecurrentGemma

    @property
    def is_linear(self) -> bool:
        """Whether logits are a plain product, without hooks on the head."""
        head = self._head
        return type(head) is nn.Linear and not self._cap and not head._forward_hooks and not head._forward_pre_hooks

    def __call__(self, hidden_nH: torch.Tensor) -> torch.Tensor:
        logits_nV: torch.Tensor = self._head(hidden_nH)
        if self.factor != 1.0:
            logits_nV = logits_nV * self.factor
        return (logits_nV / self._cap).tanh() * self._cap if self._cap else logits_nV


def compile_head(model: PreTrainedModel, wanted: bool) -> None:
    """Set whether the computation after the output head is compiled."""
    cast(Any, model).proa_compiles_head = wanted  # an attribute, so that copies of the model have it


def compiles_head(model: PreTrainedModel) -> bool:
    return bool(getattr(model, "proa_compiles_head", False))


_compared: WeakSet[nn.Module] = WeakSet()


@torch.no_grad()
def _compare(model: PreTrainedModel, logits_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Raise for a model that is not causal, or changes its logits in an unknown way: training would be silently
    wrong."""
    decoder = find_decoder(model)
    tokens = trial_tokens(vocabulary_of(decoder), 2, trial_length(model.config, 1)).to(model.device)
    half = tokens[:, : max(1, tokens.shape[1] // 2)]
    hidden = hidden_states(decoder, half, torch.ones_like(half).bool())
    theirs = _widen(model(input_ids=half, use_cache=False).logits)
    if not _logits_agree(logits_of, hidden, theirs, model.dtype):
        raise UnsupportedModelError(
            f"{type(model).__name__} computes its logits in a way that Proa does not know: its output head applied "
            "to its decoder's hidden states gives other numbers"
        )
    in_whole = hidden_states(decoder, tokens, torch.ones_like(tokens).bool())[:, : half.shape[1]]
    if not vectors_agree(in_whole, hidden):
        remedy = ": set is_decoder to true in its configuration" if _is_encoder(model) else ""
        raise UnsupportedModelError(
            f"{type(model).__name__} is not causal: what it says of a token depends on those that follow{remedy}"
        )


def _logits_agree(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype
) -> bool:
    try:
        ours = _widen(logits_of(hidden))
    except RuntimeError:  # the head is not made for hidden states of this width
        return False
    tolerance = 0.02 if dtype in (torch.bfloat16, torch.float16) else 1e-4
    largest = float(theirs.abs().nan_to_num(posinf=0.0).max())  # not counting impossible tokens
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, 0.0, tolerance * largest, equal_nan=True)


def _is_encoder(model: PreTrainedModel) -> bool:
    """Whether this is a model like BERT, which is causal only if its configuration says so."""
    return getattr(model.config.get_text_config(), "is_decoder", None) is False


def checked_mask(sequences_BS: torch.Tensor, attention_mask_BS: torch.Tensor | None, actions: int) -> torch.Tensor:
    """The attention mask as bool; raises if it is not one of prompts and completions."""
    length = sequences_BS.shape[1]
    if not 0 < actions < length:
        raise ValueError(
            f"{actions} of {length} tokens cannot be a completion: it has at least one token, and so has its prompt"
        )
    if attention_mask_BS is None:
        return torch.ones_like(sequences_BS, dtype=torch.bool)
    if attention_mask_BS.shape != sequences_BS.shape:
        raise ValueError(
            f"the attention mask is {tuple(attention_mask_BS.shape)} and the sequences {tuple(sequences_BS.shape)}"
        )
    mask_BS = attention_mask_BS.bool()
    orphans_BA = mask_BS[:, -actions:] & ~mask_BS[:, -actions - 1 : -1]
    if orphans_BA.any():
        row = int(orphans_BA.any(1).nonzero()[0])
        raise ValueError(
            f"row {row} has a completion token right after padding: nothing predicts it. Prompts are padded on the "
            "left, completions on the right, and a prompt has at least one token"
        )
    return mask_BS


def _check_settings(temperature: float, chunk_tokens: int) -> None:
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be above 0, not {temperature}: greedy tokens are scored at 1")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
