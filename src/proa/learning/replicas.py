"""Several trainers as one: each computes its share of every batch, and what they computed is added up.

Every trainer holds the whole batch, which is small beside the model, and computes the rows of its own groups. So
whatever looks at a batch as a whole (advantages, whitening, how a loss is averaged, metrics) is the same code and the
same numbers for one trainer and for many; only what comes out of the model is exchanged.

All trainers call the same methods in the same order. Each call is a meeting: nobody continues before everyone has come,
and one that cannot come says so (`leave`), which ends the meeting for all, at the same step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from ..data.state import StopTraining
from ..errors import ProaError

T = TypeVar("T")


class ReplicaError(ProaError):
    """Another trainer failed or is gone; the message says which, and why."""


class AgreedInterrupt(KeyboardInterrupt):
    """All trainers leave, at the same step and with a checkpoint that each had a part in."""


class Replicas(Protocol):
    """The trainers of one run as one of them sees them."""

    rank: int
    size: int

    def gather(self, value: T) -> list[T]:
        """What each of them has, by rank: a few plain values, as JSON knows them."""

    def from_first(self, value: T) -> T:
        """What rank 0 has; what the others bring is ignored."""

    def collect(self, value: T) -> list[T]:
        """What each of them has, by rank: of any kind that can be pickled, and of any size."""

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add the tensors up over all trainers, in place, to the same bits everywhere."""

    def copy_first_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make the tensors those of rank 0, in place."""

    def leave(self, error: BaseException) -> None:
        """Tell the others that this one will not come to the next meeting, and why."""

    def abandon(self, reason: str) -> None:
        """End every wait here, now and later: the others are known not to come. From any thread."""


class Alone:
    """One trainer."""

    rank = 0
    size = 1

    def gather(self, value: T) -> list[T]:
        return [value]

    def from_first(self, value: T) -> T:
        return value

    def collect(self, value: T) -> list[T]:
        return [value]

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """There is nothing to add."""

    def copy_first_(self, tensors: Sequence[torch.Tensor]) -> None:
        """There is nobody to copy from."""

    def leave(self, error: BaseException) -> None:
        """There is nobody to tell."""

    def abandon(self, reason: str) -> None:
        """Nobody is waited for."""


@contextlib.contextmanager
def leaving_on_error(replicas: Replicas) -> Iterator[None]:
    """Whatever ends the work inside, the others hear of it instead of waiting."""
    try:
        yield
    except (ReplicaError, AgreedInterrupt):
        raise  # they know
    except BaseException as error:
        replicas.leave(error)
        raise


def leaving_message(rank: int, error: BaseException) -> dict[str, Any]:
    """Why a trainer leaves, for the others, in plain values."""
    if isinstance(error, StopTraining):
        return {"stop": True, "reason": error.reason}
    return {"stop": False, "reason": f"trainer_{rank} failed: {type(error).__name__}: {error}"}


def remote_error(said: dict[str, Any]) -> Exception:
    """What the others raise then: a stop is a stop for all, and an error is an error."""
    return StopTraining(said["reason"]) if said["stop"] else ReplicaError(said["reason"])


def added_up(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums by name, in the order of ranks.

    >>> added_up([{"kl": 1.0}, {"kl": 2.0, "entropy": 3.0}, {}])
    {'kl': 3.0, 'entropy': 3.0}
    """
    sums: dict[str, float] = {}
    for report in reports:
        for name, value in report.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def same_gradients(parameters: Sequence[torch.nn.Parameter], replicas: Replicas) -> None:
    """The sum of everyone's gradients, in each. A parameter that nobody used keeps none: the optimizer leaves it be."""
    if replicas.size == 1:
        return
    used: list[Any] = [parameter.grad is not None for parameter in parameters]
    anywhere = [any(flags) for flags in zip(*replicas.gather(used), strict=True)]
    gradients = []
    for parameter, is_used in zip(parameters, anywhere, strict=True):
        if is_used:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(parameter.grad)
    replicas.sum_(gradients)
