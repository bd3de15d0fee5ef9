"""Loading of reward functions, and clear words for mistakes."""

import functools

import pytest
from tests.rewards import judges

from proa.cli.exit_codes import exit_code
from proa.dotted import resolve
from proa.errors import ProaError
from proa.rewards import InlineRewards, RewardError, RewardFunction, load_rewards


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (judges.length, "length"),
        ("tests.rewards.judges:length", "length"),
        ("tests.rewards.judges.length", "length"),
        (judges.Longer, "Longer"),
        (judges.Longer(than=2), "Longer"),
        ("tests.rewards.judges:Longer", "Longer"),
        (functools.partial(judges.same_answer, answer=["a"]), "same_answer"),
        (lambda completions: [1.0], "lambda"),
    ],
)
def test_every_form_of_a_reward_is_loaded_under_its_name(given, name):
    assert RewardFunction.load(given).name == name


def test_equal_names_are_numbered():
    assert [reward.name for reward in load_rewards([judges.Longer(1), judges.Longer(2)])] == ["Longer", "Longer_2"]


def test_a_function_gets_only_what_it_names():
    scores = InlineRewards(judges.same_answer).score(["p"], ["a"], {"answer": ["a"], "other": [0]})
    assert scores[0].value == 1.0


def test_a_function_with_keywords_gets_every_column():
    def see(prompts, completions, **columns):
        assert sorted(columns) == ["answer", "other"]
        return [1.0]

    assert InlineRewards(see).score(["p"], ["a"], {"answer": ["a"], "other": [0]})[0].error is None


def test_an_argument_with_a_default_may_be_missing():
    assert InlineRewards(lambda completions, penalty=0.5: [penalty]).score(["p"], ["a"])[0].value == 0.5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tests.rewards.judges:lenght", "has no 'lenght'; did you mean 'length'"),
        ("no_such_module:reward", "no module 'no_such_module'"),
        ("reward", "write 'package.module:name'"),
        ("tests.rewards.judges:_loop", "is not a reward"),
        (42, "42 is not a reward"),
        (judges.NeedsASetting, "cannot be created without arguments"),
        (object, "is not a reward"),
        ([], "at least one"),
    ],
)
def test_what_is_no_reward_is_refused_in_the_users_words(given, words):
    with pytest.raises(RewardError, match=words) as raised:
        load_rewards(given)
    assert isinstance(raised.value, ProaError)


def test_a_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("import module_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        RewardError, match="importing broken_rewards failed: No module named 'module_that_is_not_there'"
    ):
        load_rewards("broken_rewards:reward")


@pytest.mark.parametrize(
    ("weights", "words"), [([1.0], "2 rewards, but 1 weights"), ([1.0, float("nan")], "finite"), ([1, "2"], "finite")]
)
def test_wrong_weights_are_refused(weights, words):
    with pytest.raises(RewardError, match=words):
        load_rewards([judges.length, judges.moody], weights)


def test_a_missing_column_can_be_found_before_the_run():
    rewards = InlineRewards(judges.misspelt)
    with pytest.raises(RewardError, match="needs 'anwser', which the task does not have; did you mean 'answer'"):
        rewards.check(["answer"])
    rewards.check(["anwser"])


@pytest.mark.parametrize("given", ["tests.rewards.judges:lenght", "no_such_module:reward", "reward"])
def test_a_reward_that_is_not_there_is_wrong_use_for_the_command_line(given, capsys):
    assert exit_code(lambda: load_rewards(given)) == 2
    assert capsys.readouterr().err.startswith("reward ")


def test_an_evaluator_that_is_not_there_is_wrong_use_too(capsys):
    assert exit_code(lambda: resolve("tests.rewards.judges:lenght")) == 2
    assert capsys.readouterr().err.startswith("'tests.rewards.judges:lenght': tests.rewards.judges has no 'lenght'")
