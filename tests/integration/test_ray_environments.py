"""Runs with environments on Ray: the same weights as in one process, though makers are killed and answers are slow."""

import pytest
from tests.integration.mishaps import IsKilled
from tests.integration.small_run import digest, header
from tests.run.answering import SETTINGS, changed

from proa import MakerCallback

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Counts(MakerCallback):
    """Of conversations and of turns, in the maker that it lives in."""

    def __init__(self):
        self.turns = self.conversations = 0

    def on_turn_end(self, uid, turn):
        self.turns += 1

    def on_trajectory_end(self, uid, trajectory):
        self.conversations += trajectory is not None


def test_conversations_on_ray_are_those_of_one_process_though_a_maker_is_killed(ray_cluster, tmp_path):
    counts = Counts()
    local = digest(tmp_path, "local", **SETTINGS)
    slow = changed({"path": "tests.run.answering:Dawdles"}, callbacks=[counts, IsKilled(tmp_path / "killed", 1)])
    assert digest(tmp_path, "ray", runtime="ray", makers=2, **slow) == local
    assert (tmp_path / "killed").exists()
    assert header(tmp_path, "ray")["ledger"] == header(tmp_path, "local")["ledger"]
    lived = counts.actor_copies.values()
    assert 0 < sum(one.conversations for one in lived) <= sum(one.turns for one in lived)


@pytest.mark.prove
@pytest.mark.parametrize("makers", [1, 3])
def test_with_any_makers_too(ray_cluster, tmp_path, makers):
    local = digest(tmp_path, "local", **SETTINGS)
    slow = changed({"path": "tests.run.answering:Dawdles"})
    assert digest(tmp_path, "ray", runtime="ray", makers=makers, **slow) == local


@pytest.mark.prove
def test_two_trainers_share_conversations_and_agents_work_in_actors_too(ray_cluster, tmp_path):
    digest(tmp_path, "local", **SETTINGS)
    digest(tmp_path, "two", runtime="ray", trainers=2, **SETTINGS)  # sums of two parts differ in their last bits
    assert header(tmp_path, "two")["ledger"] == header(tmp_path, "local")["ledger"]
    agent = {"environment": {"max_turns": 4, "workers": 1}, "agent": "tests.run.answering:concurrent_agent"}
    settings = {**SETTINGS, **agent, "total_steps": 2}
    assert digest(tmp_path, "agents_ray", runtime="ray", makers=2, **settings) == digest(tmp_path, "agents", **settings)
