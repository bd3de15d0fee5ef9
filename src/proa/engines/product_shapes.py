"""How many rows the products of an engine have."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 8
"""Products have a multiple of so many rows: with 8 or more, a row's bits rarely depend on how many there are."""


@dataclass(frozen=True, slots=True)
class ProductShapes:
    """Any multiple of 8 rows; or, where a device's bits depend on that number, one number for decoding and one for
    the tokens of a prompt, which is then computed alone."""

    decoded_rows: int = 0
    prompt_tokens: int = 0

    def rows_for(self, live: int) -> int:
        """Of a decode step."""
        return self.decoded_rows or padded(live)

    def tokens_for(self, length: int) -> int:
        """Of a pass over so many tokens of one sequence."""
        return self.prompt_tokens or padded(length)

    def prompts_for(self, length: int, budget: int) -> int:
        """How many prompts of that length are computed in one pass."""
        return 1 if self.prompt_tokens else max(1, budget // self.tokens_for(length))


def padded(count: int) -> int:
    """The next multiple of 8.

    >>> padded(1), padded(8), padded(9)
    (8, 8, 16)
    """
    return -(-count // ROWS) * ROWS
