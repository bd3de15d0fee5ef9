"""reasoning-gym datasets, which know how to judge an answer themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def looks_like_reasoning_gym(source: Any) -> bool:
    """Whether something has a reasoning-gym dataset's shape."""
    if not all(hasattr(source, name) for name in ("score_answer", "__len__", "__getitem__")):
        return False
    if len(source) == 0:
        return True
    first = source[0]
    return isinstance(first, Mapping) and {"question", "answer", "metadata"} <= first.keys()


class ReasoningGymReward:
    """The dataset's own `score_answer`, as a reward.

    What stands in the last `<answer>...</answer>` is judged; without such tags, the whole completion.
    """

    __name__ = "score_answer"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(
        self, prompts: list[str], completions: list[str], answer: list[Any], metadata: list[Any], **columns: Any
    ) -> list[float | None]:
        entries = (
            {"question": question, "answer": right, "metadata": known}
            for question, right, known in zip(prompts, answer, metadata, strict=True)
        )
        given = map(_answer_in, completions)
        return [self._dataset.score_answer(text, entry) for text, entry in zip(given, entries, strict=True)]


def _answer_in(completion: str) -> str:
    tagged = _ANSWER.findall(completion)
    return str(tagged[-1] if tagged else completion).strip()
