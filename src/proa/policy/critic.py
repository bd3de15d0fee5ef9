"""The critic: the expected return before each token of a completion, and after the last."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from .decoder_pass import find_decoder, hidden_states


class ValueHead(nn.Linear):
    """Maps hidden states of any dtype to one number each, initially 0."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(width, 1, dtype=dtype, device="meta")  # without drawing from torch's global generator
        self.to_empty(device="cpu")
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states.to(self.weight.dtype))[..., 0]


class Critic(nn.Module):
    """A head on the hidden states of a decoder: the policy's own, or one that belongs to the critic.

    On the policy's decoder the critic owns only the head; its loss then trains the policy's layers too.
    """

    def __init__(self, decoder: nn.Module, head: ValueHead, *, shares_decoder: bool) -> None:
        super().__init__()
        self.head = head
        self.shares_decoder = shares_decoder
        # In a list it is not a submodule: the critic does not save or train a shared decoder.
        self._shared = [decoder] if shares_decoder else []
        self.trunk = None if shares_decoder else decoder

    def values(self, sequences_BS: torch.Tensor, mask_BS: torch.Tensor, actions: int) -> torch.Tensor:
        """The value before each completion token and, in the column after a row's last token, after it: (B, A + 1).

        Values under the mask are meaningless.
        """
        decoder = self._shared[0] if self.trunk is None else self.trunk
        hidden_BSH = hidden_states(decoder, sequences_BS, mask_BS.bool())
        values_BA: torch.Tensor = self.head(hidden_BSH[:, -actions - 1 :])
        return values_BA


def shared_critic(policy: PreTrainedModel) -> Critic:
    """A head on the policy's own decoder."""
    return Critic(find_decoder(policy), _head(policy), shares_decoder=True)


def separate_critic(policy: PreTrainedModel) -> Critic:
    """A decoder of its own, which starts as a copy of the policy's (with an adapter of its own, if that has one)."""
    return Critic(copy.deepcopy(find_decoder(policy)), _head(policy), shares_decoder=False)


@torch.no_grad()
def critic_from_reward_model(reward_model: PreTrainedModel) -> Critic:
    """A critic that starts as the reward model: its decoder, and its head."""
    score: nn.Linear = cast(Any, reward_model).score
    head = _head(reward_model)
    head.weight.copy_(score.weight)
    if score.bias is not None:
        head.bias.copy_(score.bias)
    return Critic(cast(Any, reward_model).base_model, head, shares_decoder=False)


def _head(model: PreTrainedModel) -> ValueHead:
    width = model.config.get_text_config().hidden_size
    return ValueHead(width, torch.float64 if model.dtype == torch.float64 else torch.float32).to(model.device)
