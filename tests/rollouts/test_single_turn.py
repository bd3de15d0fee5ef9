"""From prompts and seeds to scored samples: what is in them, and what rewards get to see."""

import pytest
import torch
from tests.rollouts.fixed_engine import FixedEngine, prompts
from tests.small import Numbers

from proa.actors.activity import Activity
from proa.data.facts import SampleFacts
from proa.data.sampling import Sampling
from proa.rewards import InlineRewards, Score
from proa.rollouts import Progress, SingleTurn, VersionedEngine

CHAT = [{"role": "user", "content": "2+2?"}]


class Listening:
    """A scorer of the user's own."""

    def __init__(self, *scores):
        self.scores = scores
        self.heard = None

    def score(self, prompts, completions, columns):
        self.heard = (list(prompts), list(completions), dict(columns))
        return [Score(value) for value in self.scores]


class LastToken:
    """A reward model's part; its scores are the tokens that it saw last."""

    weight = 0.5

    def score(self, sequences):
        self.sequences = [list(sequence) for sequence in sequences]
        return [float(sequence[-1]) for sequence in sequences]


def run(given, seeds, version=3, activity=None, **scoring):
    engine = VersionedEngine(FixedEngine())
    engine.load({}, version)
    rollout = SingleTurn(Numbers(), Sampling(group_size=2), **scoring)
    return rollout.run(engine, given, seeds, Progress("lease 7", activity or Activity()))


def test_samples_of_a_prompt_come_together_in_the_order_of_their_seeds():
    samples = run(prompts("a", "b"), [[4, 7], [9]])
    assert [(one.prompt.text, one.index, one.seed, one.text) for one in samples] == [
        ("a", 0, 4, "4"), ("a", 1, 7, "7 7"), ("b", 0, 9, "9 9"),
    ]  # fmt: skip
    assert [(one.tokens, one.finish_reason) for one in samples] == [(1, "stop"), (2, "length"), (2, "length")]
    assert {turn.version for one in samples for turn in one.turns} == {3}
    assert [one.score for one in samples] == [Score(None, applies=False)] * 3  # nothing scores them


def test_seeds_are_given_for_every_prompt():
    with pytest.raises(ValueError, match="zip"):
        run(prompts("a", "b"), [[4]])


def test_functions_get_prompts_completions_and_columns_one_entry_for_each_sample():
    scorer = Listening(1.0, 2.0, 3.0)
    samples = run(prompts("a", "b", answer=["x", "y"]), [[4, 6], [8]], scorer=scorer)
    sampled = {"prompt_ids": [[1, 2], [1, 2], [1, 3]], "completion_ids": [[4], [6], [8]], "policy_version": [3, 3, 3]}
    assert scorer.heard == (["a", "a", "b"], ["4", "6", "8"], {**sampled, "answer": ["x", "x", "y"]})
    assert [one.score.value for one in samples] == [1.0, 2.0, 3.0]


def test_the_completion_of_a_chat_prompt_is_the_assistants_message_for_any_scorer():
    scorer, heard = Listening(1.0, 2.0), []

    def function(prompts, completions):
        heard.extend(zip(prompts, completions, strict=True))
        return [0.0] * len(prompts)

    run(prompts(CHAT, "text"), [[4], [6]], scorer=scorer)
    run(prompts(CHAT, "text"), [[4], [6]], scorer=InlineRewards(function))
    answers = [[{"role": "assistant", "content": "4"}], "6"]
    assert scorer.heard[:2] == ([CHAT, "text"], answers)
    assert heard == [(CHAT, answers[0]), ("text", answers[1])]


def test_a_reward_model_reads_the_sampled_tokens_and_is_added_with_its_weight():
    model = LastToken()
    alone = run(prompts("a"), [[4, 7]], model_reward=model)
    assert model.sequences == [[1, 2, 4], [1, 2, 7, 7]]
    assert [(one.score.value, one.score.parts) for one in alone] == [
        (2.0, {"reward_model": 4.0}), (3.5, {"reward_model": 7.0}),
    ]  # fmt: skip
    both = run(prompts("a"), [[4, 7]], model_reward=model, scorer=Listening(1.0, None))
    assert [one.score.value for one in both] == [3.0, None]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_cannot_be_a_reward_is_a_failed_reward_whoever_gave_it(value):
    (sample,) = run(prompts("a"), [[4]], scorer=Listening(value))
    assert sample.score.value is None
    assert sample.score.error.startswith(f"the reward is {value}, ")


def test_no_prompts_give_no_samples_and_nobody_is_asked():
    scorer = Listening()
    assert run([], [], scorer=scorer) == []
    assert scorer.heard is None


def test_it_shows_what_it_is_doing_and_counts_the_time():
    activity, seen = Activity(), []

    class Looking(Listening):
        def score(self, *given):
            seen.append(activity.look().what)
            return super().score(*given)

    class LookingEngine(FixedEngine):
        def step(self):
            seen.append(activity.look().what)
            return super().step()

    rollout = SingleTurn(Numbers(), Sampling(), scorer=Looking(1.0))
    rollout.run(VersionedEngine(LookingEngine()), prompts("a"), [[4]], Progress("lease 7", activity))
    assert seen == ["generating lease 7", "scoring lease 7"]
    assert list(activity.look().spent) == ["generate", "score"]


# -- samples as experience ----------------------------------------------------------------------------


def test_a_row_has_the_tokens_as_they_were_sampled_and_says_where_they_are_from():
    sampling = Sampling(group_size=2)
    _, sample = run(prompts("a"), [[4, 7]], scorer=Listening(1.0, 2.5))
    (row,) = sample.rows(sampling)
    assert (row.sequences.tolist(), row.action_log_probs.tolist()) == ([1, 2, 7, 7], [-0.5, -0.5])
    assert (row.attention_mask.tolist(), row.action_mask.tolist()) == ([True] * 4, [True] * 2)
    assert (row.versions.tolist(), row.versions.dtype) == ([3, 3], torch.int32)
    assert (float(row.reward), row.reward.dtype) == (2.5, torch.float32)
    assert (row.uid, row.group_id, row.sampling is sampling) == ("0/1", "0", True)
    assert row.facts == SampleFacts("length", {})


def test_a_row_without_a_reward_says_why():
    def fails(completions):
        raise ValueError("boom")

    (failed,) = run(prompts("a"), [[4]], scorer=InlineRewards(fails))
    (row,) = failed.rows(Sampling())
    assert row.reward is None
    assert (row.facts.finish_reason, row.facts.reward_parts) == ("stop", {"fails": None})
    assert row.facts.reward_failure == "reward_failed"
    assert "ValueError: boom" in row.facts.reward_error
    (unscored,) = run(prompts("a"), [[4]])
    assert unscored.rows(Sampling())[0].facts == SampleFacts("stop", {})
