"""A policy that is spread over its trainers: what must be called by all ranks together is, at the same points."""

import copy
import json
import os

import pytest
import torch
from tests.learning.ranks import in_threads
from tests.learning.test_replicas import SAMPLING, Given, items
from tests.small import MODEL

from proa.algorithms import build_algorithm
from proa.config import load_run_config
from proa.evals.evaluator import EvalParticipant, PolicyEvaluator
from proa.learning.learner import Learner
from proa.learning.optimizer import OptimizerSettings
from proa.policy.models import load_model, model_weights, weights_digest
from proa.policy.policy import PlainPolicy
from proa.resume.checkpoints import Checkpoints, SavingParticipant
from proa.resume.inputs import Inputs
from proa.roles.policy_trainer import PolicyTrainer
from proa.roles.source import SharedSource
from proa.roles.weights import WeightStore
from proa.tasks.builtin.characters import tokenizer as characters


def not_here(*_, **__):
    raise AssertionError("the weights are not all in this process")


class SpreadPolicy(PlainPolicy):
    """A policy of another kind, in one place: each call that is collective waits for every rank, and what a rank has of
    the weights alone can be neither saved nor scored."""

    def __init__(self, model, tokenizer, replicas):
        super().__init__(model, tokenizer, [tokenizer.eos_token_id])
        self.replicas, self.calls = replicas, []
        model.state_dict = not_here

    def gathered(self):
        self._meet("gathered")
        return self._whole()

    def published(self):
        self._meet("published")
        return self._whole().published()

    def _whole(self):
        model = copy.deepcopy(self.model)
        del model.__dict__["state_dict"]
        return PlainPolicy(model, self.tokenizer, self.end_ids)

    def _meet(self, call):
        self.calls.append(call)
        assert self.replicas.gather(call) == [call] * self.replicas.size


class Record:
    """A run's record, in memory."""

    def __init__(self):
        self.evals = []

    def before_saving(self):
        return {}

    def write_step(self, record):
        raise AssertionError("nobody takes what a step leaves")

    def report_eval(self, result, predictions):
        self.evals.append((result.step, len(predictions)))


class NothingMore:
    """What a checkpoint holds beside its policy and its loop."""

    def parts(self):
        return {}

    def run_part(self):
        return {}


def trainer_of(model, seat, steps, folder, save_every=2):
    config = load_run_config(
        model={"config": MODEL}, task="sort_digits", total_steps=9, train_batch_size=4, output_dir=folder,
        sampling={"group_size": 2, "max_new_tokens": 3}, checkpoint={"save_every": save_every, "keep": None},
        eval=[{"name": "a", "run_every": 2, "count": 2}],
    )  # fmt: skip
    policy = SpreadPolicy(copy.deepcopy(model), characters(), seat)
    (section,) = config.eval
    if seat.rank == 0:
        evaluator, record = PolicyEvaluator(section, config, policy), Record()
        evaluator.record = record
        saver = Checkpoints(config, folder, policy, NothingMore(), record, Inputs())
    else:
        evaluator, saver, record = EvalParticipant(section, policy), SavingParticipant(save_every, policy), None
    learner = Learner(
        policy, build_algorithm("grpo"), OptimizerSettings(learning_rate=1e-2), replicas=seat, optimizer_steps=9,
        sampling=SAMPLING,
    )  # fmt: skip
    trainer = PolicyTrainer(
        learner, store=WeightStore(), source=SharedSource(seat, Given(steps) if seat.rank == 0 else None),
        evaluators=[evaluator], saver=saver,
    )  # fmt: skip
    return trainer, policy, record


@pytest.fixture
def model(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return load_model(MODEL, seed=3)


def saved_names(folder):
    return [json.loads(line)["name"] for line in (folder / "checkpoints.jsonl").read_text().splitlines()]


def test_every_rank_takes_part_in_pushes_evals_and_checkpoints(model, tmp_path):
    def work(seat):
        trainer, policy, record = trainer_of(model, seat, [items(4, seed=step) for step in range(3)], tmp_path)
        trainer.fit(3, 1)
        return trainer, policy, record

    done = [future.result() for future in in_threads(2, work)]
    calls = [policy.calls for _, policy, _ in done]
    assert calls[0] == calls[1]
    # A baseline; after each of three steps a push, after the second an eval and a checkpoint; both again at the end.
    assert calls[0] == [
        "gathered", "published", "gathered", "gathered", "published", "published", "gathered", "gathered",
    ]  # fmt: skip
    assert saved_names(tmp_path) == ["step_2", "final"]
    saved, trained = load_model(tmp_path / "model"), done[0][1]._whole().model
    assert weights_digest(model_weights(saved)) == weights_digest(model_weights(trained))
    assert done[0][2].evals == [(-1, 2), (1, 2), (2, 2)]
    assert "a.exact" in done[0][0].state.metrics
    assert "a.exact" not in done[1][0].state.metrics


def test_one_rank_that_is_asked_to_leave_takes_the_others_along_and_all_save(model, tmp_path):
    asked = []

    def work(seat):
        steps = [items(4, seed=step) for step in range(9)]
        trainer, policy, _ = trainer_of(model, seat, steps, tmp_path, save_every=0)
        step = trainer.training_step

        def asked_in_the_second(experience):
            if seat.rank == 1 and trainer.state.global_step == 1:
                trainer.interrupt("SIGTERM")
                asked.append(seat.rank)
            return step(experience)

        trainer.training_step = asked_in_the_second
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            trainer.fit(9, 1)
        return trainer, policy

    done = [future.result() for future in in_threads(2, work)]
    assert asked == [1]
    assert [trainer.state.global_step for trainer, _ in done] == [2, 2]
    assert saved_names(tmp_path) == ["step_2"]
    assert done[0][1].calls == done[1][1].calls
