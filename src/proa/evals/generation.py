"""What evals generate with: an engine, prompts and seeds of their own."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from ..config import DetachedConfig, RunConfig
from ..config.sections import EngineSection
from ..data.lease import Prompt, sample_seed
from ..policy.trainable import Trainable
from ..rollouts import VersionedEngine
from ..tasks.prompts import row_values, tokenise
from ..tasks.task import TaskRow


class EvalEngine:
    """An eval's own engine: built at the first use and kept, with the weights as they were when they were loaded."""

    def __init__(self, section: EngineSection) -> None:
        self._section = section
        self._engine: VersionedEngine | None = None

    def load(self, policy: Trainable, version: int) -> VersionedEngine:
        """Take the policy's weights as they are now; all of them are in this process."""
        weights = policy.whole()
        if self._engine is None:
            self._engine = VersionedEngine(self._section.make(policy.model, policy.end_ids))
        self._engine.load(weights, version)
        return self._engine


def eval_prompts(rows: Sequence[TaskRow], tokenizer: PreTrainedTokenizerBase, *, where: str) -> list[Prompt]:
    """The prompts of an eval, tokenised; one that cannot be used is refused with its place."""
    return [
        Prompt(
            place,
            tokenise(row, tokenizer, values=row_values(row), where=f"{where}, prompt {place}"),
            row.prompt,
            row.columns,
        )
        for place, row in enumerate(rows)
    ]


def system_prompt_of(config: RunConfig) -> str | None:
    """What prompts are given before them, as in training."""
    return config.task.system_prompt if isinstance(config, DetachedConfig) else None


def eval_seeds(seed: int, prompts: int, samples: int) -> list[list[int]]:
    """A seed for each sample, none of which training uses: the ordinals of its prompts are never negative."""
    return [[sample_seed(seed, -1 - place, sample) for sample in range(samples)] for place in range(prompts)]
