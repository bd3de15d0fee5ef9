"""Experience: what makers send and trainers learn from, as a batch and row by row.

A sequence is a prompt and its completion. In a batch the boundary between the two is aligned: prompts are
padded on the left, completions on the right, with 0 and False. `S` is the whole length, `A` the
completion's ("actions"). Where an environment answers between turns, the completion begins with the first sampled token
and ends with the last; the environment's tokens in between are masked. A sample may take several rows (`trajectories`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .facts import SampleFacts
from .versions import NO_VERSION

if TYPE_CHECKING:
    import torch

    from .sampling import Sampling


@dataclass
class SequenceTensors:
    """The tensors of sampled sequences. Whatever the maker did not compute is None, and the trainer computes it.

    In a batch `sequences` and `attention_mask` are `(B, S)`; `action_log_probs`, `values`, `kl`, `advantages`,
    `action_mask` and `versions` are `(B, A)`; `reward` is `(B,)`. In one row they have no B.
    """

    sequences: torch.Tensor
    action_log_probs: torch.Tensor
    values: torch.Tensor | None = None
    reward: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    advantages: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    action_mask: torch.Tensor | None = None
    versions: torch.Tensor | None = field(default=None, kw_only=True)
    """The policy version that sampled each token; `NO_VERSION` for tokens of an environment."""
    old_log_probs: torch.Tensor | None = field(default=None, kw_only=True)
    """The log-probabilities that ratios are relative to; the trainer sets them at the batch's first use."""
    importance: torch.Tensor | None = field(default=None, kw_only=True)
    reference_log_probs: torch.Tensor | None = field(default=None, kw_only=True)
    returns: torch.Tensor | None = field(default=None, kw_only=True)
    turn_rewards: torch.Tensor | None = field(default=None, kw_only=True)
    """`(B, A)`: the environment's reward for each turn, at its last sampled token. `reward` is the whole trajectory's,
    including these."""
    turns: torch.Tensor | None = field(default=None, kw_only=True)
    """`(B, A)`: the number of each token's turn in its trajectory, from 0, which orders the turns of several rows."""


@dataclass
class Experience(SequenceTensors):
    """A batch of sampled sequences: tensors with leading size B, and facts about each sample."""

    uids: tuple[str, ...] = field(default=(), kw_only=True)
    group_ids: tuple[str, ...] = field(default=(), kw_only=True)
    sampling: Sampling | None = field(default=None, kw_only=True)
    facts: tuple[SampleFacts, ...] = field(default=(), kw_only=True)
    """Further facts about each sample: finish reason, parts of its reward."""

    def __len__(self) -> int:
        return self.sequences.shape[0]

    def to_device(self, device: torch.device | str | int) -> None:
        """Move every tensor, in place."""
        for name, tensor in self._tensors():
            setattr(self, name, tensor.to(device))

    def on_cpu(self) -> Experience:
        """A copy on the CPU, for a process without a GPU; itself if it is there already."""
        if all(tensor.device.type == "cpu" for _, tensor in self._tensors()):
            return self
        moved = replace(self)
        moved.to_device("cpu")
        return moved

    def pin_memory(self) -> Experience:
        """Page-lock every tensor for faster copies to a GPU, in place; returns itself for data loaders."""
        for name, tensor in self._tensors():
            setattr(self, name, tensor.pin_memory())
        return self

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        pairs = ((name, getattr(self, name)) for name in _TENSORS)
        return [(name, tensor) for name, tensor in pairs if tensor is not None]


@dataclass
class BufferItem(SequenceTensors):
    """One row of experience, without padding: the unit that buffers hold and makers deal out."""

    uid: str = field(default="", kw_only=True)
    group_id: str = field(default="", kw_only=True)
    sampling: Sampling | None = field(default=None, kw_only=True)
    facts: SampleFacts = field(default_factory=SampleFacts, kw_only=True)

    @property
    def prompt_length(self) -> int:
        return self.sequences.shape[0] - self.action_log_probs.shape[0]

    @property
    def action_length(self) -> int:
        """The number of tokens from the first sampled one on, including an environment's between turns."""
        return self.action_log_probs.shape[0]

    @property
    def sampled_length(self) -> int:
        """The number of sampled tokens."""
        return self.action_length if self.versions is None else int((self.versions != NO_VERSION).sum())


SEQUENCE_LIKE = ("sequences", "attention_mask")
ACTION_LIKE = (
    "action_log_probs", "values", "kl", "advantages", "action_mask", "versions",
    "old_log_probs", "importance", "reference_log_probs", "returns", "turn_rewards", "turns",
)  # fmt: skip
_TENSORS = (*SEQUENCE_LIKE, *ACTION_LIKE, "reward")


