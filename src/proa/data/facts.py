"""What is known about a sample besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sampling import FinishReason


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """How a sample ended and how it was scored. A user's own experience need not say any of it."""

    finish_reason: FinishReason | None = None
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    """What each part of the reward gave, before its weight; None where it does not apply or failed."""
    reward_error: str | None = None
    """Why there is no reward, in words."""
    reward_failure: str | None = None
    """The reason under which the ledger counts it, e.g. `reward_failed`."""

    reward_logged: Mapping[str, float | str] = field(default_factory=dict)
    """What reward functions logged of it."""

    def with_failure(self, failure: str, error: str) -> SampleFacts:
        return replace(self, reward_failure=failure, reward_error=error)

    def without_failure(self) -> SampleFacts:
        return replace(self, reward_failure=None, reward_error=None)
