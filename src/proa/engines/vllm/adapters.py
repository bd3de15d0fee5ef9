"""Adapters as vLLM takes them: each version under a name, a number and a folder that no other has had.

vLLM keeps what it computed with an adapter under its name: one that is loaded again in its place would go on with keys
and values of the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...policy.adapter_layout import AdapterLayout
from ...policy.saved_adapter import write_adapter

_numbers = itertools.count(1)


@contextmanager
def written_adapter(adapter: Mapping[str, torch.Tensor], layout: AdapterLayout) -> Iterator[Any]:
    """What vLLM calls a new adapter; inside, it lies in a folder for vLLM to read."""
    from vllm.lora.request import LoRARequest

    with TemporaryDirectory(prefix="proa-adapter-") as folder:
        write_adapter(adapter, layout, Path(folder))
        number = next(_numbers)
        yield LoRARequest(f"proa {number}", number, folder)


def noise_adapter(layout: AdapterLayout) -> dict[str, torch.Tensor]:
    """Numbers in the place of an adapter's, so that all of it counts."""
    chance = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=chance) * 0.1 for name, shape in layout.shapes().items()}
