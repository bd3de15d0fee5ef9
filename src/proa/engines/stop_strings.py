"""Strings that end a completion, found in the text of its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CUT = 8
"""Characters by which the beginning of decoded text may differ: a space that decoders drop there, or the rest of a
multi-byte character."""


class StopStrings:
    """Stop strings, and the tokenizer of the tokens. Special tokens count by their text."""

    def __init__(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        if not all(texts):
            raise SettingError("sampling.stop has an empty text, which would end every completion: leave it out")
        self.texts = tuple(texts)
        self.longest = max(map(len, self.texts))
        self._tokenizer = tokenizer

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


class StopWatch:
    """Watches one completion as it grows. The result depends only on the sequence of tokens, not on how many arrive at
    once."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._last: list[int] = []  # recent tokens: no stop string can begin before them

    def is_ended_by(self, token: int) -> bool:
        """Take in the next token; returns whether it completes a stop string."""
        stops = self._stops
        self._last.append(token)
        text = stops.decode(self._last)
        if any(stop in text for stop in stops.texts):
            return True
        if len(text) > 2 * (stops.longest + _CUT):
            later = self._last[len(self._last) // 2 :]
            if len(stops.decode(later)) >= stops.longest + _CUT:
                self._last = later
        return False
