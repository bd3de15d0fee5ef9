"""What scores say: values, parts, and errors that never become 0. The worker tests repeat the main ones."""

import asyncio
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from tests.rewards import judges

from proa.data.reward_limits import LARGEST
from proa.rewards import InlineRewards
from proa.rewards.score import Score, add_part


def values(rewards, completions, **columns):
    return [score.value for score in rewards.score(["p"] * len(completions), completions, columns)]


BAD = {
    "raise": "raised ValueError: boom (judges.py, line",
    "exit": "raised SystemExit: 2",
    "nan": "gave nan",
    "inf": "gave inf",
    "text": "gave 'high', which is not a number",
    "number in text": "gave '1.5', which is not a number",
    "list": "gave [1.0], which is not a number",
    "none": "no reward applies to this sample: ",
}


@pytest.mark.parametrize("function", [judges.moody, judges.moody_later])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_sample_is_marked_and_spoils_no_other(bad, function):
    first, middle, last = InlineRewards(function).score(["p"] * 3, ["good", bad, "better"])
    assert (first.value, last.value, first.error, last.error) == (4.0, 6.0, None, None)
    assert middle.value is None
    assert BAD[bad] in middle.error


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (judges.forgets_to_return, "is a `return` missing"),
        (judges.one_number_for_all, "returned 0.5, not a list with one number per sample"),
        (judges.as_text, "returned 'xx', not a list"),
        (judges.one_value_for_all, "returned 1 value for 2 samples: return a list with one number per sample"),
        (judges.one_value_too_many, "returned 3 values for 2 samples"),
        (judges.misspelt, "did you mean 'answer'"),
    ],
)
def test_a_function_that_answers_wrongly_is_told_on_every_sample(function, words):
    for score in InlineRewards(function).score(["p"] * 2, ["a", "b"], {"answer": ["a", "b"]}):
        assert score.value is None
        assert words in score.error


@pytest.mark.parametrize("answer", [[1.0], [], 1.0, None])
def test_a_wrong_count_is_not_asked_for_again_sample_by_sample(answer):
    sizes = []

    def counts(completions):
        sizes.append(len(completions))
        return answer

    InlineRewards(counts).score(["p"] * 4, ["a"] * 4)
    assert sizes == [4]


@pytest.mark.parametrize("function", [judges.as_numpy, judges.as_torch])
def test_arrays_are_numbers_too(function):
    assert values(InlineRewards(function), ["a", "bcd"]) == [1.0, 3.0]


def test_scalars_of_other_libraries_become_floats():
    found = values(InlineRewards(judges.as_scalars), ["a"] * 4)
    assert found == [1.5, 2.0, 1.0, 4.0]
    assert {type(value) for value in found} == {float}


def test_several_rewards_are_summed_by_weight():
    rewards = InlineRewards([judges.length, judges.Longer(3)], weights=[0.5, 2.0])
    score = rewards.score(["p"], ["four"])[0]
    assert score.value == 0.5 * 4 + 2.0 * 1
    assert score.parts == {"length": 4.0, "Longer": 1.0}


def test_a_reward_that_does_not_apply_leaves_the_sum_to_the_others():
    score = InlineRewards([judges.length, judges.moody], weights=[2.0, 1.0]).score(["p"], ["none"])[0]
    assert (score.value, score.parts, score.error) == (8.0, {"length": 4.0, "moody": None}, None)


def test_an_error_in_one_part_leaves_no_value_but_the_other_parts():
    score = InlineRewards([judges.length, judges.moody]).score(["p"], ["raise"])[0]
    assert (score.value, score.parts) == (None, {"length": 5.0, "moody": None})


def test_an_async_reward_works_inside_a_running_event_loop():
    async def in_a_notebook():
        return values(InlineRewards(judges.moody_later), ["good"])

    assert asyncio.run(in_a_notebook()) == [4.0]


def test_the_completion_of_chat_messages_is_a_message():
    seen = []

    def look(prompts, completions):
        seen.extend(completions)
        return [1.0] * len(completions)

    InlineRewards(look).score([[{"role": "user", "content": "hi"}], "text"], ["hello", "plain"])
    assert seen == [[{"role": "assistant", "content": "hello"}], "plain"]


def test_no_samples_give_no_scores():
    assert InlineRewards(judges.length).score([], []) == []


def test_columns_of_another_length_are_refused():
    with pytest.raises(ValueError, match="2 prompts, but 1 entries in 'answer'"):
        InlineRewards(judges.length).score(["p", "p"], ["a", "b"], {"answer": ["a"]})


def test_ctrl_c_in_a_reward_is_not_swallowed():
    def interrupted(completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InlineRewards(interrupted).score(["p"], ["a"])


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def test_a_value_that_cannot_be_a_reward_is_marked_on_its_sample_with_the_value_and_the_limit():
    limit = "beyond what a reward may be: at most 1e+18 either way"
    table = [
        (math.nan, "gave nan, not a finite number"), (math.inf, "gave inf, not a finite number"),
        (-math.inf, "gave -inf, not a finite number"), (np.float32("nan"), "gave nan, not a finite number"),
        (1e39, f"gave 1e+39, {limit}"), (-1e39, f"gave -1e+39, {limit}"), (1e30, f"gave 1e+30, {limit}"),
        (np.float64(1e300), f"gave 1e+300, {limit}"), (10**40, f"gave 1e+40, {limit}"),
        ("1.0", "gave '1.0', which is not a number"), (1j, "gave 1j, which is not a number"),
        ([1.0, 2.0], "is not a number"),
        (Unprintable(), "gave a Unprintable, which is not a number"),
        (torch.tensor(math.inf), "gave inf, not a finite number"), (torch.ones(2), "is not a number"),
    ]  # fmt: skip
    for value, words in table:
        good, bad = InlineRewards(lambda completions, value=value: [0.5, value]).score(["p"] * 2, ["a", "b"])
        assert (good.value, bad.value) == (0.5, None), words
        assert words in bad.error


def test_values_that_can_be_a_reward_are_taken_as_they_are():
    table = [
        (True, 1.0), (False, 0.0), (np.bool_(True), 1.0), (np.float16(0.5), 0.5), (np.int8(-3), -3.0), (7, 7.0),
        (Fraction(1, 4), 0.25), (np.array(2.0), 2.0), (torch.tensor([3.0]), 3.0), (1e18, 1e18), (-1e18, -1e18),
        (10**18, 1e18), (5e-324, 5e-324),
    ]  # fmt: skip
    for value, expected in table:
        assert values(InlineRewards(lambda completions, value=value: [value]), ["a"]) == [expected]


def test_weights_that_make_a_sum_too_large_mark_the_sample():
    score = InlineRewards([judges.length, judges.Longer(3)], weights=[1e300, 1.0]).score(["p"], ["four"])[0]
    assert score.value is None
    assert "add up to 4e+300, beyond what a reward may be: at most 1e+18 either way" in score.error
    both = add_part([Score(1e18, {"a": 1e18})], "reward_model", [1e18], 1.0)[0]
    assert (both.value, both.parts) == (None, {"a": 1e18, "reward_model": 1e18})
    alone = add_part([Score(1.0, {"a": 1.0})], "reward_model", [1e30], 1.0)[0]
    assert "reward_model gave 1e+30, beyond" in alone.error


def test_group_statistics_of_the_largest_rewards_are_finite():
    rewards_G = torch.tensor([LARGEST, -LARGEST] * 128)
    assert bool((rewards_G**2).sum().isfinite())
    assert float(rewards_G.std()) == pytest.approx(LARGEST, rel=1e-2)  # ddof 1 of 256: a factor of 1.002
