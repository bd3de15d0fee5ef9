"""One step of a learner, whatever the algorithm: what it reports."""

import pytest
import torch
from tests.learning.test_replicas import CONFIG, SAMPLING, items

from proa.algorithms import build_algorithm
from proa.data.experience import merge
from proa.learning.learner import Learner
from proa.learning.optimizer import OptimizerSettings
from proa.policy.models import load_model
from proa.policy.policy import PlainPolicy


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