def split(experience: Experience) -> list[BufferItem]:
    """The rows of a batch, each without its padding according to `attention_mask`.

    Rewards per sequence stay scalars, and so do advantages and values given per sequence.
    """
    actions = experience.action_log_probs.shape[1]
    prompts = experience.sequences.shape[1] - actions
    items = []
    for row, (first, last) in enumerate(_extents(experience, prompts)):
        item = BufferItem(
            experience.sequences[row, first:last],
            experience.action_log_probs[row, : last - prompts],
            uid=experience.uids[row] if experience.uids else "",
            group_id=experience.group_ids[row] if experience.group_ids else "",
            sampling=experience.sampling,
            facts=experience.facts[row] if experience.facts else SampleFacts(),
        )
        for name, tensor in experience._tensors():
            if name in SEQUENCE_LIKE:
                setattr(item, name, tensor[row, first:last])
            elif tensor.dim() > 1:
                setattr(item, name, tensor[row, : last - prompts])
            else:
                setattr(item, name, tensor[row])
        items.append(item)
    return items


def merge(items: Sequence[BufferItem]) -> Experience:
    """One batch of rows of different lengths, boundaries aligned.

    An item without an attention mask counts as unpadded, and gets one if merging pads it. A field must be set in all
    rows or in none.
    """
    if not items:
        raise ValueError("nothing to merge: a batch has at least one row")
    whole, sampled = _Places.for_sequences(items), _Places.for_actions(items)
    merged = Experience(
        whole.stack([item.sequences for item in items]),
        sampled.stack([item.action_log_probs for item in items]),
        uids=tuple(item.uid for item in items),
        group_ids=tuple(item.group_id for item in items),
        sampling=items[0].sampling,
        facts=tuple(item.facts for item in items),
    )
    for name in _TENSORS[1:]:
        tensors = [getattr(item, name) for item in items]
        if name in ("attention_mask", "action_mask"):
            tensors = _complete_masks(tensors, items, name)
        if all(tensor is None for tensor in tensors):
            continue
        if any(tensor is None for tensor in tensors):
            raise ValueError(f"{name} is there for some rows and missing for others")
        setattr(merged, name, (whole if name in SEQUENCE_LIKE else sampled).stack(tensors))
    return merged


def _extents(experience: Experience, prompts: int) -> list[tuple[int, int]]:
    """The first and last places of the real tokens of each row; padding is at the two ends only."""
    import torch

    width = experience.sequences.shape[1]
    if experience.attention_mask is None:
        return [(0, width)] * len(experience)
    mask_BS = experience.attention_mask.bool()
    places_S = torch.arange(width + 1, device=mask_BS.device)
    boundary_B1 = places_S[prompts].expand(len(mask_BS), 1)  # where a row has nothing on one side of it
    before_BP = places_S[:prompts].where(mask_BS[:, :prompts], prompts)
    after_BA = places_S[prompts + 1 :].where(mask_BS[:, prompts:], prompts)
    firsts = torch.cat((before_BP, boundary_B1), 1).amin(1).tolist()
    lasts = torch.cat((after_BA, boundary_B1), 1).amax(1).tolist()
    return list(zip(firsts, lasts, strict=True))


def _complete_masks(
    masks: list[torch.Tensor | None], items: Sequence[BufferItem], name: str
) -> list[torch.Tensor | None]:
    """Masks for all rows, if any row has one or padding makes them necessary."""
    ragged = len({(item.prompt_length, item.action_length) for item in items}) > 1
    if not ragged and all(mask is None for mask in masks):
        return masks
    like = "sequences" if name == "attention_mask" else "action_log_probs"
    return [
        getattr(item, like).new_ones(getattr(item, like).shape).bool() if mask is None else mask
        for mask, item in zip(masks, items, strict=True)
    ]


class _Places:
    """The places of values of rows of different lengths in a batch of zeros, with prompts aligned right and completions
    aligned left."""

    def __init__(self, width: int, firsts: Sequence[int], lengths: Sequence[int]) -> None:
        import torch  # slow to import, and most of this package works without it

        self._shape = (len(lengths), width)
        lengths_B = torch.tensor(lengths)
        starts_B = torch.tensor(firsts) + torch.arange(len(lengths)) * width
        before_B = lengths_B.cumsum(0) - lengths_B
        self._places = (starts_B - before_B).repeat_interleave(lengths_B) + torch.arange(int(lengths_B.sum()))

    @classmethod
    def for_sequences(cls, items: Sequence[BufferItem]) -> _Places:
        prompts = max(item.prompt_length for item in items)
        width = prompts + max(item.action_length for item in items)
        return cls(width, [prompts - item.prompt_length for item in items], [len(item.sequences) for item in items])

    @classmethod
    def for_actions(cls, items: Sequence[BufferItem]) -> _Places:
        lengths = [item.action_length for item in items]
        return cls(max(lengths), [0] * len(items), lengths)

    def stack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor of all rows; scalars are stacked."""
        import torch

        if tensors[0].dim() == 0:
            return torch.stack([tensor.to(tensors[0]) for tensor in tensors])
        flat = torch.cat(list(tensors))
        stacked = flat.new_zeros(self._shape)
        stacked.view(-1)[self._places.to(flat.device)] = flat
        return stacked
