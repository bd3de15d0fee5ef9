"""One step of a learner, whatever the algorithm: what it reports."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.learning.test_replicas import CONFIG, SAMPLING, items

from proa.algorithms import GRPO, build_algorithm
from proa.data.experience import merge
from proa.learning.learner import Learner, StepSettings
from proa.learning.optimizer import OptimizerSettings
from proa.policy.models import load_model
from proa.policy.policy import FrozenCopy, PlainPolicy


def learner(name, **settings):
    torch.set_num_threads(1)
    policy = PlainPolicy(load_model(CONFIG, dtype="float64", seed=3))
    algorithm = build_algorithm(name, **settings)
    return Learner(policy, algorithm, OptimizerSettings(), optimizer_steps=1, sampling=SAMPLING)


@pytest.mark.parametrize(
    ("name", "settings", "reported"),
    [
        ("reinforce_pp", {"kl_reward_coefficient": 0.1}, 0.1),
        ("reinforce_pp", {"kl_coefficient": 0.1}, None),
        ("grpo", {"kl_coefficient": 0.1}, None),
    ],
)
def test_what_kl_costs_in_reward_is_reported_where_it_costs_something(name, settings, reported):
    metrics = learner(name, **settings).step(merge(items()))
    assert metrics["kl_to_reference"] != 0
    assert metrics.get("kl_reward_coefficient") == reported


class Doubled(PlainPolicy):
    """A policy of another kind: what it says of tokens is not what its model says."""

    def statistics(self, experience, *, temperature, **more):
        return super().statistics(experience, temperature=2 * temperature, **more)

    def reference(self):
        return DoubledCopy(self.model)


class DoubledCopy(FrozenCopy):
    def statistics(self, experience, *, temperature, **more):
        return super().statistics(experience, temperature=2 * temperature, **more)


def test_every_pass_is_the_policys_own_also_the_first_one_and_the_references():
    torch.set_num_threads(1)
    policy = Doubled(load_model(CONFIG, dtype="float64", seed=3))
    algorithm = build_algorithm("grpo", kl_coefficient=0.1)
    settings = StepSettings(old="trainer")
    one = Learner(policy, algorithm, OptimizerSettings(), optimizer_steps=1, sampling=SAMPLING, settings=settings)
    batch = merge(items())
    metrics = one.step(batch)
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-12)
    assert metrics["kl_to_reference"] == 0
    assert (batch.old_log_probs != batch.action_log_probs).any()


@dataclass(frozen=True, kw_only=True)
class Noting(GRPO):
    noted: ClassVar[list[torch.dtype]] = []

    def token_weights(self, mask_BT, max_new_tokens, *, dtype=torch.float32):
        self.noted.append(dtype)
        return super().token_weights(mask_BT, max_new_tokens, dtype=dtype)


def test_tokens_are_weighed_as_precisely_as_their_loss():
    for dtype in ("float64", "bfloat16"):
        policy = PlainPolicy(load_model(CONFIG, dtype=dtype, seed=3))
        one = Learner(policy, Noting(), OptimizerSettings(), optimizer_steps=1, sampling=SAMPLING)
        one.step(merge(items()))
    assert Noting.noted == [torch.float64, torch.float32]
