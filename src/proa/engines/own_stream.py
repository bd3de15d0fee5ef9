"""A GPU's stream for one thread: what it launches waits neither for what other threads launch, nor they for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OwnStream:
    """For one user at a time. It is kept, because memory that was taken on a stream is only used again on that one."""

    def __init__(self, device: torch.device | None) -> None:
        """Without a GPU it is nothing."""
        is_gpu = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, launches go to it; what they read must be complete. In the end they are done."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()
