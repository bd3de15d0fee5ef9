"""A policy that is spread over its trainers: what must be called by all ranks together is, at the same points."""

import copy

import pytest
import torch
from tests.learning.ranks import in_threads
from tests.learning.test_replicas import CONFIG, SAMPLING, Given, items

from proa.algorithms import build_algorithm
from proa.config.sections import EvalSection
from proa.data.loop import ManifestRow
from proa.evals.evaluator import EvalParticipant
from proa.learning.learner import Learner
from proa.learning.optimizer import OptimizerSettings
from proa.loop import Evaluator, Saver, ScoreFunction
from proa.policy.models import load_model, weights_digest
from proa.policy.policy import PlainPolicy
from proa.resume.checkpoints import SavingParticipant
from proa.roles.policy_trainer import PolicyTrainer
from proa.roles.source import SharedSource
from proa.roles.weights import WeightStore


class SpreadPolicy(PlainPolicy):
    """A policy of another kind, in one place: each call that is collective waits for every rank."""

    def __init__(self, model, replicas):
        super().__init__(model)
        self.replicas, self.calls = replicas, []

    def gathered(self):
        self._meet("gathered")
        return self

    def published(self):
        self._meet("published")
        return super().published()

    def _meet(self, call):
        self.calls.append(call)
        assert self.replicas.gather(call) == [call] * self.replicas.size


class Scores(Evaluator):
    def __init__(self, policy):
        super().__init__("a", run_every=2, baseline=True)
        self.policy = policy

    def begin(self, state):
        digest = weights_digest(self.policy.gathered().weights())
        return ScoreFunction("a", lambda: {"digest": float(int(digest[:8], 16))}).begin(state)


class Saves(Saver):
    def __init__(self, policy, save_every):
        super().__init__(save_every)
        self.policy, self.names = policy, []

    def save(self, name, state):
        self.loop.state_dict()
        self.policy.gathered()
        self.names.append(name)
        return ManifestRow(name, state.global_step - 1, 0, step=state.global_step)


def trainer_of(model, seat, steps, save_every=2):
    policy = SpreadPolicy(copy.deepcopy(model), seat)
    first = seat.rank == 0
    section = EvalSection(name="a", run_every=2, baseline=True)
    learner = Learner(
        policy, build_algorithm("grpo"), OptimizerSettings(learning_rate=1e-2), replicas=seat, optimizer_steps=9,
        sampling=SAMPLING,
    )  # fmt: skip
    trainer = PolicyTrainer(
        learner, store=WeightStore(), source=SharedSource(seat, Given(steps) if first else None),
        evaluators=[Scores(policy) if first else EvalParticipant(section, policy)],
        saver=Saves(policy, save_every) if first else SavingParticipant(save_every, policy),
    )  # fmt: skip
    return trainer, policy


@pytest.fixture
def model():
    torch.set_num_threads(1)
    return load_model(CONFIG, dtype="float64", seed=3)


def test_every_rank_takes_part_in_pushes_evals_and_checkpoints(model):
    def work(seat):
        trainer, policy = trainer_of(model, seat, [items(4, seed=step) for step in range(3)])
        trainer.fit(3, 1)
        return trainer, policy

    done = [future.result() for future in in_threads(2, work)]
    calls = [policy.calls for _, policy in done]
    assert calls[0] == calls[1]
    # A baseline; after each of three steps a push, after the second an eval and a checkpoint; both again at the end.
    assert calls[0] == [
        "gathered", "published", "gathered", "gathered", "published", "published", "gathered", "gathered",
    ]  # fmt: skip
    assert done[0][0].saver.names == ["step_2", "final"]
    assert "a.digest" in done[0][0].state.metrics
    assert "a.digest" not in done[1][0].state.metrics


def test_one_rank_that_is_asked_to_leave_takes_the_others_along_and_all_save(model):
    asked = []

    def work(seat):
        trainer, policy = trainer_of(model, seat, [items(4, seed=step) for step in range(9)], save_every=0)
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
    assert done[0][0].saver.names == ["step_2"]
    assert done[0][1].calls == done[1][1].calls
