"""A sample: what one seed made of one prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ..data.experience import BufferItem
from ..data.facts import SampleFacts
from ..rewards.score import Score

if TYPE_CHECKING:
    from ..data.lease import Prompt
    from ..data.sampling import Completion, FinishReason, Sampling


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model was given to continue, and what it said."""

    prompt: tuple[int, ...]
    completion: Completion
    version: int
    """Of the weights that said it."""
    text: str
    """The completion without special tokens."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory: its turns, and the score of the whole."""

    prompt: Prompt
    index: int
    """Its place among the samples of its prompt."""
    seed: int
    turns: tuple[Turn, ...]
    score: Score = field(default_factory=lambda: Score(None, applies=False))

    @property
    def text(self) -> str:
        """What was said last."""
        return self.turns[-1].text

    @property
    def finish_reason(self) -> FinishReason:
        return self.turns[-1].completion.finish_reason

    @property
    def version(self) -> int:
        """Of the weights that said it."""
        return self.turns[-1].version

    @property
    def tokens(self) -> int:
        """How many were sampled."""
        return sum(len(turn.completion) for turn in self.turns)

    def rows(self, sampling: Sampling) -> list[BufferItem]:
        """The sample as experience: exactly the tokens that were sampled, one row for each turn."""
        has_failed = self.score.value is None and self.score.error is not None
        facts = SampleFacts(
            self.finish_reason,
            self.score.parts,
            self.score.error if has_failed else None,
            "reward_failed" if has_failed else None,
            self.score.logged,
        )
        return [self._row(turn, facts, sampling) for turn in self.turns]

    def _row(self, turn: Turn, facts: SampleFacts, sampling: Sampling) -> BufferItem:
        completion, value = turn.completion, self.score.value
        tokens = torch.cat([torch.tensor(turn.prompt, dtype=torch.long), completion.tokens.long()])
        return BufferItem(
            tokens,
            completion.log_probs,
            reward=None if value is None else torch.tensor(value, dtype=torch.float32),
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=torch.ones(len(completion), dtype=torch.bool),
            versions=torch.full((len(completion),), turn.version, dtype=torch.int32),
            uid=f"{self.prompt.ordinal}/{self.index}",
            group_id=str(self.prompt.ordinal),
            sampling=sampling,
            facts=facts,
        )
