"""What reward functions log stays with the samples, wherever the functions run."""

import pytest
from tests.rewards import judges

from proa.rewards import InlineRewards, RewardWorkers
from proa.rewards.samples import RunLength


def logged(rewards, completions):
    return [score.logged for score in rewards.score(["p"] * len(completions), completions)]


EXPECTED = [{"batch": 2.0, "length": 3.0, "shouted": "ONE"}, {"batch": 2.0, "length": 0.0}]


def test_a_metric_is_on_every_sample_and_an_extra_column_on_its_own():
    assert logged(InlineRewards(judges.logs), ["one", ""]) == EXPECTED


def test_it_comes_back_from_a_worker_process():
    with RewardWorkers(judges.logs) as rewards:
        assert logged(rewards, ["one", ""]) == EXPECTED


def test_it_comes_back_from_a_thread():
    def local(completions, log_metric):
        log_metric("batch", 1)
        return [1.0 for _ in completions]

    with RewardWorkers(local) as rewards:
        assert logged(rewards, ["one"]) == [{"batch": 1.0}]


def test_several_values_of_one_metric_in_a_call_are_averaged():
    def twice(completions, log_metric):
        log_metric("x", 1)
        log_metric("x", 3)
        return [1.0 for _ in completions]

    assert logged(InlineRewards(twice), ["one"]) == [{"x": 2.0}]


def test_a_function_that_only_takes_columns_is_given_lists_alone():
    def any_columns(completions, **columns):
        assert not {"log_metric", "log_extra"} & columns.keys()
        return [1.0 for _ in completions]

    assert InlineRewards(any_columns).score(["p"], ["a"])[0].value == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda metric, extra: metric("x", "high"), "the metric 'x' must be a number"),
        (lambda metric, extra: metric("step", 1), "a metric cannot be named 'step'"),
        (lambda metric, extra: extra("x", []), "log_extra('x') was given 0 values for 1 samples"),
    ],
)
def test_what_cannot_be_logged_is_an_error_of_the_function(call, words):
    def wrong(completions, log_metric, log_extra):
        call(log_metric, log_extra)
        return [1.0 for _ in completions]

    assert words in InlineRewards(wrong).score(["p"], ["a"])[0].error


VERSIONS = {"policy_version": [3, 3]}
LENGTH = RunLength(steps_per_version=2, max_steps=10)


def test_a_function_may_ask_how_far_training_was_when_the_weights_were_published():
    for scorer in (InlineRewards, RewardWorkers):
        rewards = scorer(judges.knows_the_step, length=LENGTH)
        rewards.check([])
        assert [one.value for one in rewards.score(["p", "p"], ["", ""], VERSIONS)] == [0.6, 0.6]


def test_where_there_is_no_run_that_has_a_state_this_is_said_before_it_is_asked():
    with pytest.raises(ValueError, match="needs 'trainer_state', and there is no run here that would have one"):
        InlineRewards(judges.knows_the_step).check([])


def test_tokens_and_version_may_be_named_whatever_columns_the_task_has():
    def wants(completions, prompt_ids, completion_ids, policy_version):
        return [1.0 for _ in completions]

    InlineRewards(wants).check(["answer"])
