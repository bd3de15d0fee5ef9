"""Whatever a model wrote is text on the page: nothing of it is markup, and nothing of it is unseen."""

import html.parser
import json
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.report.report_records import HOSTILE

from proa.report.html import as_json, plain, tag
from proa.report.scale import Scale, range_of, ticks
from proa.report.text import visible


class Parsed(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.attributes = [], "", {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data):
        self.text += data


@given(st.text())
def test_any_text_is_one_text_and_no_tag(text):
    parsed = Parsed(tag("p", text))
    assert parsed.tags == ["p"]
    assert parsed.text == visible(text)


@given(st.text())
def test_any_text_is_one_attribute(text):
    parsed = Parsed(tag("p", title=text))
    assert parsed.attributes == {"title": visible(text)}
    assert parsed.tags == ["p"]


@given(st.text())
def test_embedded_data_comes_back_and_cannot_end_its_element(text):
    said = as_json({"rows": [text]})
    assert json.loads(said) == {"rows": [visible(text)]}
    assert said.isascii()
    assert not set(said) & set("<>&")


def test_nothing_that_acts_unseen_is_left():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = {
        character for character in visible(every) if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    joiners = {"\u200c", "\u200d"}  # scripts and emoji need them
    prepended = {
        character for character in left if unicodedata.name(character, "").startswith(("ARABIC", "SYRIAC", "KAITHI"))
    }
    harmless = {
        character for character in left if ord(character) > 0x13000 and ord(character) < 0x1D200
    }  # of hieroglyphs, music
    assert left - joiners - prepended - harmless == {"\n", "\t"}


def test_a_direction_cannot_be_turned():
    assert visible("a\u202eb\u2066c") == "a⟨U+202E⟩b⟨U+2066⟩c"


def test_half_a_character_can_be_written():
    visible(HOSTILE).encode("utf-8")


def test_numbers_on_a_page_are_short_and_gaps_are_none():
    assert plain([1.23456789, float("nan"), float("inf"), 3.0, True, None]) == [1.23457, None, None, 3, True, None]


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
@example(0.0, 5e-324)
@example(1e300, -1e308)
@example(1e-295, 1e-295)
def test_every_range_has_ticks_within_it(one, other):
    low, high = range_of([one, other])
    assert low < high
    marks = ticks(low, high)
    room = (high - low) * 1e-6
    assert all(low - room <= mark <= high + room for mark in marks)
    assert len(marks) <= 7


@pytest.mark.parametrize("value", [float("-inf"), -5.0, 0.0, 3.0, 10.0, 99.0, float("inf")])
def test_a_place_is_never_outside_the_drawing(value):
    assert 100 <= Scale(0, 10, 100, 200).at(value) <= 200
