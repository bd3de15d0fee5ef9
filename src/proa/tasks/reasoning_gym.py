"""reasoning-gym datasets, which know how to judge an answer themselves."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..spelling import did_you_mean
from .task import TaskError

PREFIX = "reasoning_gym:"
_ALWAYS_THE_SAME = {"seed": 0, "size": 500}
"""Without a seed the library draws one, and every run would have other rows."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def looks_like_reasoning_gym(source: Any) -> bool:
    """Whether something has a reasoning-gym dataset's shape."""
    if not all(hasattr(source, name) for name in ("score_answer", "__len__", "__getitem__")):
        return False
    if len(source) == 0:
        return True
    first = source[0]
    return isinstance(first, Mapping) and {"question", "answer", "metadata"} <= first.keys()


def named_dataset(source: str) -> Any:
    """The dataset that is written as `reasoning_gym:name?seed=1&size=200`, with whatever else it can be given."""
    name, _, written = source.removeprefix(PREFIX).partition("?")
    pairs = dict(one.partition("=")[::2] for one in written.split("&") if one)
    try:
        library = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError:
        raise TaskError(f"task {source!r} is made by reasoning-gym: pip install reasoning-gym") from None
    known = library.factory.DATASETS
    if name not in known:
        hint = (did_you_mean(name, known) if name else "") or f": there are {len(known)}, e.g. chain_sum"
        raise TaskError(f"reasoning-gym has no dataset {name!r}{hint}")
    try:
        settings = {**_ALWAYS_THE_SAME, **{key: yaml.safe_load(value) for key, value in pairs.items()}}
        for key in _ALWAYS_THE_SAME:
            if type(settings[key]) is not int:
                raise ValueError(f"{key} is a whole number, not {pairs[key]!r}")
        dataset = library.create_dataset(name, **settings)
        dict(dataset[0])  # some mistakes are found only when a row is made
        return dataset
    except (TypeError, ValueError, AssertionError, IndexError, RecursionError, yaml.YAMLError) as error:
        raise TaskError(f"task {source!r} cannot be made: {error}") from error


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
