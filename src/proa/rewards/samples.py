"""The arguments of reward functions: prompts, completions and the task's columns, one entry per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..data.messages import Messages

SAMPLED = ("prompt_ids", "completion_ids", "policy_version")
"""Columns that come from sampling: tokens, and the version of the weights. The task's own of these names come first."""


TRAINER_STATE = "trainer_state"
"""The argument that is one object for a whole call, where TRL has its trainer's state."""


@dataclass(frozen=True, slots=True)
class TrainerFacts:
    """What a reward may know of the trainer: where training stood when the weights that sampled were published. The
    trainer itself may be further by now, and how far depends on the machine."""

    global_step: int
    """Optimizer steps that these weights have had."""
    max_steps: int
    """Optimizer steps of the whole run."""
    policy_version: int


@dataclass(frozen=True, slots=True)
class RunLength:
    """How many steps lie between two versions of the weights, and how many a run has.

    >>> RunLength(steps_per_version=4, max_steps=10).facts([2, 2])
    TrainerFacts(global_step=8, max_steps=10, policy_version=2)
    """

    steps_per_version: int
    max_steps: int

    def facts(self, versions: Sequence[int]) -> TrainerFacts:
        """Those of the oldest version: the samples of a call have one, unless they were long under way."""
        version = min(versions)
        return TrainerFacts(min(version * self.steps_per_version, self.max_steps), self.max_steps, version)


@dataclass(frozen=True, slots=True)
class Samples:
    """Prompts, completions and columns of equal length."""

    prompts: list[str | Messages]
    completions: list[str | Messages]
    columns: dict[str, list[Any]]
    trainer: TrainerFacts | None = None

    @classmethod
    def collect(
        cls,
        prompts: Sequence[str | Messages],
        completions: Sequence[str | Messages],
        columns: Mapping[str, Sequence[Any]] | None = None,
        length: RunLength | None = None,
    ) -> Samples:
        """Check the lengths, and turn the completions of chat prompts into messages of the assistant.

        >>> Samples.collect([[{"role": "user", "content": "2+2?"}]], ["4"]).completions
        [[{'role': 'assistant', 'content': '4'}]]
        """
        lists = {name: list(column) for name, column in (columns or {}).items()}
        for name, column in {"completions": completions, **lists}.items():
            if len(column) != len(prompts):
                raise ValueError(f"{len(prompts)} prompts, but {len(column)} entries in {name!r}: one per sample")
        answers = [
            [{"role": "assistant", "content": completion}]
            if isinstance(completion, str) and not isinstance(prompt, str)
            else completion
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        versions = lists.get("policy_version")
        return cls(list(prompts), answers, lists, length.facts(versions) if length and versions else None)

    def __len__(self) -> int:
        return len(self.prompts)

    def one(self, index: int) -> Samples:
        """One sample as a batch."""
        columns = {name: [column[index]] for name, column in self.columns.items()}
        return replace(self, prompts=[self.prompts[index]], completions=[self.completions[index]], columns=columns)

    @property
    def offered(self) -> list[str]:
        """The names that a function may ask for beside prompts and completions."""
        return [*self.columns, *([TRAINER_STATE] if self.trainer is not None else [])]
