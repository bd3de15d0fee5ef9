"""Runs with an agent, which talks to the model through an endpoint as it likes."""

import gc
import json
import threading

import pytest
from tests.run.answering import SETTINGS

from proa import MakerCallback
from proa.errors import NothingToTrainOnError
from proa.recipes import grpo
from proa.record.journal import Journal
from proa.run.replay import replay

AGENTS = {**SETTINGS, "environment": {"max_turns": 4, "workers": 1}, "total_steps": 2}


def made(tmp_path, name, agent, **settings):
    grpo(**{**AGENTS, **settings}, agent=f"tests.run.answering:{agent}", output_dir=tmp_path, name=name)
    return json.loads((tmp_path / name / "run.json").read_text())


def rows_of(tmp_path, name):
    files = sorted((tmp_path / name / "rollouts").iterdir())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_an_agent_is_trained_on_the_tokens_that_it_was_answered_with(tmp_path):
    found = made(tmp_path, "run", "agent")
    assert found["ledger"]["trained"] == 16
    rows = rows_of(tmp_path, "run")
    assert {row["trajectory"]["turns"] for row in rows if "trajectory" in row} == {2}
    two_turns = [row for row in rows if 0 in row["sampled"]]
    assert two_turns, "the second turn goes on from the first, in one row"
    assert all(row["sampled"].count(0) == 1 for row in two_turns)
    assert any(row["reward"] for row in rows)


def test_what_it_asked_is_journaled_and_the_run_repeated_without_it(tmp_path):
    made(tmp_path, "run", "agent")
    entries = [entry for entry in Journal(tmp_path / "run").read() if entry["kind"] == "environment"]
    assert len(entries) == 16
    assert any(turn["continues"] for entry in entries for turn in entry["answers"][:-1])
    assert replay(tmp_path / "run").same


def test_an_agent_that_says_that_it_is_deterministic_may_ask_at_once_and_gives_one_digest(tmp_path):
    digests = {made(tmp_path, f"{makers}", "concurrent_agent", makers=makers)["weights_digest"] for makers in (1, 2, 3)}
    assert len(digests) == 1


def test_endings_of_agents_are_true(tmp_path):
    with pytest.raises(NothingToTrainOnError, match="first because: the agent never asked the model for anything"):
        made(tmp_path, "lazy", "lazy_agent", total_steps=1)
    greedy = made(tmp_path, "greedy", "greedy_agent", total_steps=1)
    assert greedy["ledger"]["trained"] == 8
    assert {row["trajectory"]["ending"] for row in rows_of(tmp_path, "greedy") if "trajectory" in row} == {"max_turns"}
    growing = made(tmp_path, "growing", "growing_agent", total_steps=1, environment={"max_turns": 99, "workers": 1})
    assert growing["ledger"]["trained"] == 8
    assert {row["trajectory"]["ending"] for row in rows_of(tmp_path, "growing") if "trajectory" in row} == {
        "token_limit"
    }
    repeated = replay(tmp_path / "greedy")
    assert json.loads((repeated.folder / "run.json").read_text())["ledger"] == greedy["ledger"]


class Hears(MakerCallback):
    def __init__(self):
        self.turns, self.endings = [], []

    def on_turn_end(self, uid, turn):
        self.turns.append((uid, turn.number, turn.message["role"]))

    def on_trajectory_end(self, uid, trajectory):
        self.endings.append((uid, trajectory.ending, trajectory.turns))


def test_hooks_hear_each_completion_as_a_turn_though_they_are_of_several_conversations(tmp_path):
    hears = Hears()
    made(tmp_path, "heard", "concurrent_agent", total_steps=1, callbacks=[hears])
    assert {ending[1:] for ending in hears.endings} == {("finished", 4)}
    assert hears.turns[:4] == [(hears.endings[0][0], number, "assistant") for number in range(4)]


def endpoints():
    return {thread.ident for thread in threading.enumerate() if thread.name == "proa endpoint"}


def test_endpoints_of_makers_and_evals_are_closed_when_a_run_is_over(tmp_path):
    before = endpoints()
    heard = []

    def on_eval(state, step_idx, eval_name, metrics):
        heard.append(len(endpoints() - before))

    made(tmp_path, "run", "agent", total_steps=1, eval=[{"name": "e", "count": 2}], callbacks=[on_eval])
    assert max(heard) == 2
    gc.collect()
    assert endpoints() <= before
