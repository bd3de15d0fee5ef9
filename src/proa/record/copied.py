"""A copy of a tree of values for a thread that writes it down while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def copied(tree: Any) -> Any:
    """The same tree with tensors and arrays of its own, on the CPU; everything else in it is plain and is kept."""
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value) for value in tree)
    if hasattr(tree, "detach"):  # a tensor, without importing torch for those who have none
        return tree.detach().to("cpu", copy=True)
    return tree.copy() if hasattr(tree, "dtype") and hasattr(tree, "copy") else tree
