"""Text as it is streamed: piece by piece it is the text of the whole, with every kind of tokenizer."""

import random

import pytest
from tests.rollouts.talking import byte_tokenizer
from tests.tasks.tiny_tokenizers import KINDS, tiny_tokenizer

from proa.serving.texts import TextStream, visible_text

SOME = [kind for kind in KINDS if kind.endswith(("nothing", "a beginning"))]


def streamed(tokens, tokenizer, stops=(), sizes=(1,)):
    """The pieces, where so many tokens come at a time."""
    stream, pieces, place = TextStream(tokenizer, stops), [], 0
    while place < len(tokens):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream.add(tokens[place : place + size]))
        place += size
    return [*pieces, stream.end(tokens)]


@pytest.mark.parametrize("kind", SOME)
def test_pieces_of_any_tokens_are_the_text_of_the_whole(kind):
    tokenizer, draw = tiny_tokenizer(kind), random.Random(0)
    for _ in range(30):
        tokens = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(1, 30))]
        for sizes in ((1,), (3, 1, 2)):
            assert "".join(streamed(tokens, tokenizer, sizes=sizes)) == visible_text(tokens, tokenizer)


def test_a_character_comes_when_all_of_its_bytes_are_there():
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("é中🙂", add_special_tokens=False)
    assert streamed(tokens, tokenizer) == ["", "é", "", "", "中", "", "", "", "🙂", ""]


def test_what_may_become_a_stop_text_is_held_back_until_it_is_not():
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("a<b</b>", add_special_tokens=False)
    pieces = streamed(tokens, tokenizer, stops=("</b>",))
    assert pieces[:5] == ["", "", "", "a", "<"]
    assert "".join(pieces) == "a<b"


def test_what_was_sent_is_never_part_of_a_stop_text():
    tokenizer, draw = byte_tokenizer(), random.Random(1)
    for _ in range(200):
        text = "".join(draw.choice("ab<") for _ in range(12))
        tokens = tokenizer.encode(text, add_special_tokens=False)
        stops = ("<a", "bb<", "a")[: draw.randrange(1, 3)]
        ends = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=len(text))
        sampled = tokens[:ends]  # an engine's request ends there
        pieces = streamed(sampled, tokenizer, stops)
        assert "".join(pieces) == visible_text(sampled, tokenizer, stops)
