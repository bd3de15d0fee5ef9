"""Settings of the supervised algorithms: typed, and refused in words."""

import math

import pytest

from proa.config.supervised_settings import SUPERVISED, DPOSettings, SFTSettings
from proa.errors import SettingError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "sigmod"}, "loss must be one of sigmoid, ipo, not 'sigmod'; did you mean 'sigmoid'"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing is for the sigmoid loss"),
        ({"beta": 0}, "beta must be a number, more than 0, not 0"),
        ({"beta": math.inf}, "beta must be a number, more than 0"),
        ({"beta": "1e-1"}, "beta must be a number, more than 0, not '1e-1' .*in YAML"),
        ({"label_smoothing": 0.5}, "label_smoothing must be a number, at least 0 and less than 0.5, not 0.5"),
        ({"reference_free": "yes"}, "reference_free must be true or false, not 'yes'"),
    ],
)
def test_settings_of_dpo_that_cannot_be_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        DPOSettings(**settings)


def test_settings_of_sft_that_cannot_be_are_refused():
    with pytest.raises(SettingError, match="answer_column must be a text, not 3"):
        SFTSettings(answer_column=3)
    with pytest.raises(SettingError, match="packing must be true or false, not 1"):
        SFTSettings(packing=1)


@pytest.mark.parametrize("kind", SUPERVISED.values())
@pytest.mark.parametrize("length", ["20", 0, -1, 2.0, True])
def test_a_length_is_a_whole_number_above_nothing(kind, length):
    assert kind(max_length=None).max_length is None
    assert kind(max_length=20).max_length == 20
    with pytest.raises(SettingError, match="max_length must be a whole number, at least 1, or null"):
        kind(max_length=length)
