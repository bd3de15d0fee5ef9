"""Completions that are kept of some steps: which, of whom, and what each token was given."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch
from tests.small import MODEL
from tests.tasks.tiny_tokenizers import KINDS, tiny_tokenizer

from proa import Callback
from proa.config import load_run_config
from proa.config.sections import RecordSection
from proa.data.experience import Experience
from proa.recipes import dapo, grpo
from proa.run.step_record import TakeStepRecord, _pieces
from proa.runtime.ray.link import DriverLink
from proa.tasks.completions import completion_tokens


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    grpo(
        name="r", output_dir=folder, total_steps=6, train_batch_size=8, max_staleness=1, model={"config": MODEL},
        task={"source": "sort_digits", "count": 64}, reward={"workers": 0}, optimizer={"learning_rate": 1e-2},
        sampling={"group_size": 2, "max_new_tokens": 7}, record={"rollouts": 3, "rollouts_every": 2},
    )  # fmt: skip
    return folder / "r"


def kept(run, step):
    return [json.loads(line) for line in (run / "rollouts" / f"step_{step + 1}.jsonl").read_text().splitlines()]


def test_so_many_are_kept_of_every_so_manyth_step(run):
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == [
        "step_1.jsonl",
        "step_3.jsonl",
        "step_5.jsonl",
    ]
    assert [len(kept(run, step)) for step in (0, 2, 4)] == [3, 3, 3]
    assert [{row["step"] for row in kept(run, step)} for step in (0, 2, 4)] == [{0}, {2}, {4}]


def test_each_token_has_what_it_was_given(run):
    for row in kept(run, 2):
        lengths = {len(row[name]) for name in ("tokens", "log_probs", "trainer_log_probs", "advantages", "versions")}
        assert len(lengths) == 1
        assert "".join(row["tokens"]).startswith(row["completion"])
        assert all(value < 0 for value in row["log_probs"])
        assert row["prompt"].endswith(">")
        assert row["finish_reason"] in ("stop", "length")


def test_what_maker_and_trainer_thought_is_the_same_with_the_same_weights_and_not_with_older_ones(run):
    for row in kept(run, 0):
        assert row["versions"] == [0] * len(row["tokens"])
        assert row["trainer_log_probs"] == pytest.approx(row["log_probs"], abs=1e-4)
    late = kept(run, 4)
    assert {version for row in late for version in row["versions"]} == {3}
    assert any(row["trainer_log_probs"] != pytest.approx(row["log_probs"], abs=1e-4) for row in late)


def test_another_part_of_the_batch_is_kept_each_time(run):
    """Three of eight from place 0, then from place 3, then from place 6 and around the end; groups are of two."""
    groups = [[row["group_id"] for row in kept(run, step)] for step in (0, 2, 4)]
    assert [len(set(one)) for one in groups] == [2, 2, 2]
    assert groups[0][0] == groups[0][1] != groups[0][2]
    assert groups[1][0] != groups[1][1] == groups[1][2]
    assert groups[2][0] == groups[2][1] != groups[2][2]


def test_rewards_and_advantages_of_a_group_belong_together(run):
    for row in kept(run, 0):
        assert 0.0 <= row["reward"] <= 1.0
        assert len({round(value, 5) for value in row["advantages"]}) == 1


def test_nothing_is_kept_of_a_step_that_trained_on_nothing(tmp_path):
    trained = threading.Event()

    class Note(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            trained.set()

    def reward(completions):
        return [1.0 if trained.is_set() else float(place) for place, _ in enumerate(completions)]

    dapo(
        name="r", output_dir=tmp_path, total_steps=2, train_batch_size=4, max_staleness=0, model={"config": MODEL},
        task="sort_digits", reward={"workers": 0, "functions": reward}, callbacks=[Note()],
        sampling={"group_size": 2, "max_new_tokens": 3}, record={"rollouts": 3, "rollouts_every": 1},
    )  # fmt: skip
    skipped = [json.loads(line).get("skipped") for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert skipped == [None, 1.0]
    assert [path.name for path in (tmp_path / "r" / "rollouts").iterdir()] == ["step_1.jsonl"]


def test_every_actor_has_spans_with_the_step_or_the_lease_they_were_for(run):
    spans = [json.loads(line) for line in (run / "spans.jsonl").read_text().splitlines()]
    trainer = [span for span in spans if span["actor"] == "trainer_0"]
    maker = [span for span in spans if span["actor"] != "trainer_0"]
    assert {span["step"] for span in trainer} == set(range(6))
    assert {"generate"} <= {span["kind"] for span in maker}
    assert all(span["seconds"] >= 0 and span["version"] in range(6) for span in maker)


def test_nothing_is_kept_where_nothing_is_wanted(tmp_path):
    grpo(
        name="r", output_dir=tmp_path, total_steps=2, train_batch_size=4, model={"config": MODEL}, task="sort_digits",
        reward={"workers": 0}, sampling={"group_size": 2, "max_new_tokens": 7}, record={"rollouts": 0, "spans": False},
    )  # fmt: skip
    assert not (tmp_path / "r" / "rollouts").exists()
    assert not (tmp_path / "r" / "spans.jsonl").exists()


def test_what_a_prompt_was_padded_with_is_not_kept_though_it_may_be_a_token_like_others():
    experience = Experience(
        sequences=torch.tensor([[0, 0, 5, 7, 8, 0]]),
        action_log_probs=torch.tensor([[-0.5, -0.25, 0.0]]),
        advantages=torch.tensor([[1.0, 2.0, float("inf")]]),
        attention_mask=torch.tensor([[False, False, True, True, True, False]]),
        action_mask=torch.tensor([[True, True, False]]),
    )
    learner = SimpleNamespace(log_probs=torch.tensor([[-0.5, float("-inf"), 0.0]]))
    trainer = SimpleNamespace(batch_in_step=experience, learner=learner)
    words = SimpleNamespace(decode=lambda tokens, **_: " ".join(map(str, tokens)))
    config = SimpleNamespace(total_steps=1, train_epochs=1, record=RecordSection(rollouts=1))
    (row,) = TakeStepRecord(trainer, None, None, words, config)._rollouts(0)
    assert (row["prompt"], row["completion"], row["tokens"]) == ("5", "7 8", [" 7", " 8"])
    assert (row["log_probs"], row["trainer_log_probs"], row["advantages"]) == ([-0.5, -0.25], [-0.5, None], [1.0, 2.0])


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (60, 1), (300, 6), (5000, 100)])
def test_by_default_some_fifty_steps_of_a_run_are_kept(tmp_path, steps, every):
    config = load_run_config(
        None, name="r", output_dir=tmp_path, total_steps=steps, train_batch_size=8, model={"config": MODEL},
        task="sort_digits",
    )  # fmt: skip
    trainer = SimpleNamespace(learner=SimpleNamespace(keep_log_probs=None))
    record = TakeStepRecord(trainer, None, None, None, config)
    due = [step for step in range(steps) if record._is_kept(step)]
    assert due == list(range(0, steps, every))
    assert len(due) <= 60


def test_the_texts_of_tokens_have_the_spaces_that_the_completion_has():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        prompt, completion = completion_tokens("Answer: yes", " the cat  sat", tokenizer, where="row 0")
        assert "".join(_pieces(prompt, completion, tokenizer)) == " the cat  sat</s>", kind


def test_on_ray_a_step_is_recorded_before_the_driver_hears_of_it():
    assert TakeStepRecord.priority > DriverLink.priority  # the console shows a sample of what was recorded
