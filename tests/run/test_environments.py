"""Runs with an environment: one digest whatever is slow or dies, a ledger that closes, a record of what was said."""

import json

import pytest
from tests.run.answering import SETTINGS, Counts, changed

from proa import Callback, CallbackManager, MakerCallback
from proa.config import ConfigError
from proa.errors import SettingError
from proa.recipes import grpo, ppo
from proa.record.journal import Journal
from proa.run.replay import replay


def made(tmp_path, name, recipe=grpo, **settings):
    recipe(**{**SETTINGS, **settings, "output_dir": tmp_path, "name": name})
    return json.loads((tmp_path / name / "run.json").read_text())


def metrics_of(tmp_path, name):
    return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return made(folder, "plain"), folder


def slow(**more):
    return changed({"path": "tests.run.answering:Dawdles"}, **more)


@pytest.mark.parametrize("makers", [1, 3])
def test_slow_answers_and_many_makers_change_nothing(plain, tmp_path, makers):
    found = made(tmp_path, "slow", **slow(makers=makers))
    assert found["weights_digest"] == plain[0]["weights_digest"]
    assert found["ledger"] == plain[0]["ledger"]


def test_nor_does_it_matter_how_prompts_are_leased(plain, tmp_path):
    assert made(tmp_path, "leases", lease_prompts=4)["weights_digest"] == plain[0]["weights_digest"]


def test_nor_that_the_process_of_the_environments_dies(plain, tmp_path, caplog):
    dying = {"path": "tests.run.answering:DiesOnce", "params": {"marker": str(tmp_path / "died")}}
    assert made(tmp_path, "dying", **changed(dying))["weights_digest"] == plain[0]["weights_digest"]
    assert (tmp_path / "died").exists()


class IsLost(MakerCallback):
    """The first maker that makes a lease for the second version fails at it, and is replaced."""

    def __init__(self):
        self.version = 0
        self.failed = False

    def on_weights_loaded(self, version):
        self.version = version

    def on_trajectory_end(self, uid, trajectory):
        if self.version and not self.failed:
            self.failed = True
            raise RuntimeError("its machine is gone")


@pytest.mark.parametrize(
    "makers", [2, pytest.param(1, marks=pytest.mark.prove), pytest.param(3, marks=pytest.mark.prove)]
)
def test_nor_that_a_maker_is_lost(plain, tmp_path, makers):
    lost = []
    mishap, manager = IsLost(), CallbackManager()
    manager.on("maker.lost")(lambda maker, reason: lost.append(maker))
    found = made(tmp_path, "lost", **slow(makers=makers, callbacks=[mishap, manager]))
    assert mishap.failed
    assert len(lost) == 1
    assert found["weights_digest"] == plain[0]["weights_digest"]
    assert found["ledger"] == plain[0]["ledger"]


def test_nor_that_it_was_given_in_python(plain, tmp_path):
    section = {key: value for key, value in SETTINGS["environment"].items() if key != "path"}
    given = made(tmp_path, "given", environment={**section, "path": Counts})
    assert given["weights_digest"] == plain[0]["weights_digest"]
    config = json.loads((tmp_path / "given" / "config.json").read_text())
    assert config["environment"]["path"] == "Counts (given in Python)"


def test_the_ledger_counts_trajectories_and_the_metrics_tell_of_them(plain):
    header, folder = plain
    ledger = header["ledger"]
    assert ledger["leased"] == ledger["trained"] + sum(ledger["dropped"].values()) == 24
    steps = metrics_of(folder, "plain")
    for step in steps:
        shares = [value for name, value in step.items() if name.startswith("trajectory.ending.")]
        assert sum(shares) == pytest.approx(1)
        assert 1 <= step["trajectory.turns"] <= 3
        assert step["trajectory.policy_tokens"] == pytest.approx(step["completion_tokens"])
        assert step["trajectory.environment_tokens"] >= 0
    assert max(step["trajectory.turns"] for step in steps) > 1


