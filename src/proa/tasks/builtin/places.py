"""Scores an answer of known length: character by character for training, as a whole for evaluation."""

# ruff: noqa: ARG001 - a reward has the parameters of its signature, used or not

from __future__ import annotations

from typing import Any


def by_place(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """The share of correct characters, over the longer of completion and answer.

    Missing and superfluous characters count as wrong, and only the exact answer earns 1.

    >>> by_place(["594833>"] * 4, ["334589", "334598", "33458", "3345899"], ["334589"] * 4)
    [1.0, 0.6666666666666666, 0.8333333333333334, 0.8571428571428571]
    """
    return [
        sum(a == b for a, b in zip(given, expected, strict=False)) / max(len(given), len(expected))
        for given, expected in zip(completions, answer, strict=True)
    ]


def exact(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """1 for the exact answer, 0 for any other."""
    return [float(given == expected) for given, expected in zip(completions, answer, strict=True)]
