"""A CUDA stream for one thread, whose launches and those of other threads do not wait for one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OwnStream:
    """For one user at a time. It is reused, as memory allocated on a stream is only reused on that stream."""

    def __init__(self, device: torch.device | None) -> None:
        """Without a GPU it has no effect."""
        is_gpu = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, launches go to the stream; their inputs must be complete. At the end it waits for them."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()
