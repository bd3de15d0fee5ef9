"""Limits of rewards."""

from __future__ import annotations

import math

LARGEST = 1e18
"""The largest magnitude of a reward. Rewards are float32, and group statistics sum their squares: 300 squares of 1e18
still fit, while squares of 1e30 are infinite, and advantages divided by their root would be 0."""


def fault_of(value: float) -> str:
    """Why a number cannot be a reward; empty if it can.

    >>> fault_of(1e30)
    'beyond what a reward may be: at most 1e+18 either way'
    """
    if not math.isfinite(value):
        return "not a finite number"
    return "" if abs(value) <= LARGEST else f"beyond what a reward may be: at most {LARGEST:g} either way"
