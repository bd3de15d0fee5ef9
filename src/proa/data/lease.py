"""Leases, the pieces in which generation work is handed out, and their deliveries."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from ..errors import ProaError
from .experience import ACTION_LIKE, BufferItem
from .facts import ENDINGS, SampleFacts
from .sampling import FinishReason
from .trajectories import split_samples
from .versions import NO_VERSION

ROUNDING = 1e-4
"""How far above 0 a log-probability may be, because of rounding."""


class GarbageError(ProaError, ValueError):
    """A delivery does not match its lease."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in its place in the run's seeded order (`ordinal` continues over passes of the data)."""

    ordinal: int
    tokens: tuple[int, ...]
    """Empty if an environment gives the model its prompt."""
    text: Any
    """The prompt in the task: a string, or chat messages."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the task's row, which rewards get by name."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A fixed piece of generation work, determined by its id and version alone."""

    id: int
    version: int
    prompts: tuple[Prompt, ...]
    seeds: tuple[tuple[int, ...], ...]
    """For each prompt, one seed per sample."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.seeds))


Span: TypeAlias = tuple[str, float, float]
"""A piece of an actor's work: its kind, its start (seconds since the epoch), and its duration in seconds."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The samples of a lease: the rows of each, in whole groups and in the lease's order."""

    lease_id: int
    items: tuple[BufferItem, ...]
    made_by: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The maker's time by kind of activity, including the wait before it."""
    spans: tuple[Span, ...] = ()
    """The pieces of this time."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Metrics that hooks of its maker logged."""
    probe_gap: float | None = None
    """The gap between engine and trainer, if weights were loaded since the maker's last delivery."""

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(item.sampled_length for item in self.items)


def check_delivery(lease: Lease, delivery: Delivery) -> None:
    """Raise `GarbageError` unless the delivery matches its lease, naming the sample and the fault."""
    for item in delivery.items:
        if not isinstance(item, BufferItem):
            raise GarbageError(f"lease {lease.id}: a {type(item).__name__} is not a BufferItem")
    samples = split_samples(delivery.items)
    pairs = zip(lease.prompts, lease.seeds, strict=True)
    places = [(prompt, sample) for prompt, seeds in pairs for sample in range(len(seeds))]
    if len(delivery.items) < lease.samples:
        raise GarbageError(f"lease {lease.id} has {lease.samples} samples, {len(delivery.items)} were delivered")
    for (prompt, sample), rows in zip(places, samples, strict=False):
        for place, item in enumerate(rows):
            _refuse(next(_faults(item, prompt, sample, place), ""), lease, prompt, sample)
    if len(samples) != lease.samples:
        raise GarbageError(f"lease {lease.id} has {lease.samples} samples, {len(samples)} were delivered")
    if not _has_valid_numbers(delivery.items, lease.version):  # all at once: one by one takes many times as long
        for (prompt, sample), rows in zip(places, samples, strict=True):
            for item in rows:
                _refuse(next(_number_faults(item, lease.version), ""), lease, prompt, sample)


def _refuse(fault: str, lease: Lease, prompt: Prompt, sample: int) -> None:
    if fault:
        raise GarbageError(f"lease {lease.id}, sample {prompt.ordinal}/{sample}: {fault}")


def _faults(item: BufferItem, prompt: Prompt, sample: int, place: int) -> Iterator[str]:
    """The faults of an item, the row at this place of its sample, except of its numbers. Each check relies on those
    before it, so only the first fault is valid."""
    if (item.uid, item.group_id) != (f"{prompt.ordinal}/{sample}", str(prompt.ordinal)):
        yield f"in its place is sample {item.uid!r} of group {item.group_id!r}"
    yield from _token_faults(item, prompt, place)
    yield from _action_faults(item)
    if item.versions is None:
        yield "it does not say which version sampled it"
    if item.reward is not None and not _is_tensor(item.reward, 0):
        yield _wrong_reward(item)
    yield from _fact_faults(item)


def _wrong_reward(item: BufferItem) -> str:
    return f"its reward is {_describe(item.reward)}, not a finite number in a tensor, or None where there is none"


def _has_valid_numbers(items: Sequence[BufferItem], version: int) -> bool:
    """Whether `_number_faults` would find nothing in any item."""
    import torch

    items = [item for item in items if item.action_length]
    if not items:
        return True
    if bool(torch.cat([item.sequences for item in items]).min() < 0):
        return False
    floats = [
        values.flatten()
        for name in (*ACTION_LIKE, "reward")
        for item in items
        if (values := getattr(item, name)) is not None and values.dtype.is_floating_point
    ]
    if not bool(torch.cat(floats).isfinite().all()):
        return False
    if float(torch.cat([item.action_log_probs for item in items]).max()) > ROUNDING:
        return False
    versions_T = torch.cat([item.versions for item in items if item.versions is not None])
    if bool(((versions_T != version) & (versions_T != NO_VERSION)).any()):
        return False
    if any(_trains_given_tokens(item) for item in items):
        return False
    masks = [item.action_mask for item in items if item.action_mask is not None]
    return not masks or bool(torch.nn.utils.rnn.pad_sequence(masks, batch_first=True).any(1).all())


def _trains_given_tokens(item: BufferItem) -> bool:
    """Whether the mask includes a token that was not sampled."""
    if item.versions is None:
        return False
    given_A = item.versions == NO_VERSION
    return bool(given_A.any()) and (item.action_mask is None or bool((item.action_mask.bool() & given_A).any()))


