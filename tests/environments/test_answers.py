"""What an environment may return: understood where it can mean one thing only, refused with what to return instead."""

import math

import pytest

from proa.environments import Start, Step
from proa.environments.answers import MOST_PROMPT_CHARACTERS, WrongShape, as_start, as_step
from proa.environments.text import MOST_CHARACTERS

ROW = {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]}
HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "returned", ["hello", HELLO, [HELLO], (HELLO,), Start([HELLO]), Start("hello"), {"messages": [HELLO], "tools": []}]
)
def test_a_trajectory_may_begin_with(returned):
    assert as_start(returned, ROW) == Start([HELLO], [])


def test_a_trajectory_that_begins_with_nothing_begins_with_its_rows_prompt():
    assert as_start(None, ROW).messages == ROW["prompt"]
    assert as_start(None, {"prompt": "2+2?"}).messages == [{"role": "user", "content": "2+2?"}]


@pytest.mark.parametrize(
    ("returned", "step"),
    [
        (None, Step([], done=True)),
        ("hello", Step([HELLO])),
        (HELLO, Step([HELLO])),
        ([HELLO], Step([HELLO])),
        ({"messages": "hello", "reward": 1, "done": True}, Step([HELLO], reward=1.0, done=True)),
        ({"reward": True}, Step([], reward=1.0)),
        (Step("hello", reward=0), Step([HELLO], reward=0.0)),
        (Step(HELLO), Step([HELLO])),
    ],
)
def test_a_step_may_be(returned, step):
    assert as_step(returned) == step


def test_numbers_of_other_libraries_are_numbers():
    import numpy as np

    step = as_step(Step(reward=np.float32(0.5), done=np.bool_(True), tool_calls=np.int64(2)))
    assert step == Step([], reward=0.5, done=True, tool_calls=2)
    assert type(step.done) is bool


REFUSED = {
    "(hello, 1.0, True)": (("hello", 1.0, True), "return Step"),
    "a number": (0.5, "0.5: return Step"),
    "a dict of other things": ({"observation": "hello"}, "return Step"),
    "a misspelt field": (
        {"messages": [], "rewards": 1},
        "'rewards', which a Step does not have; did you mean 'reward'",
    ),
    "a list of texts": (["hello"], "return Step"),
    "a Step without a list": (Step(3), "3 for messages"),
    "a message without a role": (Step([{"content": "hello"}]), "each is a dict with 'role' and 'content'"),
    "a text as reward": (Step(reward="high"), "the reward 'high': a reward is a number"),
    "nan as reward": (Step(reward=math.nan), "the reward nan, not a finite number"),
    "a reward too large": (Step(reward=1e30), "beyond what a reward may be"),
    "a Step with words for numbers": (Step(tool_calls="two"), "a Step that cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_step_that_could_mean_anything_is_refused_with_what_to_return(case):
    returned, words = REFUSED[case]
    with pytest.raises(WrongShape) as refused:
        as_step(returned)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "returned", [3, {"observation": "x"}, ("hello", {}), Start([]), Start(3), object(), Start([HELLO], 3)]
)
def test_a_beginning_that_could_mean_anything_is_refused_with_what_to_return(returned):
    with pytest.raises(WrongShape, match=r"return Start\(messages, tools\)|give a list of messages"):
        as_start(returned, ROW)


def test_what_a_model_is_told_is_cut_where_a_prompt_is_not():
    long = "x" * (MOST_CHARACTERS * 2)
    assert as_start(long, ROW).messages[0]["content"] == long
    told = as_step(long).messages[0]["content"]
    assert len(told) < MOST_CHARACTERS + 200
    assert told.endswith("more characters are cut off]")
    assert len(as_start("x" * 10_000_000, ROW).messages[0]["content"]) < MOST_PROMPT_CHARACTERS + 100
    parts = [{"type": "text", "text": long}]
    assert len(as_step({"role": "user", "content": parts}).messages[0]["content"][0]["text"]) < MOST_CHARACTERS + 200


def test_messages_are_json_whatever_they_are_made_of():
    message = {"role": "user", "content": {"at": 1j}, "seen": {3: b"\xff"}, "half": "\ud800"}
    assert as_step(message).messages == [{"role": "user", "content": "{'at': 1j}", "seen": {"3": "�"}, "half": "?"}]
