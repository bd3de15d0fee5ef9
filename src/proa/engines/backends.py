"""The backends of the native engine: torch on any device, its own kernels on an NVIDIA GPU."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..slow_work import saying_if_slow
from .independence import is_independent, rows_are_independent
from .product_shapes import ProductShapes, padded
from .rows import CHUNK, Rows

if TYPE_CHECKING:
    from .cuda.rows import CudaRows
    from .decoder import Decoder
    from .decoding_rows import DecodingRows

log = logging.getLogger("proa.engines")


class DecodingBackend(Protocol):
    """Makes the rows that an engine decodes in, and limits how many sequences they hold."""

    @property
    def is_independent(self) -> bool:
        """Whether the bits of a sequence depend on no other, as found by trials on this machine."""
        ...

    @property
    def most_tokens(self) -> float:
        """The most tokens in the cache, over all versions."""
        ...

    @property
    def ahead(self) -> int:
        """How many sequences beyond the slots are admitted, so that their prompts are computed before they have a
        row."""
        ...

    @property
    def fewest_entering(self) -> int:
        """How many sequences enter together, if as many wait, so that their prompts share passes."""
        ...

    def rows(self, decoder: Decoder) -> DecodingRows:
        """Rows for one version of the weights."""
        ...

    def taken(self, rows: Sequence[DecodingRows]) -> int:
        """The tokens of the cache that these rows take."""
        ...


class TorchBackend:
    """Torch's products, in shapes for which this machine computes every sequence as if it were alone."""

    def __init__(self, decoder: Decoder, slots: int, end_ids: frozenset[int], cache_tokens: int) -> None:
        self._end_ids = end_ids
        self.fewest_entering, self.ahead = max(1, slots // 8), 0
        self.most_tokens = cache_tokens or math.inf
        free = ProductShapes()
        fixed = [] if decoder.device.type == "cuda" else [ProductShapes(padded(slots), CHUNK)]
        found = next((shapes for shapes in (free, *fixed) if is_independent(decoder, shapes)), None)
        self.shapes, self.is_independent = found or free, found is not None

    def rows(self, decoder: Decoder) -> Rows:
        return Rows(decoder, self.shapes, self._end_ids)

    def taken(self, rows: Sequence[DecodingRows]) -> int:
        return sum(one.cache_tokens for one in rows)


class KernelBackend:
    """Our own kernels in recorded graphs; all versions share the blocks of one cache."""

    def __init__(self, decoder: Decoder, slots: int, end_ids: frozenset[int], cache_tokens: int, context: int) -> None:
        from .cuda.pool import BlockPool, default_tokens
        from .cuda.rows import CudaRows

        self._pool = BlockPool(decoder, cache_tokens or default_tokens(decoder, slots, context), context)
        self._slots, self._end_ids = slots, end_ids
        self.fewest_entering, self.ahead = max(1, slots // 16), slots // 8
        self.most_tokens = self._pool.tokens
        self._first = CudaRows(decoder, self._pool, slots, end_ids)
        with saying_if_slow(
            "the native engine's kernels are being compiled for this GPU and this shape of model, once", log
        ):
            self.is_independent = rows_are_independent(self._first, slots, context, self.most_tokens)

    def rows(self, decoder: Decoder) -> CudaRows:
        from .cuda.rows import CudaRows

        if decoder is self._first.decoder:
            return self._first
        return CudaRows(decoder, self._pool, self._slots, self._end_ids)

    def taken(self, rows: Sequence[DecodingRows]) -> int:
        return rows[0].cache_tokens


def choose_backend(
    decoder: Decoder, slots: int, end_ids: frozenset[int], cache_tokens: int, context: int
) -> DecodingBackend:
    """The fastest backend for the device and the model; on a GPU a warning says why it is not the kernels."""
    if decoder.device.type == "cuda":
        obstacle = _obstacle(decoder)
        if not obstacle:
            return KernelBackend(decoder, slots, end_ids, cache_tokens, context)
        warnings.warn(f"the native engine decodes slowly on this GPU: {obstacle}", stacklevel=2)
    return TorchBackend(decoder, slots, end_ids, cache_tokens)


def _obstacle(decoder: Decoder) -> str:
    """Why the kernels cannot decode this model here; empty if they can."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed (pip install triton)"
    from .cuda.passes import why_not

    return why_not(decoder)
