"""Evaluators of one's own: what cannot be called is found when the eval is built, what raises is told by name."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from proa.config import ConfigError
from proa.config.eval_section import EvalSection
from proa.evals.evaluation import build_eval
from proa.evals.given_eval import GivenEval
from proa.evals.own_evaluator import EvaluatorError
from proa.evals.scoring import At
from proa.policy.policy import PlainPolicy

SECTION = EvalSection(name="own", evaluator="theirs:function")


def built(function):
    policy = PlainPolicy(torch.nn.Linear(1, 1), tokenizer=object())
    one = build_eval(SECTION, SimpleNamespace(engine=None), policy, GivenEval(function))
    return lambda: one.score(At(3, 2))


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


@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), torch.tensor(0.5), torch.tensor([0.5]), 0.5])
def test_numbers_may_be_those_of_numpy_and_torch(value):
    assert built(lambda policy: {"x": value})().result.metrics == {"x": 0.5}


@pytest.mark.parametrize("given", [None, 0.5, [("x", 1)], {"x": "0.5"}, {"x": None}, {"x": torch.ones(2)}, {"x": {}}])
def test_what_is_no_numbers_by_name_is_refused_with_what_it_was(given):
    with pytest.raises(ConfigError, match="eval own: an evaluator returns numbers by name"):
        built(lambda policy: given)()


@pytest.mark.parametrize("rows", [5, "text", ["text"], {"a": 1}, None])
def test_predictions_that_are_no_rows_are_refused(rows):
    with pytest.raises(ConfigError, match="predictions are a list of rows"):
        built(lambda policy: {"x": 1, "predictions": rows})()


def test_what_an_evaluator_returns_stays_as_it_was():
    kept = {"x": 1, "predictions": [{"reward": 1.0}]}
    assert built(lambda policy: kept)().predictions == [{"reward": 1.0}]
    assert kept == {"x": 1, "predictions": [{"reward": 1.0}]}


def test_in_an_evaluator_the_model_keeps_no_gradient_and_nothing_is_random():
    seen = []
    built(lambda policy: seen.append((policy.model.training, torch.is_grad_enabled())) or {})()
    assert seen == [(False, False)]
