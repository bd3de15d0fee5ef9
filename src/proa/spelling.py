"""The nearest right name to a wrong one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """The name fewest edits away, or None if even that one is a different word.

    >>> nearest("step_ned", ["step_end", "epoch_end"])
    'step_end'
    >>> nearest("zebra", ["step_end", "epoch_end"]) is None
    True
    """
    best = min(names, key=lambda name: (edit_distance(wrong, name), name), default=None)
    if best is None or edit_distance(wrong, best) > max(2, len(best) // 3):
        return None
    return best


def did_you_mean(wrong: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is near."""
    name = nearest(wrong, names)
    return "" if name is None else f"; did you mean {name!r}?"


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, char_a in enumerate(a, start=1):
        before, above, row = row, before, [i]
        for j, char_b in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char_a != char_b))
            if i > 1 and j > 1 and char_a == b[j - 2] and a[i - 2] == char_b:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]
