"""Killed at any moment, a run that goes on comes to what it would have come to: weights, record, evals, callbacks."""

import os

import pytest
from tests.chaos.kill_scenarios import SCENARIOS
from tests.chaos.killed_runs import finish, killed_everywhere

SOME = (
    "grpo_one_behind", "sft_stopped", "ppo_separate", "dapo_with_refill", "dr_grpo_skipped_steps", "dpo_lora",
    "reward_model",
)  # fmt: skip
"""Those that are resumed from every eleventh copy, from the last on. `make prove` does all with every copy."""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A copy is taken of what was written, not of what a power cut would leave: nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def rewards_without_limit(monkeypatch):
    """So that a reward can make a gradient infinite, and its step be skipped."""
    monkeypatch.setattr("proa.data.reward_limits.LARGEST", 3.4e38)


def differences(scenario, folder, every):
    """The copies from which the run came to something else, with what differs."""
    expected, copies = killed_everywhere(scenario.recipe, folder, scenario.more, **scenario.settings)
    assert expected["status"] == "completed"
    assert len(copies) > 8
    found = {}
    for copy in copies[::-every]:
        outcome = finish(scenario.recipe, copy, scenario.more, **scenario.settings)
        if differing := [key for key in expected if outcome[key] != expected[key]]:
            found[copy.parent.name] = differing
    return found


@pytest.mark.parametrize("name", SOME)
def test_a_killed_run_goes_on_as_if_nothing_had_been(name, tmp_path):
    assert differences(SCENARIOS[name], tmp_path, every=11) == {}


@pytest.mark.prove
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_moment_at_all_it_does(name, tmp_path):
    assert differences(SCENARIOS[name], tmp_path, every=1) == {}
