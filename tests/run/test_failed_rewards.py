"""Runs whose rewards or losses fail, in part or all: said at once, counted, and never called a success."""

import json
import math
from dataclasses import dataclass

import pytest
import torch
from tests.small import MODEL

from proa import Callback
from proa.algorithms import DAPO, GRPO
from proa.callbacks import ConsoleProgress
from proa.cli.main import main
from proa.errors import NothingToTrainOnError
from proa.learning.learner import Learner
from proa.recipes import grpo, sft

SMALL = {
    "name": "small",
    "train_batch_size": 8,
    "sampling": {"group_size": 4, "max_new_tokens": 3},
    "model": {
        "config": MODEL
    },
    "task": {"source": "sort_digits", "count": 16},
}  # fmt: skip


def inline(function):
    return {"workers": 0, "functions": function}


def header(tmp_path):
    return json.loads((tmp_path / "small" / "run.json").read_text())


def rows(tmp_path):
    return [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]


def raises(completions):
    raise ValueError("my judge is broken")


class Spoilt:
    """Gives each sample its place in the batch, but a `spoilt` value at the first one of each call."""

    def __init__(self, spoilt):
        self.spoilt = spoilt

    def __call__(self, completions):
        return [self.spoilt, *(float(place) for place in range(1, len(completions)))]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_whose_every_reward_failed_has_failed_and_says_why(tmp_path, steps):
    words = r"trained on .*reward 'raises' raised ValueError: my judge is broken"
    with pytest.raises(NothingToTrainOnError, match=words):
        grpo(**SMALL, reward=inline(raises), output_dir=tmp_path, total_steps=steps)
    found = header(tmp_path)
    assert found["status"] == "failed"
    dropped = found["ledger"]["dropped"]["reward_failed"]
    assert f"{dropped} samples had no usable reward, the first because: reward 'raises'" in found["stop_reason"]
    assert found["reward_failures"]["samples"] == dropped
    assert "ValueError: my judge is broken" in found["reward_failures"]["first"]


@dataclass(frozen=True, kw_only=True)
class Best(GRPO):
    """Trains on groups whose mean is more than a completion can have."""

    def keeps_group(self, rewards_G):
        return bool(rewards_G.mean() > 10)


@dataclass(frozen=True, kw_only=True)
class BestOfVaried(DAPO):
    def keeps_group(self, rewards_G):
        return super().keeps_group(rewards_G) and bool(rewards_G.mean() > 10)


def test_what_an_algorithms_own_filter_left_out_is_called_so(tmp_path):
    with pytest.raises(NothingToTrainOnError, match=r"trained on nothing; \d+ samples dropped as filtered$"):
        grpo(**SMALL, algorithm=Best(), reward=inline(Spoilt(0.0)), output_dir=tmp_path, total_steps=1)
    assert header(tmp_path)["ledger"]["dropped"].keys() == {"filtered"}
    assert (DAPO.filter_reason, BestOfVaried.filter_reason) == ("zero_variance", "filtered")


def test_the_command_line_says_so_with_exit_code_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_judges.py").write_text("def raises(completions):\n    raise ValueError('my judge is broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({**SMALL, "total_steps": 1, "reward": inline(["my_judges:raises"])}))
    assert main(["train", str(file), "--output_dir", str(tmp_path)]) == 1
    assert "the run's only step trained on nothing" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "small")]) == 0
    assert "samples had no reward; the first: reward 'raises'" in " ".join(capsys.readouterr().out.split())


def test_a_run_whose_every_loss_is_no_number_has_failed_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(Learner, "_gradients", lambda self, experience, weights_BA: (math.nan, {}))
    with pytest.raises(NothingToTrainOnError, match=r"none of the run's 2 steps .* the first in step 1: loss nan"):
        grpo(**SMALL, reward=inline(Spoilt(0.0)), output_dir=tmp_path, total_steps=2)
    assert (header(tmp_path)["status"], header(tmp_path)["ledger"]["trained"]) == ("failed", 0)


def test_a_supervised_run_whose_every_loss_is_no_number_has_failed_too(tmp_path):
    class Poison(Callback):
        def on_train_start(self, state):
            with torch.no_grad():
                self.model.lm_head.weight.fill_(math.nan)

    from proa.run.supervised import SupervisedRun

    poison = Poison()
    before = SupervisedRun.train

    def train(self, *arguments):
        poison.model = self.trained.model
        return before(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SupervisedRun, "train", train)
        with pytest.raises(NothingToTrainOnError, match="none of the run's 2 steps .* the first in step 1: loss nan"):
            sft(
                **{key: SMALL[key] for key in ("name", "model", "task")}, train_batch_size=4, total_steps=2,
                output_dir=tmp_path, callbacks=[poison],
            )  # fmt: skip
    assert header(tmp_path)["status"] == "failed"


