"""Texts that end a completion, found in what its own tokens decode to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CUT = 8
"""Characters by which the text of some tokens may differ where it begins: a space that decoders leave out there, or the
rest of a character of several bytes."""


class StopStrings:
    """Some texts, and the tokenizer whose tokens they are looked for in. Special tokens count as the text they have."""

    def __init__(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        if not all(texts):
            raise SettingError("sampling.stop has an empty text, which would end every completion: leave it out")
        self.texts = tuple(texts)
        self.longest = max(map(len, self.texts))
        self._tokenizer = tokenizer

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


class StopWatch:
    """Watches one completion as it grows. What it says follows from the completion's tokens alone, one after the other,
    however many of them came at once."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._last: list[int] = []  # tokens, enough of them that no text can begin before and end after them

    def is_ended_by(self, token: int) -> bool:
        """Take in the next token; whether it completes one of the texts."""
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
