"""Which numbers can be a reward."""

from __future__ import annotations

import math

LARGEST = 1e18
"""No reward may be larger, either way. Rewards are float32, and group statistics add up their squares: 300 squares of
1e18 still fit, while those of 1e30 are infinite, and every advantage that is divided by their root is 0."""


def fault_of(value: float) -> str:
    """Why a number cannot be a reward; empty if it can.

    >>> fault_of(1e30)
    'beyond what a reward may be: at most 1e+18 either way'
    """
    if not math.isfinite(value):
        return "not a finite number"
    return "" if abs(value) <= LARGEST else f"beyond what a reward may be: at most {LARGEST:g} either way"
