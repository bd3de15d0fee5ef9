"""Random batches for the algorithms, and the whole way from rewards to a gradient."""

# ruff: noqa: N802, N815 -- tensor shapes are suffixes of fields too

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from proa.algorithms import CreditInputs, TokenLossInputs

torch.set_num_threads(1)  # two sum in another order than one

NAMES = [
    "grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo", "decoupled", "ppo", "reinforce_pp", "reinforce_pp_baseline",
]  # fmt: skip
WHITENING = ["ppo", "reinforce_pp", "reinforce_pp_baseline"]
"""Those whose advantages depend on the whole batch, not on their group alone."""


@dataclass(frozen=True)
class Batch:
    rewards_B: torch.Tensor
    groups_B: torch.Tensor
    mask_BT: torch.Tensor
    log_probs_BT: torch.Tensor
    old_log_probs_BT: torch.Tensor
    reference_log_probs_BT: torch.Tensor
    entropy_BT: torch.Tensor
    importance_BT: torch.Tensor
    kl_BT: torch.Tensor
    values_BT: torch.Tensor
    bootstrap_B: torch.Tensor
    max_new_tokens: int

    @property
    def lengths_B(self):
        return self.mask_BT.sum(dim=1)

    def rows(self, index):
        """Some rows of the batch, or the same rows in another order."""
        return replace(self, **{name: tensor[index] for name, tensor in self.tensors().items()})

    def tensors(self):
        return {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}

    def per_token(self):
        """What a model or a sampler computed for each token: everything per token but the mask."""
        return {name: tensor for name, tensor in self.tensors().items() if tensor.dim() == 2 and name != "mask_BT"}


def random_batch(seed, *, groups=2, size=3, T=5, dtype=torch.float64):
    """Rows of length 0 to T, with holes in some, as tool outputs make them; some groups have equal rewards."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale):
        return scale * torch.randn(B, T, generator=generator, dtype=dtype)

    B = groups * size
    lengths_B = torch.randint(0, T + 1, (B,), generator=generator)
    mask_BT = (torch.arange(T) < lengths_B[:, None]) & (torch.rand(B, T, generator=generator) < 0.9)
    log_probs_BT = -3 * torch.rand(B, T, generator=generator, dtype=dtype)
    return Batch(
        rewards_B=torch.tensor([0.0, 0.3, 0.1 + 0.2, 1.0], dtype=dtype)[torch.randint(4, (B,), generator=generator)],
        groups_B=torch.arange(groups).repeat_interleave(size),
        mask_BT=mask_BT,
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=log_probs_BT + noise(0.3),
        reference_log_probs_BT=log_probs_BT + noise(0.5),
        entropy_BT=noise(1.0).abs(),
        importance_BT=noise(0.3).exp(),
        kl_BT=noise(0.5),
        values_BT=noise(0.5),
        bootstrap_B=torch.randn(B, generator=generator, dtype=dtype) * (torch.rand(B, generator=generator) < 0.3),
        max_new_tokens=T + 2,
    )


batches = st.builds(
    random_batch, st.integers(0, 2**31), groups=st.integers(1, 3), size=st.integers(1, 4), T=st.integers(1, 6)
)


def credit(algorithm, batch):
    """What each token of the whole batch is credited with, from rewards as the algorithm shapes them."""
    inputs = CreditInputs(
        rewards_B=algorithm.shape_rewards(batch.rewards_B, batch.lengths_B, batch.max_new_tokens),
        groups_B=batch.groups_B,
        mask_BT=batch.mask_BT,
        kl_BT=batch.kl_BT,
        kl_reward_coefficient=getattr(algorithm, "kl_reward_coefficient", 0.0),
        values_BT=batch.values_BT,
        bootstrap_B=batch.bootstrap_B,
    )
    return algorithm.assign_credit(inputs)


def token_loss(algorithm, batch, advantages_BT):
    inputs = TokenLossInputs(
        log_probs_BT=batch.log_probs_BT,
        old_log_probs_BT=batch.old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=batch.mask_BT,
        entropy_BT=batch.entropy_BT,
        reference_log_probs_BT=batch.reference_log_probs_BT,
        importance_BT=batch.importance_BT,
    )
    return algorithm.token_loss(inputs)


def advantages_and_weights(algorithm, batch):
    weights_BT = algorithm.token_weights(batch.mask_BT, batch.max_new_tokens, dtype=batch.log_probs_BT.dtype)
    return credit(algorithm, batch).advantages_BT, weights_BT


def objective(algorithm, batch):
    advantages_BT, weights_BT = advantages_and_weights(algorithm, batch)
    return (weights_BT * token_loss(algorithm, batch, advantages_BT).loss_BT).sum()


def loss_and_gradients(algorithm, batch):
    """The loss, and its gradient by each token's log-probability and entropy."""
    log_probs_BT = batch.log_probs_BT.clone().requires_grad_()
    entropy_BT = batch.entropy_BT.clone().requires_grad_()
    loss = objective(algorithm, replace(batch, log_probs_BT=log_probs_BT, entropy_BT=entropy_BT))
    gradients = torch.autograd.grad(loss, (log_probs_BT, entropy_BT), allow_unused=True, materialize_grads=True)
    return loss.detach(), *gradients
