"""Values derived from a batch of experience: masks, lengths, and groups of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .versions import NO_VERSION

if TYPE_CHECKING:
    import torch

    from .experience import Experience


def action_mask_of(experience: Experience) -> torch.Tensor:
    """(B, A): the tokens to train on."""
    if experience.action_mask is None:
        import torch  # slow to import, and most of this package works without it

        return torch.ones_like(experience.action_log_probs, dtype=torch.bool)
    return experience.action_mask.bool()


def attention_mask_of(experience: Experience) -> torch.Tensor:
    """(B, S): the tokens that are not padding."""
    if experience.attention_mask is None:
        import torch

        return torch.ones_like(experience.sequences, dtype=torch.bool)
    return experience.attention_mask


def completion_lengths(experience: Experience) -> torch.Tensor:
    """(B,): the number of tokens from the first sampled one on, including those that a hook masked."""
    if experience.attention_mask is None:
        return action_mask_of(experience).sum(-1)
    return experience.attention_mask[:, -experience.action_log_probs.shape[1] :].bool().sum(-1)


def sampled_lengths(experience: Experience) -> torch.Tensor:
    """(B,): the number of sampled tokens, without those of an environment in between."""
    lengths_B = completion_lengths(experience)
    if experience.versions is None:
        return lengths_B
    return lengths_B - (experience.versions == NO_VERSION).sum(-1)


def longest_turns(experience: Experience) -> torch.Tensor:
    """(B,): the most tokens sampled in one turn. Without turn numbers an environment's tokens separate the turns."""
    sampled_BA = attention_mask_of(experience)[:, -experience.action_log_probs.shape[1] :].bool()
    if experience.versions is not None:
        sampled_BA = sampled_BA & (experience.versions != NO_VERSION)
    begins_BA = ~sampled_BA
    if experience.turns is not None:  # an environment may have said nothing between two
        begins_BA[:, 1:] |= experience.turns[:, 1:] != experience.turns[:, :-1]
    so_far_BA = sampled_BA.cumsum(-1)
    before_turn_BA = (so_far_BA - sampled_BA.long()).masked_fill(~begins_BA, 0).cummax(-1).values
    return (so_far_BA - before_turn_BA).amax(-1)


def group_indices(experience: Experience) -> torch.Tensor:
    """(B,): group ids as numbers from 0; a sample without one is a group by itself."""
    import torch

    count = len(experience)
    groups, uids = experience.group_ids or [""] * count, experience.uids or [""] * count
    ids = [group or uid or str(row) for row, (group, uid) in enumerate(zip(groups, uids, strict=True))]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(ids))}
    return torch.tensor([numbers[group] for group in ids], device=experience.sequences.device)


def prompt_indices(experience: Experience) -> torch.Tensor:
    """(B,): numbers from 0 of the prompts that rows of a group share: one for each group, unless turns begin new rows
    or environments begin differently."""
    groups_B = group_indices(experience)
    if experience.turn_rewards is None:
        return groups_B
    import torch

    mask_BS = attention_mask_of(experience).bool()
    first = experience.sequences.shape[1] - experience.action_log_probs.shape[1]
    prompts = [
        (group, *tokens_P[mask_P].tolist())
        for group, tokens_P, mask_P in zip(
            groups_B.tolist(), experience.sequences[:, :first], mask_BS[:, :first], strict=True
        )
    ]
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return torch.tensor([numbers[prompt] for prompt in prompts], device=groups_B.device)
