"""Evaluators of one's own: what cannot be called is found when the eval is built, what raises is told by name."""

import pickle
from types import SimpleNamespace

import pytest

from proa.config import ConfigError
from proa.config.run_config import EvalSection
from proa.data.state import LoopState
from proa.recipes.evaluation import EvaluatorError, scoring

SECTION = EvalSection(name="own", evaluator="theirs:function")


def built(function):
    material = SimpleNamespace(model=None, tokenizer=None)
    state = LoopState(global_step=3, policy_version=2)
    return scoring(SECTION, SimpleNamespace(), material, lambda: state, function)


def takes_two(policy, other):
    return {}


@pytest.mark.parametrize("function", [lambda: {"x": 1}, takes_two, lambda *, policy: {}])
def test_a_function_that_does_not_take_the_policy_alone_is_refused_when_the_eval_is_built(function):
    with pytest.raises(ConfigError, match="eval own: the evaluator theirs:function is called with the policy alone"):
        built(function)


@pytest.mark.parametrize("function", [lambda policy, more=1: {"x": 1}, lambda *given: {"x": 1}, dict])
def test_a_function_that_can_be_called_with_the_policy_is_not_refused(function):
    built(function)


async def fails_later(policy):
    return policy.nowhere


@pytest.mark.parametrize("function", [lambda policy: policy.nowhere, fails_later])
def test_what_an_evaluator_raises_is_told_with_its_name_and_line_and_kept_as_the_cause(function):
    with pytest.raises(EvaluatorError, match="eval own: the evaluator theirs:function raised AttributeError") as caught:
        built(function)()
    assert isinstance(caught.value.__cause__, AttributeError)
    assert f"({__file__}, line " in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_cancelled_run_is_no_failure_of_the_evaluator():
    def interrupted(policy):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(interrupted)()
