"""Judges an answer of known length: place by place for learning, as a whole for evaluation."""

# ruff: noqa: ARG001 - a reward has the parameters of its signature, used or not

from __future__ import annotations

from typing import Any


def by_place(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """The share of places that hold the right character, over the longer of completion and answer.

    So missing places and superfluous ones both count as wrong, and only the exact answer earns 1.

    >>> by_place(["594833>"] * 4, ["334589", "334598", "33458", "3345899"], ["334589"] * 4)
    [1.0, 0.6666666666666666, 0.8333333333333334, 0.8571428571428571]
    """
    pairs = zip(completions, answer, strict=True)
    return [_right_places(given, wanted) / max(len(given), len(wanted)) for given, wanted in pairs]


def exact(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """1 for the exact answer, 0 for any other."""
    return [float(given == wanted) for given, wanted in zip(completions, answer, strict=True)]


def _right_places(given: str, wanted: str) -> int:
    return sum(a == b for a, b in zip(given, wanted, strict=False))
