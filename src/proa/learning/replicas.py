"""Several trainers as one: each computes its share of every batch, and the results are summed.

Every trainer holds the whole batch, which is small beside the model, and computes the rows of its own groups. So
everything over a whole batch (advantages, whitening, the mean of the loss, metrics) is the same code with the same
numbers for one trainer and for many; only results of the model are exchanged.

All trainers call the same methods in the same order. Each call is a meeting: none returns before all have come, and a
trainer that cannot come calls `leave`, which ends the meeting for all, at the same step.
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
    """All trainers stop at the same step, after saving a checkpoint together."""


class Replicas(Protocol):
    """All trainers of a run, as seen by one of them."""

    rank: int
    size: int

    def gather(self, value: T) -> list[T]:
        """The value of each rank, in order: a few plain values, as in JSON."""

    def from_first(self, value: T) -> T:
        """The value of rank 0; those of the others are ignored."""

    def collect(self, value: T) -> list[T]:
        """The value of each rank, in order: any picklable value of any size."""

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum the tensors over all trainers, in place, with the same bits everywhere."""

    def copy_first_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of rank 0, in place."""

    def leave(self, error: BaseException) -> None:
        """Tell the others why this one will not come to the next meeting."""

    def abandon(self, reason: str) -> None:
        """End every wait, now and later, as the others will not come; from any thread."""


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
        """Nothing to sum."""

    def copy_first_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing to copy."""

    def leave(self, error: BaseException) -> None:
        """No other trainer to tell."""

    def abandon(self, reason: str) -> None:
        """No waits to end."""


@contextlib.contextmanager
def leaving_on_error(replicas: Replicas) -> Iterator[None]:
    """Tell the other trainers of an error inside, so that they do not wait."""
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
    """The exception for the other trainers: a stop request stops all, an error fails all."""
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
    """Sum gradients over all trainers, in place. A parameter without a gradient anywhere keeps none."""
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
