"""The arguments of a recipe: what is the configuration's, what is an object, and what is the run's own."""

import inspect

import pytest

from proa.config import ConfigError
from proa.recipes import grpo
from proa.run.given import RUN_ARGUMENTS
from proa.run.start import start


@pytest.mark.parametrize(
    ("wrong", "right"), [("resum", "resume"), ("allow_change", "allow_changes"), ("callback", "callbacks")]
)
def test_a_misspelt_argument_of_the_run_is_reported_with_the_right_one(wrong, right):
    with pytest.raises(ConfigError) as raised:
        grpo(**{wrong: "auto"})
    assert str(raised.value) == f"unknown argument {wrong!r}; did you mean {right!r}?"


def test_a_misspelt_key_is_reported_as_one():
    with pytest.raises(ConfigError, match="unknown key 'total_step'; did you mean 'total_steps'?"):
        grpo(total_step=3)


def test_these_are_the_arguments_that_a_run_takes():
    parameters = inspect.signature(start).parameters.values()
    assert [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] == list(RUN_ARGUMENTS)
