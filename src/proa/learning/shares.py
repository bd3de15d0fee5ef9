"""The rows of a batch that one trainer computes, in the pieces in which it does."""

from __future__ import annotations

from ..data.experience import Experience
from ..data.masks import attention_mask_of, group_indices
from ..policy.micro_batches import deal_rows, plan_by_tokens, plan_micro_batches
from ..policy.shared_prompts import shared_lengths
from .replicas import Replicas


def plan_own_rows(
    experience: Experience,
    replicas: Replicas,
    token_budget: int,
    *,
    share_prompts: bool = False,
    is_padded: bool = True,
) -> list[list[int]]:
    """Whole groups are dealt over the trainers; a piece has at most `token_budget` tokens (0: all), with the padding if
    rows are padded.

    With `share_prompts` a group stays in one piece, because its prompt is computed once.
    """
    plan = plan_micro_batches if is_padded else plan_by_tokens
    mask_BS = attention_mask_of(experience).bool()
    lengths = mask_BS.sum(-1).tolist()
    groups_B = group_indices(experience)
    own = deal_rows(lengths, groups_B.tolist(), replicas.size)[replicas.rank]
    if not share_prompts:
        return [[own[i] for i in rows] for rows in plan([lengths[row] for row in own], token_budget)]
    rows_of: dict[int, list[int]] = {}
    for row in own:
        rows_of.setdefault(int(groups_B[row]), []).append(row)
    shared = shared_lengths(mask_BS, experience.action_log_probs.shape[1], groups_B)
    groups = list(rows_of)
    pieces = plan([shared[group] for group in groups], token_budget)
    return [sorted(row for i in piece for row in rows_of[groups[i]]) for piece in pieces]
