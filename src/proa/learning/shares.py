"""The rows of a batch that one trainer computes, in micro-batches."""

from __future__ import annotations

from ..data.experience import Experience
from ..data.masks import attention_mask_of, group_indices, prompt_indices
from ..data.trajectories import Trajectories
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
    """Deal whole groups over the trainers, in micro-batches of at most `token_budget` tokens (0: all), with the padding
    if rows are padded.

    The rows of a trajectory stay in one piece, because its loss may depend on all of them; with `share_prompts` those
    of a group do, because its prompt is computed once.
    """
    plan = plan_micro_batches if is_padded else plan_by_tokens
    mask_BS = attention_mask_of(experience).bool()
    lengths = mask_BS.sum(-1).tolist()
    groups_B = group_indices(experience)
    own = deal_rows(lengths, groups_B.tolist(), replicas.size)[replicas.rank]
    if share_prompts:
        rows_of: dict[int, list[int]] = {}
        for row in own:
            rows_of.setdefault(int(groups_B[row]), []).append(row)
        prompts_B = prompt_indices(experience)
        shared = shared_lengths(mask_BS, experience.action_log_probs.shape[1], prompts_B)
        together = list(rows_of.values())
        sizes = [sum(shared[prompt] for prompt in set(prompts_B[rows].tolist())) for rows in together]
    else:
        trajectories = Trajectories(experience)
        together = [rows for rows in trajectories.rows if rows[0] in set(own)] if trajectories.has_forks else []
        if not together:
            return [[own[i] for i in rows] for rows in plan([lengths[row] for row in own], token_budget)]
        widest = max(lengths[row] for row in own)  # the most slots of a row, if rows are padded
        sizes = [len(rows) * widest if is_padded else sum(lengths[row] for row in rows) for rows in together]
    return [sorted(row for i in piece for row in together[i]) for piece in plan(sizes, token_budget)]
