"""What a hook may do to experience, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from proa import CallbackManager, ErrorPolicy, LoopState
from proa.data.experience import BufferItem, merge
from proa.data.experience_changes import as_delivered, copied, refuse_other_changes, shown_to_hooks
from proa.data.facts import SampleFacts
from proa.errors import HookError
from proa.lifecycle.roles import Role


def items():
    """Two samples of one prompt, of two tokens and of one; the second has no reward."""
    rows = [([1, 2, 5, 6], [-0.1, -0.2], 1.0), ([1, 2, 7], [-0.3], math.nan)]
    return [
        BufferItem(
            torch.tensor(tokens), torch.tensor(log_probs), reward=torch.tensor(reward),
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=torch.ones(len(log_probs), dtype=torch.bool),
            versions=torch.zeros(len(log_probs), dtype=torch.int32), uid=f"0/{row}", group_id="0",
            facts=SampleFacts("stop", {"length": 1.0}),
        )
        for row, (tokens, log_probs, reward) in enumerate(rows)
    ]  # fmt: skip


def put(name, value):
    return lambda experience: setattr(experience, name, value)


def at(name, index, value):
    def change(experience):
        getattr(experience, name)[index] = value

    return change


REFUSED = [
    (at("sequences", (0, 0), 3), "changed 'sequences' of the experience"),
    (at("action_log_probs", (0, 0), -9.0), "changed 'action_log_probs' of the experience"),
    (at("versions", (0, 0), 7), "changed 'versions' of the experience"),
    (at("attention_mask", (0, 0), False), "changed 'attention_mask' of the experience"),
    (put("advantages", torch.zeros(2, 2)), "changed 'advantages' of the experience"),
    (put("sequences", torch.zeros(1, 4)), "changed 'sequences' of the experience"),
    (put("uids", ("0/1", "0/0")), "changed 'uids' of the experience"),
    (lambda experience: experience.facts[0].reward_parts.update(length=2.0), "changed 'facts' of the experience"),
    (put("facts", (SampleFacts("length"),) * 2), "changed 'facts' of the experience"),
    (put("rewards", torch.zeros(2)), "gave the experience a 'rewards', which it does not have; did you mean 'reward'?"),
    (put("reward", None), "set 'reward' to None, not to one number for each of 2 samples"),
    (put("reward", torch.zeros(3)), "set 'reward' to torch.float32 of shape (3,), not to one number for each of 2"),
    (put("reward", [1.0, 2.0]), "set 'reward' to [1.0, 2.0], not"),
    (at("reward", 0, math.nan), "set the reward of sample 0 to nan, not a finite number"),
    (at("reward", 1, -math.inf), "set the reward of sample 1 to -inf, not a finite number"),
    (put("reward", torch.tensor([1e30, 0.0], dtype=torch.float64)), "set the reward of sample 0 to 1e+30, beyond"),
    (put("action_mask", None), "set 'action_mask' to None"),
    (put("action_mask", torch.ones(2, 3)), "set 'action_mask' to torch.float32 of shape (2, 3)"),
    (put("action_mask", torch.full((2, 2), 0.5)), "set 'action_mask' to torch.float32 of shape (2, 2), not to true or"),
    (at("action_mask", (1, 1), True), "set 'action_mask' at places where no token was sampled"),
    (at("action_mask", 0, False), "took every token of sample 0 out of 'action_mask', and one at least must stay"),
]


def test_whatever_else_is_changed_is_refused_in_words_and_undone():
    for change, words in REFUSED:
        experience = merge(items())
        before = copied(experience)
        change(experience)
        with pytest.raises(HookError) as refused:
            refuse_other_changes("Hook.on_make_experience_end", before, experience)
        assert f"Hook.on_make_experience_end {words}" in str(refused.value)
        assert "it may change the values of `reward`, and take tokens out of `action_mask`" in str(refused.value)
        refuse_other_changes("nobody", copied(merge(items())), experience)  # it is what it was


def failed(item):
    return replace(item, reward=None, facts=item.facts.with_failure("reward_failed", "boom"))


@pytest.mark.parametrize("rewards", [torch.tensor([2.5, 0.5], dtype=torch.float64), torch.tensor([2, 1])])
def test_rewards_and_masks_that_are_changed_are_those_of_what_is_delivered(rewards):
    given = [items()[0], failed(items()[1])]
    experience = shown_to_hooks(given)
    before = copied(experience)
    experience.reward = rewards
    experience.action_mask = experience.action_mask.double()
    experience.action_mask[0, 0] = 0.0
    refuse_other_changes("hook", before, experience)
    first, second = as_delivered(experience)
    assert [float(first.reward), float(second.reward)] == rewards.tolist()
    assert first.reward.dtype == second.reward.dtype == torch.float32
    assert (first.action_mask.tolist(), second.action_mask.tolist()) == ([False, True], [True])
    assert second.facts == SampleFacts("stop", {"length": 1.0})  # it has not failed any more


def test_what_is_not_changed_is_delivered_bit_for_bit():
    given = [items()[0], failed(items()[1])]
    delivered = as_delivered(shown_to_hooks(given))
    for before, after in zip(given, delivered, strict=True):
        for name, value in vars(before).items():
            if isinstance(value, torch.Tensor):
                assert (value.dtype, value.shape) == (getattr(after, name).dtype, getattr(after, name).shape)
                assert torch.equal(value, getattr(after, name))
            else:
                assert value == getattr(after, name), name


def test_a_sample_without_a_reward_is_shown_with_nan_also_where_none_has_one():
    assert shown_to_hooks([items()[0], failed(items()[1])]).reward.isnan().tolist() == [False, True]
    experience = shown_to_hooks([failed(item) for item in items()])
    assert (experience.reward.shape, experience.reward.isnan().tolist()) == ((2,), [True, True])
    assert [item.reward for item in as_delivered(experience)] == [None, None]


def test_what_a_hook_kept_of_the_experience_is_not_what_was_delivered():
    experience = shown_to_hooks(items()[:1])
    (item,) = as_delivered(experience)
    experience.sequences.zero_()
    experience.reward.zero_()
    experience.facts[0].reward_parts["length"] = 9.0
    assert (item.sequences.tolist(), float(item.reward)) == ([1, 2, 5, 6], 1.0)
    assert item.facts.reward_parts == {"length": 1.0}


def test_a_hook_that_fails_in_the_middle_of_a_change_changes_nothing_and_is_counted():
    manager, seen = CallbackManager(role=Role.MAKER), []

    @manager.on("maker.make_experience_end", error_policy=ErrorPolicy.LOG)
    def half(experience):
        experience.reward[0] = 5.0
        raise ValueError("boom")

    @manager.on("maker.make_experience_end", error_policy=ErrorPolicy.LOG)
    def garbles(experience):
        experience.sequences.zero_()

    @manager.on("maker.make_experience_end")
    def last(experience):
        seen.append((experience.reward.tolist()[0], int(experience.sequences.sum())))

    experience = merge(items())
    manager.fire("maker.make_experience_end", LoopState(), experience)
    assert seen == [(1.0, 24)]
    assert manager.errors == {"half": 1, "garbles": 1}
