"""The tokenizer of the built-in tasks: sixteen characters, made from configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
SEPARATOR = ">"
VOCABULARY = (PAD, END, UNKNOWN, SEPARATOR, "+", " ", *"0123456789")
"""Sixteen entries; a token's id is its place."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; adds nothing by itself, and decodes to the text that went in."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: place for place, token in enumerate(VOCABULARY)}
    characters = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    characters.decoder = decoders.Fuse()  # without spaces between the characters
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=characters,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
