"""vLLM's cache of keys and values, as its workers have it."""

from __future__ import annotations

from typing import Any


def clear_cache(worker: Any) -> None:
    """Write zeros into all of it: what is masked counts as 0 times what is there, which must be a number."""
    for cache in getattr(worker, "worker", worker).model_runner.kv_caches:
        cache.zero_()
