"""The gate: a delivery is what its lease asked for, or is refused in words."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from tests.leases.honest_makers import fulfil, prompt, with_item

from proa.data.facts import SampleFacts
from proa.data.lease import Delivery, GarbageError, Lease, check_delivery
from proa.errors import ProaError

LEASE = Lease(5, 3, (prompt(10), prompt(11)), ((1, 2), (3, 4)))
MADE = fulfil(LEASE)  # sample 11/1 is the last item: prompt (5, 2), one sampled token
LAST = 3
TWO = 2  # sample 11/0 has three sampled tokens


def test_what_an_honest_maker_makes_passes():
    check_delivery(LEASE, MADE)


@pytest.mark.parametrize(
    ("index", "changes", "words"),
    [
        (0, {"uid": "10/1"}, "sample 10/0: in its place is sample '10/1' of group '10'"),
        (0, {"group_id": "11"}, "sample 10/0: in its place is sample '10/0' of group '11'"),
        (0, {"uid": ""}, "in its place is sample '' of group '10'"),
        (
            LAST,
            {"sequences": torch.tensor([4, 2, 3])},
            "sample 11/1: it does not begin with the 2 tokens of its prompt",
        ),
        (LAST, {"sequences": torch.tensor([5])}, "it does not begin with the 2 tokens of its prompt"),
        (LAST, {"sequences": torch.tensor([5.0, 2.0, 3.0])}, "its tokens are torch.float32 of shape (3,), not a row"),
        (LAST, {"sequences": torch.tensor([True, True])}, "its tokens are torch.bool of shape (2,), not a row"),
        (LAST, {"sequences": torch.tensor([[5, 2, 3]])}, "its tokens are torch.int64 of shape (1, 3), not a row"),
        (LAST, {"sequences": [5, 2, 3]}, "its tokens are [5, 2, 3], not a row of integers"),
        (LAST, {"sequences": None}, "its tokens are None, not a row of integers"),
        (LAST, {"sequences": torch.tensor([5, 2, -1])}, "token -1 is negative"),
        (LAST, {"sequences": torch.tensor([5, 2]), "action_log_probs": torch.zeros(0)}, "it has no completion"),
        (TWO, {"action_log_probs": torch.zeros(2)}, "it has 2 log-probabilities for 3 sampled tokens"),
        (TWO, {"action_log_probs": torch.zeros(4)}, "it has 4 log-probabilities for 3 sampled tokens"),
        (TWO, {"action_log_probs": None}, "its log-probabilities are None, not a row of floating-point numbers"),
        (TWO, {"action_log_probs": torch.zeros(3).long()}, "torch.int64 of shape (3,), not a row of floating-point"),
        (TWO, {"action_log_probs": torch.tensor(0.0)}, "its log-probabilities are 0, not a row of floating-point"),
        (TWO, {"action_log_probs": torch.tensor([0, -math.inf, 0])}, "its action_log_probs is not finite everywhere"),
        (TWO, {"action_log_probs": torch.tensor([0, 0, math.nan])}, "its action_log_probs is not finite everywhere"),
        (TWO, {"action_log_probs": torch.tensor([-1, 0.25, 0])}, "a log-probability is 0.25, and none is above 0"),
        (TWO, {"action_log_probs": torch.tensor([-1, 2e-4, 0])}, "a log-probability is 0.0002, and none is above 0"),
        (TWO, {"action_mask": torch.ones(2).bool()}, "its action_mask is torch.bool of shape (2,), not one value for"),
        (TWO, {"action_mask": torch.tensor(True)}, "its action_mask is 1, not one value for each of its 3 sampled"),
        (TWO, {"action_mask": torch.zeros(3).bool()}, "its action_mask leaves none of its sampled tokens"),
        (TWO, {"attention_mask": torch.ones(3).bool()}, "not one value for each of its 5 tokens"),
        (TWO, {"attention_mask": True}, "its attention_mask is True, not one value for each of its 5 tokens"),
        (TWO, {"versions": None}, "it does not say which version sampled it"),
        (TWO, {"versions": torch.tensor([3, 3])}, "its versions is torch.int64 of shape (2,), not one value for each"),
        (TWO, {"versions": torch.tensor([3, 2, 4])}, "it was sampled with version 2, 4, not with version 3"),
        (TWO, {"versions": torch.tensor([-1, -1, -1])}, "its action_mask has tokens that were not sampled"),
        (TWO, {"reward": torch.tensor(math.nan)}, "its reward is nan, not a finite number"),
        (TWO, {"reward": torch.tensor(-math.inf)}, "its reward is -inf, not a finite number"),
        (TWO, {"reward": torch.tensor([1.0])}, "its reward is torch.float32 of shape (1,), not a finite number"),
        (TWO, {"reward": 1.0}, "its reward is 1.0, not a finite number in a tensor"),
        (TWO, {"facts": {"finish_reason": "stop"}}, "its facts are {'finish_reason': 'stop'}, not SampleFacts"),
        (TWO, {"facts": None}, "its facts are None, not SampleFacts"),
        (TWO, {"facts": SampleFacts("tired")}, "its finish_reason is 'tired', not one of stop, length"),
        (TWO, {"facts": SampleFacts(reward_parts=[1.0])}, "the parts of its reward are [1.0], not numbers by name"),
        (TWO, {"facts": SampleFacts(reward_parts={"a": "1"})}, "the part 'a' of its reward is '1', not a number"),
        (
            TWO,
            {"facts": SampleFacts(reward_error="boom", reward_failure="reward_failed")},
            "it has a reward, and its facts say why it has none: boom",
        ),
        (TWO, {"values": torch.tensor([0, math.nan, 0])}, "its values is not finite everywhere"),
        (TWO, {"advantages": torch.zeros(4)}, "its advantages is torch.float32 of shape (4,), not one value for each"),
    ],
)
def test_garbage_is_refused_with_the_sample_and_what_is_wrong(index, changes, words):
    with pytest.raises(GarbageError) as refused:
        check_delivery(LEASE, with_item(MADE, index, **changes))
    assert str(refused.value).startswith("lease 5, sample ")
    assert words in str(refused.value)


def test_one_item_too_few_or_too_many_is_refused():
    with pytest.raises(GarbageError, match="lease 5 has 4 samples, 3 were delivered"):
        check_delivery(LEASE, replace(MADE, items=MADE.items[:3]))
    with pytest.raises(GarbageError, match="lease 5 has 4 samples, 5 were delivered"):
        check_delivery(LEASE, replace(MADE, items=MADE.items + MADE.items[:1]))


def test_items_in_another_order_are_refused():
    with pytest.raises(GarbageError, match="sample 10/0: in its place is sample '11/1'"):
        check_delivery(LEASE, replace(MADE, items=MADE.items[::-1]))


def test_what_is_no_item_is_refused():
    with pytest.raises(GarbageError, match="lease 5: a dict is not a BufferItem"):
        check_delivery(LEASE, replace(MADE, items=({},) * 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"action_log_probs": torch.tensor([-0.0, 9e-5, -100.0])},
        {"action_log_probs": torch.tensor([-0.0, 0.0, -1.0], dtype=torch.bfloat16)},
        {"reward": None},
        {"reward": torch.tensor(2)},
        {"versions": torch.tensor([3, 3, 3], dtype=torch.int32)},
        {"sequences": torch.tensor([5, 2, 0, 0, 0], dtype=torch.int32)},
        {"action_mask": torch.tensor([True, False, True]), "attention_mask": torch.ones(5).bool()},
        {"values": torch.tensor(0.5), "advantages": torch.tensor(-1.0)},
    ],
)
def test_nothing_legitimate_is_refused(changes):
    check_delivery(LEASE, with_item(MADE, TWO, **changes))


def test_the_refusal_is_a_value_error_that_travels():
    refusal = pickle.loads(pickle.dumps(GarbageError("lease 1, sample 0/0: no")))
    assert isinstance(refusal, ProaError)
    assert isinstance(refusal, ValueError)
    assert str(refusal) == "lease 1, sample 0/0: no"


def test_a_delivery_knows_its_completion_tokens_and_needs_no_more_than_its_items():
    assert MADE.tokens == 2 + 3 + 3 + 1
    assert (MADE.made_by, MADE.seconds, Delivery(0, ()).tokens) == ("", {}, 0)
