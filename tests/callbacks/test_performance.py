"""Throughput and shares of time, against runs whose speed is known."""

import pytest
import torch

from proa import CallbackManager, Experience, LoopState
from proa.callbacks import ExperienceMakerPerformanceEvaluator, TrainerPerformanceEvaluator
from proa.callbacks import performance as performance_module
from proa.lifecycle import Lifecycle


class Clock:
    """Moves only when it is told to: the machine may be busy."""

    now = 0.0

    def sleep(self, seconds):
        self.now += seconds


time = Clock()


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(performance_module, "perf_counter", lambda: time.now)


def experience(rows=4, length=10, padding=2):
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[:, :padding] = False
    return Experience(torch.zeros(rows, length, dtype=torch.long), torch.zeros(rows, 3), attention_mask=mask)


def run_trainer(evaluator, *, episodes=3):
    life = Lifecycle(CallbackManager([evaluator]), LoopState())
    with life.training():
        for episode in range(episodes):
            with life.episode(episode):
                with life.epoch(0):
                    with life.waiting():
                        time.sleep(0.02)
                    with life.step() as step:
                        time.sleep(0.05)
                        step.experience = experience()
                with life.update(episode + 1):
                    time.sleep(0.03)
    return evaluator.performance


def test_a_trainer_is_measured_without_its_first_episode(capsys):
    performance = run_trainer(TrainerPerformanceEvaluator(1000, 500))
    assert (performance.samples, performance.tokens) == (8, 64)
    assert performance.flop == 6 * 1500 * 64
    assert performance.seconds == pytest.approx(0.2)
    assert performance.shares["training"] == pytest.approx(0.5)
    assert performance.shares["updating"] == pytest.approx(0.3)
    assert performance.shares["waiting"] == pytest.approx(0.2)
    assert sum(performance.shares.values()) == pytest.approx(1.0)
    assert performance.samples_per_second == pytest.approx(8 / performance.seconds)
    assert performance.tflops == pytest.approx(performance.flop / performance.seconds / 1e12)
    assert "trainer performance" in capsys.readouterr().out


def test_recomputation_counts_as_another_forward_pass():
    performance = run_trainer(TrainerPerformanceEvaluator(1000, enable_grad_checkpoint=True, verbose=False))
    assert performance.flop == 8 * 1000 * 64


def test_nothing_but_warm_up_is_said():
    assert "nothing measured" in str(run_trainer(TrainerPerformanceEvaluator(1000, verbose=False), episodes=1))


def test_a_maker_is_measured_without_its_first_batch(capsys):
    evaluator = ExperienceMakerPerformanceEvaluator(1000, 10, 20, 30)
    manager, state = CallbackManager([evaluator]), LoopState()
    moments = manager.moments
    moments.maker_loop_start(state)
    for _ in range(3):
        moments.maker_batch_start(state)
        moments.maker_make_experience_start(state)
        time.sleep(0.03)
        moments.maker_make_experience_end(state, experience())
        moments.maker_send_start(state)
        time.sleep(0.01)
        moments.maker_send_end(state)
        moments.maker_batch_end(state)
    moments.maker_loop_end(state)
    performance = evaluator.performance
    assert (performance.samples, performance.tokens) == (8, 64)
    assert performance.flop == 2 * 1060 * 64
    assert performance.shares["making"] == pytest.approx(0.75)
    assert performance.shares["sending"] == pytest.approx(0.25)
    assert "maker performance" in capsys.readouterr().out


def test_without_a_mask_every_position_is_a_token():
    evaluator = TrainerPerformanceEvaluator(1, ignore_first_episodes=0, verbose=False)
    manager = CallbackManager([evaluator])
    manager.fire("train_start", LoopState())
    manager.fire("step_end", LoopState(), experience=Experience(torch.zeros(2, 5), torch.zeros(2, 1)))
    manager.fire("train_end", LoopState())
    assert evaluator.performance.tokens == 10


def test_the_rows_of_a_trajectory_are_one_sample():
    evaluator = TrainerPerformanceEvaluator(1, ignore_first_episodes=0, verbose=False)
    manager = CallbackManager([evaluator])
    made = Experience(torch.zeros(3, 5), torch.zeros(3, 1), uids=("0/0", "0/0", "0/1"))
    manager.fire("train_start", LoopState())
    manager.fire("step_end", LoopState(), experience=made)
    manager.fire("train_end", LoopState())
    assert evaluator.performance.samples == 2
