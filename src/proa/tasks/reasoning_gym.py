"""reasoning-gym datasets, which score answers themselves."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..spelling import did_you_mean
from .task import TaskError

PREFIX = "reasoning_gym:"
_DEFAULTS = {"seed": 0, "size": 500}
"""Without a seed the library draws one, and every run would have different rows."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def looks_like_reasoning_gym(source: Any) -> bool:
    """Whether an object has the attributes of a reasoning-gym dataset."""
    if not all(hasattr(source, name) for name in ("score_answer", "__len__", "__getitem__")):
        return False
    if len(source) == 0:
        return True
    first = source[0]
    return isinstance(first, Mapping) and {"question", "answer", "metadata"} <= first.keys()


def named_dataset(source: str) -> Any:
    """The dataset for `reasoning_gym:name?seed=1&size=200`, with any of its settings."""
    name, _, query = source.removeprefix(PREFIX).partition("?")
    pairs = dict(one.partition("=")[::2] for one in query.split("&") if one)
    try:
        library = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError:
        raise TaskError(f"task {source!r} needs reasoning-gym: pip install reasoning-gym") from None
    known = library.factory.DATASETS
    if name not in known:
        hint = (did_you_mean(name, known) if name else "") or f": there are {len(known)}, e.g. chain_sum"
        raise TaskError(f"reasoning-gym has no dataset {name!r}{hint}")
    try:
        settings = {**_DEFAULTS, **{key: yaml.safe_load(value) for key, value in pairs.items()}}
        for key in _DEFAULTS:
            if type(settings[key]) is not int:
                raise ValueError(f"{key} must be an integer, not {pairs[key]!r}")
        dataset = library.create_dataset(name, **settings)
        dict(dataset[0])  # some mistakes show only when a row is created
        return dataset
    except (TypeError, ValueError, AssertionError, IndexError, RecursionError, yaml.YAMLError) as error:
        raise TaskError(f"task {source!r} cannot be created: {error}") from error


class ReasoningGymReward:
    """The dataset's own `score_answer` as a reward, of the last `<answer>…</answer>` or else the whole completion."""

    __name__ = "score_answer"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(
        self, prompts: list[str], completions: list[str], answer: list[Any], metadata: list[Any], **columns: Any
    ) -> list[float | None]:
        entries = (
            {"question": question, "answer": expected, "metadata": facts}
            for question, expected, facts in zip(prompts, answer, metadata, strict=True)
        )
        answers = ((_ANSWER.findall(completion) or [completion])[-1].strip() for completion in completions)
        return [self._dataset.score_answer(text, entry) for text, entry in zip(answers, entries, strict=True)]
