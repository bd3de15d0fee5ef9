"""Suggests the nearest correct name for a wrong one, in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import commonprefix


def nearest(wrong: str, names: Iterable[str]) -> list[str]:
    """The names with the fewest edits, if few enough for a typo; several if they are equally near.

    >>> nearest("step_ned", ["step_end", "epoch_end"])
    ['step_end']
    >>> nearest("ait_end", ["wait_end", "fit_end", "train_end"])
    ['fit_end', 'wait_end']
    >>> nearest("zebra", ["step_end", "epoch_end"])
    []
    >>> nearest("GRPO", ["ppo", "grpo"])
    ['grpo']
    """
    names = list(names)
    if same := sorted(name for name in names if name.lower() == wrong.lower()):
        return same
    fewest = max(2, len(wrong) // 3)
    found: list[str] = []
    # The most similar names first, so that the others can be abandoned early.
    for name in sorted(names, key=lambda name: -len(commonprefix((wrong, name)))):
        edits = edit_distance(wrong, name, at_most=fewest)
        if edits < fewest:
            fewest, found = edits, []
        if edits <= fewest:
            found.append(name)
    return sorted(found)


def did_you_mean(wrong: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing if no name is near."""
    found = nearest(wrong, names)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def edit_distance(a: str, b: str, *, at_most: int = 1_000_000) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.

    Beyond `at_most` the exact number does not matter, and counting stops.
    """
    if abs(len(a) - len(b)) > at_most:
        return at_most + 1
    # Without the common beginning and end.
    same = len(commonprefix((a, b)))
    a, b = a[same:], b[same:]
    same = len(commonprefix((a[::-1], b[::-1])))
    a, b = a[: len(a) - same], b[: len(b) - same]
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, char_a in enumerate(a, start=1):
        before, above, row = row, before, [i]
        for j, char_b in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char_a != char_b))
            if i > 1 and j > 1 and char_a == b[j - 2] and a[i - 2] == char_b:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
        if min(row) > at_most and min(before) > at_most:  # a swap may still reach back one row
            return at_most + 1
    return row[-1]
