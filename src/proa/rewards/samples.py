"""The arguments of reward functions: prompts, completions and the task's columns, one entry per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.messages import Messages

SAMPLED = ("prompt_ids", "completion_ids", "policy_version")
"""Columns that come from sampling: tokens, and the version of the weights. The task's own of these names come first."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Prompts, completions and columns of equal length."""

    prompts: list[str | Messages]
    completions: list[str | Messages]
    columns: dict[str, list[Any]]

    @classmethod
    def collect(
        cls,
        prompts: Sequence[str | Messages],
        completions: Sequence[str | Messages],
        columns: Mapping[str, Sequence[Any]] | None = None,
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
        return cls(list(prompts), answers, lists)

    def __len__(self) -> int:
        return len(self.prompts)

    def one(self, index: int) -> Samples:
        """One sample as a batch."""
        columns = {name: [column[index]] for name, column in self.columns.items()}
        return Samples([self.prompts[index]], [self.completions[index]], columns)
