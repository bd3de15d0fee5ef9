"""What every backend of the native engine decodes in: one version of the weights, and a row for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from .decoder import Decoder
    from .sequences import DecodedSequence, Group


class DecodingRows(Protocol):
    """The sequences that are decoded with one version of the weights, each in a row."""

    decoder: Decoder
    live: list[DecodedSequence]

    @property
    def cache_tokens(self) -> int: ...

    def tokens_alone(self, sequence: DecodedSequence) -> int: ...

    def tokens_needed(self, entering: Sequence[DecodedSequence]) -> int: ...

    def enter(self, sequences: Sequence[DecodedSequence]) -> None: ...

    def step(self) -> None: ...

    def kept(self, row: int) -> object: ...

    def drop(self, kept: object) -> None: ...

    def remove(self, rows: Iterable[int]) -> None: ...

    def forget_prompts(self, is_awaited: Callable[[Group], bool]) -> None: ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]: ...

    def changing(self) -> AbstractContextManager[None]: ...

    def compact(self) -> None: ...

    def release(self) -> None: ...