def test_rewards_that_fail_in_part_are_a_metric_of_each_step_and_said_at_once(tmp_path, caplog, capsys):
    seen = []

    class Look(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            seen.append([record.getMessage() for record in caplog.records if "has no reward" in record.getMessage()])

    grpo(**SMALL, reward=inline(Spoilt("x")), output_dir=tmp_path, total_steps=2, callbacks=[Look()])
    steps = [row for row in rows(tmp_path) if "loss" in row]
    assert [row["reward_failed_fraction"] for row in steps] == [0.25, 0.25]  # the first of each lease of four
    assert len(seen[0]) == 1  # before the first step was over, and once
    assert "reward 'Spoilt' gave 'x', which is not a number. Its prompt: '" in seen[0][0]
    found = header(tmp_path)
    assert found["status"] == "completed"
    assert found["reward_failures"] == {
        "samples": found["ledger"]["dropped"]["reward_failed"],
        "first": "reward 'Spoilt' gave 'x', which is not a number",
    }


def test_a_run_without_failed_rewards_says_so_by_a_metric_of_0_and_nothing_else(tmp_path, caplog):
    grpo(**SMALL, reward=inline(Spoilt(0.0)), output_dir=tmp_path, total_steps=1)
    assert [row["reward_failed_fraction"] for row in rows(tmp_path) if "loss" in row] == [0.0]
    assert "reward_failures" not in header(tmp_path)
    assert "has no reward" not in caplog.text


@pytest.mark.parametrize(("reward", "warned"), [(lambda completions: [1.0] * len(completions), 1), (Spoilt(0.0), 0)])
def test_a_run_that_learned_nothing_because_every_gradient_was_0_says_so(tmp_path, caplog, reward, warned):
    grpo(**SMALL, reward=inline(reward), output_dir=tmp_path, total_steps=2)
    words = "the gradient of every step was 0, so nothing was learned: did all completions of each prompt get the same"
    assert caplog.text.count(words) == warned


def test_a_reward_beyond_the_limit_is_a_failed_reward_and_changes_nothing_else(tmp_path):
    digests = []
    for name, spoilt in {"none": "x", "float32": 1e39, "squared": 1e30}.items():
        grpo(**{**SMALL, "name": name, "total_steps": 2}, reward=inline(Spoilt(spoilt)), output_dir=tmp_path)
        found = json.loads((tmp_path / name / "run.json").read_text())
        assert found["status"] == "completed"
        digests.append(found["weights_digest"])
    assert len(set(digests)) == 1
    assert "gave 1e+30, beyond what a reward may be" in found["reward_failures"]["first"]


def alike(completions):
    return [1.0 for _ in completions]


def test_rewards_that_are_all_equal_are_a_metric_and_a_warning_after_some_steps(tmp_path, caplog, capsys):
    grpo(**SMALL, reward=inline(alike), output_dir=tmp_path, total_steps=7, callbacks=[ConsoleProgress()])
    assert {row["reward_zero_std_fraction"] for row in rows(tmp_path) if "loss" in row} == {1.0}
    assert caplog.text.count("in the last 5 steps all completions of each prompt got the same reward") == 1
    assert "100 % equal groups" in capsys.readouterr().out


def logs_length(completions, completion_ids, policy_version, log_metric, log_extra):
    log_metric("version_seen", max(policy_version))
    log_extra("ids", [len(ids) for ids in completion_ids])
    return [float(place) for place in range(len(completions))]


def test_what_a_reward_logs_is_a_metric_of_the_step_the_same_for_any_number_of_makers(tmp_path):
    found = []
    for makers in (1, 3):
        grpo(
            **SMALL, reward=inline(logs_length), output_dir=tmp_path / str(makers), total_steps=3, makers=makers,
            max_staleness=0,
        )  # fmt: skip
        steps = [row for row in rows(tmp_path / str(makers)) if "loss" in row]
        found.append([(row["version_seen"], row["ids"], row["completion_tokens"]) for row in steps])
    assert found[0] == found[1]
    assert [row[0] for row in found[0]] == [0.0, 1.0, 2.0]
    assert all(ids == tokens for _, ids, tokens in found[0])