def _number_faults(item: BufferItem, version: int) -> Iterator[str]:
    if not item.action_length:
        return
    if int(item.sequences.min()) < 0:
        yield f"token {int(item.sequences.min())} is negative"
    for name in ACTION_LIKE:
        values = getattr(item, name)
        if values is not None and values.dtype.is_floating_point and not bool(values.isfinite().all()):
            yield f"its {name} is not finite everywhere"
    highest = float(item.action_log_probs.max())
    if highest > ROUNDING:
        yield f"a log-probability is {highest:g}, and none is above 0"
    if item.action_mask is not None and not bool(item.action_mask.any()):
        yield "its action_mask leaves none of its sampled tokens"
    if _trains_given_tokens(item):
        yield "its action_mask has tokens that were not sampled (their version is -1)"
    if item.versions is not None and set(item.versions.tolist()) - {version, NO_VERSION}:
        others = sorted(set(item.versions.tolist()) - {version, NO_VERSION})
        yield f"it was sampled with version {', '.join(map(str, others))}, not with version {version}"
    if item.reward is not None and not bool(item.reward.isfinite()):
        yield _wrong_reward(item)


def _token_faults(item: BufferItem, prompt: Prompt, place: int) -> Iterator[str]:
    import torch  # slow to import, and most of this package works without it

    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    tokens, log_probs, mask = item.sequences, item.action_log_probs, item.attention_mask
    if not _is_tensor(tokens, 1) or tokens.dtype not in integers:
        yield f"its tokens are {_describe(tokens)}, not a row of integers"
    if not _is_tensor(log_probs, 1) or not log_probs.dtype.is_floating_point:
        yield f"its log-probabilities are {_describe(log_probs)}, not a row of floating-point numbers"
    begins_with_prompt = not place and bool(prompt.tokens)
    length = len(prompt.tokens) if begins_with_prompt else item.prompt_length
    if begins_with_prompt and tokens[:length].tolist() != list(prompt.tokens):
        yield f"it does not begin with the {length} tokens of its prompt"
    if len(tokens) == length and not (item.reward is None and getattr(item.facts, "trajectory", None) is not None):
        yield "it has no completion, and at least one token is always sampled"
    if len(log_probs) != len(tokens) - length:
        yield f"it has {len(log_probs)} log-probabilities for {len(tokens) - length} sampled tokens"
    if mask is not None and not (_is_tensor(mask, 1) and len(mask) == len(tokens)):
        yield f"its attention_mask is {_describe(mask)}, not one value for each of its {len(tokens)} tokens"


def _action_faults(item: BufferItem) -> Iterator[str]:
    count = item.action_length
    for name in ACTION_LIKE:
        values = getattr(item, name)
        if values is None:
            continue
        whole = name in _PER_SEQUENCE and _is_tensor(values, 0)
        if not whole and not (_is_tensor(values, 1) and len(values) == count):
            yield f"its {name} is {_describe(values)}, not one value for each of its {count} sampled tokens"


def _fact_faults(item: BufferItem) -> Iterator[str]:
    facts: Any = item.facts
    if not isinstance(facts, SampleFacts):
        yield f"its facts are {facts!r:.40}, not SampleFacts"
    if facts.finish_reason not in (None, *get_args(FinishReason)):
        yield f"its finish_reason is {facts.finish_reason!r:.40}, not one of {', '.join(get_args(FinishReason))}"
    if not isinstance(facts.reward_parts, Mapping):
        yield f"the parts of its reward are {facts.reward_parts!r:.40}, not numbers by name"
    for name, value in facts.reward_parts.items():
        if value is not None and not isinstance(value, numbers.Real):
            yield f"the part {name!r} of its reward is {value!r:.40}, not a number, or None where there is none"
    if not isinstance(facts.reward_logged, Mapping):
        yield f"what its reward logged is {facts.reward_logged!r:.40}, not values by name"
    for name, value in facts.reward_logged.items():
        if not isinstance(value, numbers.Real | str):
            yield f"{name!r}, which its reward logged, is {value!r:.40}, not a number or text"
    if facts.trajectory is not None and facts.trajectory.ending not in ENDINGS:
        yield f"its ending is {facts.trajectory.ending!r:.40}, not one of {', '.join(ENDINGS)}"
    if item.reward is not None and (facts.reward_failure or facts.reward_error):
        yield f"it has a reward, and its facts say why it has none: {facts.reward_error or facts.reward_failure}"


_PER_SEQUENCE = ("values", "advantages")
"""These may be one number for the whole sequence."""


def _is_tensor(value: Any, dimensions: int) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.dim() == dimensions


def _describe(value: Any) -> str:
    """A value as error messages show it: numbers as they are, tensors by their shape."""
    if not hasattr(value, "shape"):
        return f"{value!r:.40}"
    return f"{value.item():g}" if not value.shape else f"{value.dtype} of shape {tuple(value.shape)}"


def sample_seed(run_seed: int, ordinal: int, sample: int) -> int:
    """The seed of one sample's random stream, independent of which maker generates it, and when.

    >>> sample_seed(0, 5, 1) == sample_seed(0, 5, 1) != sample_seed(0, 5, 2)
    True
    """
    digest = hashlib.blake2b(f"{run_seed}/{ordinal}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch's generators take 63 bits
