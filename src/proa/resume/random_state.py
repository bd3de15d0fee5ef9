"""The process's random streams in a checkpoint. Proa uses none of them; callbacks and rewards of the user may."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's streams, for a checkpoint."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "gauss": gauss},
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
    }


def set_random_state(saved: Mapping[str, Any]) -> None:
    """Restore saved streams; those of missing devices are left out."""
    random.setstate(saved["python"])
    stream = saved["numpy"]
    np.random.set_state(
        (stream["kind"], stream["keys"], stream["position"], stream["has_gauss"], stream["gauss"])
    )  # fmt: skip
    torch.set_rng_state(saved["torch"])
    if torch.cuda.is_available() and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(saved["cuda"])
