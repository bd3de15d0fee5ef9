"""A sample: what one seed made of one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ..data.experience import BufferItem
from ..data.facts import NO_REWARD, OWN_ENDINGS, SampleFacts, TrajectoryFacts, TurnFacts
from ..data.versions import NO_VERSION
from ..rewards.score import Score

if TYPE_CHECKING:
    from ..data.lease import Prompt
    from ..data.sampling import Completion, FinishReason, Sampling
    from ..environments import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model was given to continue, and what it said."""

    prompt: tuple[int, ...]
    completion: Completion
    version: int
    """Of the weights that said it."""
    text: str
    """The completion without special tokens."""
    reward: float | None = None
    """What an environment gave for it."""
    message: Message | None = None
    """The same as a message, with its calls of tools, where it was a turn of a conversation."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and what was said."""
        return (*self.prompt, *self.completion.tokens.tolist())


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory: its turns, and the score of the whole."""

    prompt: Prompt
    index: int
    """Its place among the samples of its prompt."""
    seed: int
    turns: tuple[Turn, ...]
    """None where an environment failed before the first."""
    score: Score = field(default_factory=lambda: Score(None, applies=False))
    facts: TrajectoryFacts | None = None
    """Where there was an environment."""
    error: str | None = None
    """Why it has no score, where it ended in a way that is not the policy's own."""

    @property
    def uid(self) -> str:
        return f"{self.prompt.ordinal}/{self.index}"

    @property
    def text(self) -> str:
        """What was said last."""
        return self.turns[-1].text if self.turns else ""

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.turns[-1].completion.finish_reason if self.turns else None

    @property
    def version(self) -> int:
        """Of the weights that said the last of it."""
        return self.turns[-1].version if self.turns else NO_VERSION

    @property
    def tokens(self) -> int:
        """How many were sampled."""
        return sum(len(turn.completion) for turn in self.turns)

    @property
    def failure(self) -> str | None:
        """Why it has no score; None if it has one, or nobody was asked."""
        return self.error or self.score.error

    @property
    def is_own_ending(self) -> bool:
        """Whether the policy itself ended it, or ran out of room: only then it is scored."""
        return self.facts is None or self.facts.ending in OWN_ENDINGS

    def answer(self) -> Any:
        """What rewards read: text, or the assistant's message; with an environment, all messages after the prompt."""
        if self.facts is not None:
            messages = [dict(message) for message in self.facts.messages]
            first = next((place for place, one in enumerate(messages) if one.get("role") == "assistant"), len(messages))
            return messages[first:]
        return self.text if isinstance(self.prompt.text, str) else [{"role": "assistant", "content": self.text}]

    def turn_facts(self) -> list[TurnFacts]:
        """Its turns for hooks, where there was an environment."""
        return [
            TurnFacts(
                number,
                turn.message or {"role": "assistant", "content": turn.text},
                turn.reward,
                len(turn.completion),
                turn.completion.finish_reason,
                turn.version,
            )
            for number, turn in enumerate(self.turns)
        ]

    def rows(self, sampling: Sampling) -> list[BufferItem]:
        """The sample as experience: exactly the tokens that were sampled, in as few rows as they go on from each
        other."""
        failure, error = self._failure()
        facts = SampleFacts(self.finish_reason, self.score.parts, error, failure, self.score.logged)
        made = [self._row(numbers, facts, sampling) for numbers in join_turns(self.turns)]
        made = made or [self._empty(facts, sampling)]
        made[-1] = replace(made[-1], facts=replace(facts, trajectory=self.facts))
        return made

    def _failure(self) -> tuple[str | None, str | None]:
        """Under which reason the ledger counts it if it has no reward, and the error."""
        if self.facts is not None and not self.is_own_ending:
            return self.facts.ending, self.error or self.score.error
        if self.error is not None:
            return NO_REWARD, self.error
        has_failed = self.score.value is None and self.score.error is not None
        return ("reward_failed", self.score.error) if has_failed else (None, None)

    def _row(self, numbers: Sequence[int], facts: SampleFacts, sampling: Sampling) -> BufferItem:
        """The turns of these numbers, each of which begins with the tokens of the one before it."""
        first, tokens = len(self.turns[numbers[0]].prompt), self.turns[numbers[-1]].tokens
        log_probs = torch.zeros(len(tokens) - first)
        versions = torch.full((len(tokens) - first,), NO_VERSION, dtype=torch.int32)
        is_sampled = torch.zeros(len(tokens) - first, dtype=torch.bool)
        rewards = torch.zeros(len(tokens) - first)
        turns = torch.zeros(len(tokens) - first, dtype=torch.int32)
        for number in numbers:
            turn = self.turns[number]
            start = len(turn.prompt) - first
            end = start + len(turn.completion)
            log_probs[start:end] = turn.completion.log_probs
            versions[start:end] = turn.version
            is_sampled[start:end] = True
            rewards[end - 1] = turn.reward or 0.0
            turns[start:] = number
        value = self.score.value
        return BufferItem(
            torch.tensor(tokens, dtype=torch.long),
            log_probs,
            reward=None if value is None else torch.tensor(value, dtype=torch.float32),
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=is_sampled,
            versions=versions,
            turn_rewards=None if self.facts is None else rewards,
            turns=None if self.facts is None else turns,
            uid=self.uid,
            group_id=str(self.prompt.ordinal),
            sampling=sampling,
            facts=facts,
        )

    def _empty(self, facts: SampleFacts, sampling: Sampling) -> BufferItem:
        """A row for a trajectory in which nothing was sampled: it is counted, and not trained."""
        tokens = torch.tensor(self.prompt.tokens, dtype=torch.long)
        nothing = torch.zeros(0)
        return BufferItem(
            tokens,
            nothing,
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=nothing.bool(),
            versions=nothing.int(),
            turn_rewards=nothing,
            turns=nothing.int(),
            uid=self.uid,
            group_id=str(self.prompt.ordinal),
            sampling=sampling,
            facts=facts,
        )


def join_turns(turns: Sequence[Turn]) -> list[list[int]]:
    """The rows of a trajectory, as numbers of turns: each extends the longest row with whose tokens its prompt begins,
    all of them; where there is none it begins another. The last row is the one that the trajectory ended in."""
    rows: list[list[int]] = []
    for number, turn in enumerate(turns):
        ends = [turns[row[-1]].tokens for row in rows]
        fitting = [place for place, tokens in enumerate(ends) if turn.prompt[: len(tokens)] == tokens]
        row = rows.pop(max(fitting, key=lambda place: len(ends[place]))) if fitting else []
        rows.append([*row, number])
    return rows
