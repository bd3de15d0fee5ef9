"""The keyword arguments of recipes are typed, for every setting of a run."""

import inspect
from typing import get_args, get_type_hints

import pytest

from proa import recipes
from proa.config.reference import settings
from proa.config.typed_arguments import as_python
from proa.recipes import arguments
from proa.recipes.arguments import DetachedArguments, SupervisedArguments


def test_the_file_is_what_the_configuration_says(repository):
    written = (repository / "src/proa/recipes/arguments.py").read_text(encoding="utf-8")
    assert written == as_python(), (
        "write it again: python -m proa.config.typed_arguments > src/proa/recipes/arguments.py"
    )


@pytest.mark.parametrize("name", recipes.__all__)
def test_every_recipe_has_them(name):
    """Its annotation is text: `Unpack[DetachedArguments]`."""
    changes = inspect.signature(getattr(recipes, name)).parameters["changes"].annotation
    expected = SupervisedArguments if name in ("sft", "dpo", "reward_model") else DetachedArguments
    assert changes == f"Unpack[{expected.__name__}]"


def test_every_setting_of_a_run_is_among_them():
    tops = {setting.key.split(".")[0].removesuffix("[]") for setting in settings()} - {"callbacks"}
    assert tops <= set(DetachedArguments.__annotations__)
    keys = {setting.key.partition(".")[2] for setting in settings("optimizer")}
    assert keys == set(arguments.DetachedOptimizerArguments.__annotations__)


def test_types_that_a_file_knows_can_be_read():
    assert get_args(get_type_hints(arguments.DetachedOptimizerArguments)["schedule"]) == (
        "constant",
        "linear",
        "cosine",
    )
