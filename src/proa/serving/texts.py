"""Tokens as text for clients: whole, as they come, and cut where a stop text begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def visible_text(tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, stops: Sequence[str] = ()) -> str:
    """What a completion says, without special tokens, and without the stop text that ended it."""
    return cut(str(tokenizer.decode(list(tokens), skip_special_tokens=True)), stops)


def cut(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of these.

    >>> cut("4, so the answer", [" answer", ", "])
    '4'
    """
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


class TextStream:
    """A completion's text, piece by piece: its pieces together are `visible_text` of the whole.

    Held back are characters of which only some bytes have come, and what may be the beginning of a stop text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._held = max(map(len, stops), default=1) - 1
        self._tokens: list[int] = []
        self._first = self._read = 0  # where the tokens begin that the next ones are decoded with, and where these do
        self._text = ""
        self._sent = 0

    def add(self, tokens: Sequence[int]) -> str:
        """Take in further tokens; what is certain by now and was not given yet."""
        self._tokens.extend(tokens)
        before = self._decode(self._tokens[self._first : self._read])
        now = self._decode(self._tokens[self._first :])
        if len(now) > len(before) and not now.endswith("\ufffd"):
            self._text += now[len(before) :]
            self._first, self._read = self._read, len(self._tokens)
        certain = cut(self._text[self._sent :], self._stops)
        return self._give(min(self._sent + len(certain), max(self._sent, len(self._text) - self._held)))

    def end(self, tokens: Sequence[int]) -> str:
        """The rest, once all tokens are known."""
        whole = visible_text(tokens, self._tokenizer, self._stops)
        if not whole.startswith(
            self._text[: self._sent]
        ):  # the decoder changed what came before: nothing is taken back
            whole = cut(self._text + self._decode(tokens[self._read :]), self._stops)
        self._text = whole
        return self._give(len(whole))

    def _give(self, end: int) -> str:
        piece, self._sent = self._text[self._sent : end], max(self._sent, end)
        return piece

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
