"""Micro-batches: planning which rows of a batch go through the model together, and cutting them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..data.experience import ACTION_LIKE, SEQUENCE_LIKE, Experience


def plan_micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Rows grouped so that rows x longest length stays within the budget; a longer row goes alone.

    As few batches as possible, and among such plans one with the smallest largest batch. The largest comes first, so
    that lack of memory shows at once. A budget of 0 means one batch.

    If prompts differ much, count each row as the batch's longest prompt plus its own completion: that is its size with
    aligned boundaries.

    >>> plan_micro_batches([10, 10, 30, 10, 10], token_budget=40)
    [[2], [0, 1, 3, 4]]
    >>> plan_micro_batches([10, 10, 10, 10, 10], token_budget=40)
    [[0, 1, 2], [3, 4]]
    """
    if token_budget < 0:
        raise ValueError(f"token_budget must be 0 (one batch) or more, not {token_budget}")
    if any(length < 0 for length in lengths):
        raise ValueError(f"a length below 0: {min(lengths)}")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])  # equal lengths keep their order
    if token_budget == 0:
        return [sorted(rows)] if rows else []
    fewest = len(_fill(rows, lengths, token_budget))
    low, high = 1, token_budget  # the smallest budget that needs no more batches spreads the rows evenly
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(rows, lengths, middle)) <= fewest else (middle + 1, high)
    return [sorted(batch) for batch in _fill(rows, lengths, low)]


def plan_by_tokens(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Rows grouped so that their tokens, without padding, stay within the budget; a longer row goes alone.

    The longest come first, each in the first batch that has room for it (first-fit decreasing): at most 11/9 of the
    fewest batches possible, and one (Dósa, 2007). A budget of 0 means one batch.

    >>> plan_by_tokens([10, 10, 30, 10, 50], token_budget=40)
    [[4], [2, 0], [1, 3]]
    """
    if token_budget == 0:
        return [list(range(len(lengths)))] if lengths else []
    batches: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):  # equal lengths keep their order
        batch = next((batch for batch, left in enumerate(room) if left >= lengths[row]), len(batches))
        if batch == len(batches):
            batches.append([])
            room.append(token_budget)
        batches[batch].append(row)
        room[batch] -= lengths[row]
    return batches


def deal_rows(lengths: Sequence[int], groups: Sequence[int], trainers: int) -> list[list[int]]:
    """The rows of each trainer: whole groups, equally many if they divide evenly, and about as many tokens.

    Groups are dealt longest first, back and forth (0, 1, 1, 0), so that long and short groups balance.

    >>> deal_rows([9, 9, 5, 5, 4, 4, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3], trainers=2)
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    dealt: list[list[int]] = [[] for _ in range(trainers)]
    longest_first = sorted(rows_of.values(), key=lambda rows: -sum(lengths[row] for row in rows))
    for turn, rows in enumerate(longest_first):
        there, back = turn % trainers, trainers - 1 - turn % trainers
        dealt[there if turn // trainers % 2 == 0 else back] += rows
    return [sorted(rows) for rows in dealt]


def take_rows(experience: Experience, rows: Sequence[int]) -> Experience:
    """Some rows of a batch, in that order, trimmed to their own longest prompt and longest completion."""
    if not rows:
        raise ValueError("no rows to take: a micro-batch has at least one")
    index = torch.tensor(rows, device=experience.sequences.device)
    columns, actions = _extent(experience, index)

    changes: dict[str, Any] = {}
    for name in (*SEQUENCE_LIKE, *ACTION_LIKE, "reward"):
        tensor = getattr(experience, name)
        if tensor is not None:
            picked = tensor[index]
            whole = picked.dim() == 1  # one number for the whole sequence
            changes[name] = picked if whole else picked[:, columns if name in SEQUENCE_LIKE else slice(actions)]
    for name in ("uids", "group_ids", "facts"):
        items = getattr(experience, name)
        changes[name] = tuple(items[row] for row in rows) if items else ()
    return replace(experience, **changes)


def _fill(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Fill batches with rows, longest first, which gives the fewest batches."""
    batches: list[list[int]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _extent(experience: Experience, index: torch.Tensor) -> tuple[slice, int]:
    """The columns in which any of the rows has a real token, and how many of them are completion."""
    length, actions = experience.sequences.shape[1], experience.action_log_probs.shape[1]
    if experience.attention_mask is None:
        return slice(0, length), actions
    boundary = length - actions
    real = experience.attention_mask[index].bool().any(0).nonzero()[:, 0].tolist()
    first = min([*real, boundary])
    last = max([column + 1 for column in real] + [boundary])
    return slice(first, last), last - boundary
