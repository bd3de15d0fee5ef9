"""Changes that a hook may make to experience: rewards, and which sampled tokens are trained.

The rest records how the samples were made: tokens, log-probabilities, versions. Any other change would be wrong or have
no effect, so it raises an error and is undone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..errors import HookError
from ..spelling import did_you_mean
from .experience import BufferItem, Experience, merge, split
from .reward_limits import fault_of
from .trajectories import rows_by_uid
from .versions import NO_VERSION

if TYPE_CHECKING:
    import torch

CHANGEABLE = ("reward", "action_mask")


def copied(experience: Experience) -> Experience:
    """A copy that shares no memory with the original."""
    import torch

    values: dict[str, Any] = {}
    for field in fields(Experience):
        value = getattr(experience, field.name)
        values[field.name] = value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
    return Experience(**values)


def put_back(experience: Experience, before: Experience) -> None:
    """Restore an earlier state of an experience."""
    experience.__dict__ = dict(vars(before))


def refuse_other_changes(who: str, before: Experience, experience: Experience) -> None:
    """Raise `HookError` after undoing all changes, if one of them is not allowed."""
    fault = next(_faults(before, experience), "")
    if fault:
        put_back(experience, before)
        allowed = "it may change the values of `reward`, and take tokens out of `action_mask`"
        raise HookError(f"{who} {fault}: {allowed}, and nothing else")


def shown_to_hooks(items: Sequence[BufferItem]) -> Experience:
    """The items as one batch with a reward in every row: NaN where a sample has none."""
    import torch

    none = torch.tensor(float("nan"))
    return merge([replace(item, reward=none) if item.reward is None else item for item in items])


def nothing_made() -> Experience:
    """The experience for hooks if the batch could not be made: all fields, without rows."""
    import torch

    none, no_mask = torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool)
    tokens = torch.zeros(0, 0, dtype=torch.int64)
    return Experience(
        tokens,
        none,
        reward=torch.zeros(0),
        attention_mask=no_mask,
        action_mask=no_mask.clone(),
        versions=tokens.clone(),
    )


def as_delivered(experience: Experience) -> list[BufferItem]:
    """The rows of a batch after hooks changed it, copied, as a hook may have kept the batch.

    NaN becomes None again, and a sample that a hook gave a reward no longer counts as failed.
    """
    import torch

    own = copied(experience)
    assert own.reward is not None, "hooks are shown rewards, and setting them to None is refused"
    own.reward = own.reward.detach().to("cpu", torch.float32)
    if own.action_mask is not None:
        own.action_mask = own.action_mask.detach().to("cpu").bool()
    items = split(own)
    for item, has_none in zip(items, own.reward.isnan().tolist(), strict=True):
        if has_none:
            item.reward = None
        else:
            item.facts = item.facts.without_failure()
    return items


def _faults(before: Experience, after: Experience) -> Iterator[str]:
    """The changes that are not allowed. Each check relies on those before it, so only the first fault is valid."""
    known = [field.name for field in fields(Experience)]
    for name in vars(after).keys() - set(known):
        yield f"gave the experience a {name!r}, which it does not have{did_you_mean(name, CHANGEABLE)}"
    for name in known:
        if name not in CHANGEABLE and not _same(getattr(before, name), getattr(after, name)):
            yield f"changed {name!r} of the experience"
    yield from _reward_faults(before.reward, after.reward)
    if after.reward is not None:
        yield from _trajectory_faults(after.uids, after.reward.tolist())
    yield from _mask_faults(before, after.action_mask)


def _reward_faults(before: torch.Tensor | None, after: Any) -> Iterator[str]:
    if before is None:
        if after is not None:
            yield "gave a 'reward' to an experience that has none"
        return
    if not _is_like(after, before) or after.dtype.is_complex:
        yield f"set 'reward' to {_describe(after)}, not to one number for each of {len(before)} samples"
    for row, (old, new) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        had_none = old != old  # NaN
        fault = fault_of(float(new))
        if fault and not (had_none and new != new):
            yield f"set the reward of sample {row} to {new:g}, {fault}"


def _trajectory_faults(uids: Sequence[str], rewards: Sequence[float]) -> Iterator[str]:
    for rows in rows_by_uid(uids):
        own = {rewards[row] for row in rows if rewards[row] == rewards[row]}
        if len(own) > 1:
            yield (
                f"gave rows {rows[0]} to {rows[-1]}, which are one trajectory ({uids[rows[0]]}), different rewards: "
                "the reward is the trajectory's, so give all of its rows the same"
            )


def _mask_faults(before: Experience, after: Any) -> Iterator[str]:
    if before.action_mask is None and after is None:
        return
    like = before.action_log_probs
    if not _is_like(after, like) or not bool(((after == 0) | (after == 1)).all()):
        yield f"set 'action_mask' to {_describe(after)}, not to true or false for each sampled token"
    mask_BA = after.bool()
    sampled = before.attention_mask
    if sampled is not None and bool((mask_BA & ~sampled[:, -like.shape[1] :].bool()).any()):
        yield "set 'action_mask' at places where no token was sampled"
    if before.versions is not None and bool((mask_BA & (before.versions == NO_VERSION)).any()):
        yield "set 'action_mask' at tokens that the environment wrote, not the policy"
    if sampled is not None:
        mask_BA = mask_BA | ~sampled[:, -like.shape[1] :].bool().any(-1, keepdim=True)  # ended before its first token
    empty = (~mask_BA.any(-1)).nonzero().flatten().tolist()
    if empty:
        yield f"took every token of sample {empty[0]} out of 'action_mask', and one at least must stay"


def _is_like(value: Any, tensor: torch.Tensor) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.shape == tensor.shape


def _same(left: Any, right: Any) -> bool:
    import torch

    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.shape != right.shape or left.dtype != right.dtype or left.device != right.device:
            return False
        return bool(((left == right) | ((left != left) & (right != right))).all())  # NaN is like NaN
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return False
    return bool(left == right)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{value!r:.40}" if shape is None else f"{value.dtype} of shape {tuple(shape)}"
