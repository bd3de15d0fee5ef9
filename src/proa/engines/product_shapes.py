"""The number of rows in the products of an engine."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 8
"""Products have a multiple of this many rows: with 8 or more, a row's bits rarely depend on their number."""


@dataclass(frozen=True, slots=True)
class ProductShapes:
    """Any multiple of 8 rows; or, if a device's bits depend on that number, a fixed number for decoding and one for the
    tokens of a prompt, which is then computed alone."""

    decoded_rows: int = 0
    prompt_tokens: int = 0

    def rows_for(self, live: int) -> int:
        """The rows of a decode step."""
        return self.decoded_rows or padded(live)

    def tokens_for(self, length: int) -> int:
        """The tokens, with padding, of a pass over this many of one sequence."""
        return self.prompt_tokens or padded(length)

    def prompts_for(self, length: int, budget: int) -> int:
        """The number of prompts of this length in one pass."""
        return 1 if self.prompt_tokens else max(1, budget // self.tokens_for(length))


def padded(count: int) -> int:
    """The next multiple of 8.

    >>> padded(1), padded(8), padded(9)
    (8, 8, 16)
    """
    return -(-count // ROWS) * ROWS
