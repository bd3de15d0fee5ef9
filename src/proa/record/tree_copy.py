"""A snapshot of nested values for a thread that saves it while training continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def copy_tree(tree: Any) -> Any:
    """The same tree with copies of its tensors and arrays, on the CPU; all other leaves are immutable and shared."""
    if isinstance(tree, Mapping):
        return {key: copy_tree(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copy_tree(value) for value in tree)
    if hasattr(tree, "detach"):  # a tensor; this module does not import torch
        return tree.detach().to("cpu", copy=True)
    return tree.copy() if hasattr(tree, "dtype") and hasattr(tree, "copy") else tree