def test_conversations_are_recorded_turn_by_turn_with_what_was_sampled_set_apart(plain):
    _, folder = plain
    rows = [
        json.loads(line)
        for file in sorted((folder / "plain" / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    longest = max(rows, key=lambda row: row["trajectory"]["turns"])
    assert [message["role"] for message in longest["messages"]][:4] == ["user", "assistant", "user", "assistant"]
    assert len(longest["sampled"]) == len(longest["tokens"]) == len(longest["log_probs"])
    assert 0 in longest["sampled"]
    for was_sampled, log_prob, advantage, version in zip(
        longest["sampled"], longest["log_probs"], longest["advantages"], longest["versions"], strict=True
    ):
        assert (log_prob is None, advantage is None, version == -1) == ((not was_sampled),) * 3
    assert len(longest["trajectory"]["turn_rewards"]) == longest["trajectory"]["turns"]


def test_an_environment_that_fails_is_counted_under_its_ending_and_never_a_reward_of_0(tmp_path):
    found = made(tmp_path, "failing", **changed({"path": "tests.run.answering:Fails"}))
    dropped = found["ledger"]["dropped"]["tool_failed"]
    assert 0 < dropped < 24
    entries = Journal(tmp_path / "failing").read()
    failures = [entry for entry in entries if entry["kind"] == "reward"]
    assert len(failures) == dropped
    assert "the service is down" in failures[0]["error"]
    assert failures[0]["failure"] == "tool_failed"
    assert replay(tmp_path / "failing").same


def test_what_an_environment_that_answers_otherwise_said_is_journaled_and_repeated(tmp_path):
    first = made(tmp_path, "first", **changed({"path": "tests.run.answering:OtherEachTime"}))
    second = made(tmp_path, "second", **changed({"path": "tests.run.answering:OtherEachTime"}))
    assert first["weights_digest"] != second["weights_digest"]
    said = [entry for entry in Journal(tmp_path / "first").read() if entry["kind"] == "environment"]
    assert len(said) == 24
    assert replay(tmp_path / "first").same


class BreaksAfterOne(Callback):
    def on_checkpoint(self, state, row):
        if state.global_step == 1:
            raise RuntimeError("the power is out")


def test_a_run_that_was_cut_off_goes_on_to_the_same_weights(plain, tmp_path):
    saving = {"checkpoint": {"save_every": 1}}
    with pytest.raises(RuntimeError, match="the power is out"):
        made(tmp_path, "run", callbacks=[BreaksAfterOne()], **saving)
    found = made(tmp_path, "run", resume="auto", **saving)
    assert found["weights_digest"] == plain[0]["weights_digest"]
    assert found["steps_run"] == 3


class Hears(MakerCallback):
    def __init__(self):
        self.heard = []

    def on_make_experience_start(self):
        self.heard.append("start")

    def on_trajectory_start(self, uid):
        self.heard.append(("begins", uid))

    def on_turn_end(self, uid, turn):
        self.heard.append((uid, turn.number, turn.message["role"], turn.version))

    def on_trajectory_end(self, uid, trajectory):
        self.heard.append(("ends", uid, trajectory.turns))

    def on_make_experience_end(self, experience):
        self.heard.append("end")


def test_hooks_hear_of_each_conversation_one_after_the_other(tmp_path):
    hears = Hears()
    made(tmp_path, "heard", callbacks=[hears], **slow(total_steps=1))
    heard = hears.heard
    first, last = heard.index("start"), heard.index("end")
    lease = heard[first + 1 : last]
    begun = [event[1] for event in lease if event[0] == "begins"]
    assert begun == [event[1] for event in lease if event[0] == "ends"]
    assert [uid.split("/")[1] for uid in begun] == ["0", "1"]
    for uid in begun:
        own = lease[lease.index(("begins", uid)) + 1 : next(n for n, e in enumerate(lease) if e[:2] == ("ends", uid))]
        assert [(event[0], event[1]) for event in own] == [(uid, number) for number in range(len(own))]
        assert all(event[2:] == ("assistant", 0) for event in own)


SEES_THE_LAST = "{% for message in messages[-2:] %}{{ message.content }}>{% endfor %}"
"""A template that forgets all but what was said last, so that every third turn begins a row of its own."""


def test_ppo_learns_from_turns_too_in_several_rows(tmp_path):
    task = SETTINGS["task"] | {"chat_template": SEES_THE_LAST}  # of texts, which are the user's messages here
    found = made(tmp_path, "ppo", ppo, total_steps=2, task=task)
    assert found["ledger"]["trained"] == 16
    files = (tmp_path / "ppo" / "rollouts").iterdir()
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(rows) > sum("trajectory" in row for row in rows)


def test_evals_have_the_same_environment_and_say_how_conversations_ended(tmp_path):
    section = {"name": "held_out", "source": "reverse_digits", "metric": None, "count": 4, "samples": 2}
    found = made(tmp_path, "evaluated", eval=[section], total_steps=1)
    scores = found["evals"]["held_out"]
    assert scores["turns"] >= 1
    assert sum(value for name, value in scores.items() if name.startswith("ending.")) == pytest.approx(1)
    rows = [json.loads(line) for line in (tmp_path / "evaluated/evals/held_out/step_1.jsonl").read_text().splitlines()]
    assert {row["messages"][0]["role"] for row in rows} == {"user"}
    assert {row["reward"] for row in rows} <= {0.0, 1.0}, "what the metric says, without what the environment gives"
    assert all(row["ending"] for row in rows)


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools": ["tests.run.answering:Counts"]}, "tools and environment.path cannot be used together"),
        ({"environment": {"max_turns": 3}}, "environment.max_turns is set, and there is no environment"),
        ({"environment": "tests.run.answering:Count"}, "did you mean 'Counts'"),
        ({"environment": {"path": "tests.run.answering:Counts", "params": {"untill": 1}}}, "did you mean 'until'"),
        ({"environment": {"path": "tests.run.answering:Counts", "max_turn": 1}}, "did you mean .*max_turns'"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_before_anything_runs(tmp_path, changes, said):
    with pytest.raises((ConfigError, SettingError), match=said):
        made(tmp_path, "wrong", **changes)
    assert not (tmp_path / "wrong").exists()
