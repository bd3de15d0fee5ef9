"""The rows in which a backend of the native engine decodes: one version of the weights, a row for each sequence."""

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
    def cache_tokens(self) -> int:
        """The tokens of the cache that are taken, including kept ones."""

    def tokens_alone(self, sequence: DecodedSequence) -> int:
        """The tokens of an empty cache that a sequence takes."""

    def tokens_needed(self, entering: Sequence[DecodedSequence]) -> int:
        """The tokens that these sequences take in addition when they enter."""

    def enter(self, sequences: Sequence[DecodedSequence]) -> None:
        """Give rows to these sequences, computing their prompts and first tokens."""

    def step(self) -> None:
        """Decode one more token of every sequence."""

    def kept(self, row: int) -> object:
        """A copy of a row's cache, for a request that continues it."""

    def drop(self, kept: object) -> None:
        """Release a kept copy."""

    def remove(self, rows: Iterable[int]) -> None:
        """Free rows."""

    def forget_prompts(self, is_awaited: Callable[[Group], bool]) -> None:
        """Release the prompts of groups without waiting sequences."""

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The log-probabilities of each sequence's tokens but the first, by steps as in decoding."""

    def changing(self) -> AbstractContextManager[None]:
        """A context in which the weights may be written."""

    def compact(self, entering: Sequence[DecodedSequence]) -> None:
        """Reorganise memory before these sequences enter, or the first of them."""

    def release(self) -> None:
        """Free all memory that is not needed now."""
