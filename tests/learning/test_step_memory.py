"""Memory that is short: one smaller budget, said, journaled, kept in checkpoints and repeated; or a sentence."""

import json
import logging

import pytest
import torch
from tests.small import MODEL_WITH_END

from proa import CallbackManager, recipes
from proa.learning.learner import Learner
from proa.learning.step_memory import OutOfMemory, StepMemory
from proa.run.replay import replay

SETTINGS = {
    "model": {"config": MODEL_WITH_END}, "task": "sort_digits", "total_steps": 4, "train_batch_size": 8,
    "optimizer.learning_rate": 1e-3, "reward.workers": 0, "sampling.group_size": 4, "sampling.max_new_tokens": 6,
    "optimizer.token_budget": 400, "checkpoint.save_every": 2,
}  # fmt: skip


def shortage(message="CUDA out of memory. Tried to allocate 2 GiB"):
    return torch.OutOfMemoryError(message)


@pytest.fixture
def short_at(monkeypatch):
    """Memory is short in these steps, in the middle of their micro-batches, whenever more than so many tokens are
    computed at once."""

    def install(*steps, fits=200):
        compute = Learner._micro_batch

        def limited(learner, experience, rows, *rest):
            gradient = compute(learner, experience, rows, *rest)
            if learner.optimizer.steps in steps and learner._memory.token_budget > fits:
                raise shortage()
            return gradient

        monkeypatch.setattr(Learner, "_micro_batch", limited)

    return install


def header(folder):
    return json.loads((folder / "run.json").read_text())


def budgets(folder):
    file = folder / "journal.jsonl"
    entries = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(entry["step"], entry["tokens"]) for entry in entries if entry["kind"] == "token_budget"]


def test_a_step_that_does_not_fit_is_computed_in_smaller_pieces_from_there_on(tmp_path, short_at, caplog):
    short_at(1, 2)
    with caplog.at_level(logging.WARNING):
        recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="run")
    assert header(tmp_path / "run")["steps_run"] == 4
    assert budgets(tmp_path / "run") == [(1, 200)]
    assert "memory was short at step 2 with 400 tokens at once: from here on it is 200" in caplog.text


def test_the_passes_before_the_gradient_are_computed_in_smaller_pieces_too(tmp_path, monkeypatch):
    compute = Learner._log_probs

    def limited(learner, asked, experience):
        log_probs = compute(learner, asked, experience)
        if learner._memory.token_budget > 200:
            raise shortage()
        return log_probs

    monkeypatch.setattr(Learner, "_log_probs", limited)
    settings = SETTINGS | {"algorithm.old": "trainer"}
    recipes.grpo(**settings, output_dir=str(tmp_path), name="short")
    assert budgets(tmp_path / "short") == [(0, 200)]
    monkeypatch.undo()
    recipes.grpo(**settings | {"optimizer.token_budget": 200}, output_dir=str(tmp_path), name="small")
    assert header(tmp_path / "short")["weights_digest"] == header(tmp_path / "small")["weights_digest"]


def test_what_the_failed_attempt_left_is_not_trained_on(tmp_path, short_at):
    short_at(0)
    recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="short")
    recipes.grpo(**SETTINGS | {"optimizer.token_budget": 200}, output_dir=str(tmp_path), name="small")
    assert header(tmp_path / "short")["weights_digest"] == header(tmp_path / "small")["weights_digest"]


def test_a_run_is_repeated_with_its_smaller_pieces(tmp_path, short_at, monkeypatch):
    short_at(1)
    recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="run")
    monkeypatch.undo()
    repeated = replay(tmp_path / "run")
    assert repeated.same
    assert budgets(repeated.folder) == [(1, 200)]


@pytest.mark.prove
def test_a_resumed_run_keeps_its_smaller_pieces(tmp_path, short_at):
    short_at(1)
    recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="whole")

    def fail(step_idx):
        if step_idx == 2:
            raise ArithmeticError

    manager = CallbackManager()
    manager.on("step_end")(lambda state, step_idx: fail(step_idx))
    with pytest.raises(ArithmeticError):
        recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="cut", callbacks=manager)
    recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="cut", resume="auto")
    assert header(tmp_path / "cut")["weights_digest"] == header(tmp_path / "whole")["weights_digest"]


def test_if_smaller_pieces_do_not_fit_either_the_run_says_what_to_set(tmp_path, short_at):
    short_at(1, fits=0)
    with pytest.raises(OutOfMemory, match=r"step 2 does not fit .* 200 tokens at once: set model.gradient_checkpoint"):
        recipes.grpo(**SETTINGS, output_dir=str(tmp_path), name="run")
    assert header(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize(("budget", "can_shrink"), [(400, False), (1, True), (0, True)])
def test_what_cannot_be_made_smaller_is_said(budget, can_shrink):
    with pytest.raises(OutOfMemory, match=r"does not fit into the memory of its device"):
        StepMemory(budget).shrink(shortage(), can_shrink=can_shrink)


@pytest.mark.parametrize(("saved", "now", "used"), [((400, 200), 400, 200), ((400, 400), 800, 800), ((0, 0), 400, 400)])
def test_a_budget_that_was_made_smaller_is_kept_unless_the_user_plans_another(saved, now, used):
    memory = StepMemory(now)
    memory.load_state_dict({"planned": saved[0], "token_budget": saved[1]})
    assert memory.token_budget == used
