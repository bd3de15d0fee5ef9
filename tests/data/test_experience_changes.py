"""What a hook may do to experience, and what is refused."""

import math

import pytest
import torch

from proa import CallbackManager, ErrorPolicy, LoopState
from proa.data.experience import BufferItem, merge
from proa.data.experience_changes import apply_changes, copied, refuse_other_changes
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
            notes={"finish_reason": "stop", "reward_parts": {}},
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
    (lambda experience: experience.notes[0].update(finish_reason="length"), "changed 'notes' of the experience"),
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


def test_rewards_and_masks_that_are_changed_are_those_of_the_items():
    given = [*items()]
    given[1] = BufferItem(**{**vars(given[1]), "reward": None, "notes": {"error": "no", "reward_failure": "x", "a": 1}})
    for rewards in (torch.tensor([2.5, 0.5], dtype=torch.float64), torch.tensor([2, 1])):
        experience = merge(items())
        before = copied(experience)
        experience.reward = rewards
        experience.action_mask[0, 0] = False
        refuse_other_changes("hook", before, experience)
        first, second = apply_changes(given, experience)
        assert [float(first.reward), float(second.reward)] == rewards.tolist()
        assert (first.reward.dtype, second.notes) == (torch.float32, {"a": 1})
        assert (first.action_mask.tolist(), second.action_mask.tolist()) == ([False, True], [True])
        assert first.sequences is given[0].sequences


def test_what_is_not_changed_stays_the_same_object():
    given = items()
    given[1] = BufferItem(**{**vars(given[1]), "reward": None})
    assert all(left is right for left, right in zip(apply_changes(given, merge(items())), given, strict=True))


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
