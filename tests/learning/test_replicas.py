"""Several trainers: each with its share of a batch, together the gradient, the metrics and the ends of one."""

import copy

import pytest
import torch
from tests.learning.ranks import in_threads

from proa import TrainerCallback
from proa.algorithms import PPO, build_algorithm
from proa.data.experience import BufferItem
from proa.data.facts import SampleFacts
from proa.data.sampling import Sampling
from proa.learning.learner import StepSettings
from proa.learning.optimizer import OptimizerSettings
from proa.learning.replicas import Alone, ReplicaError
from proa.leases.ledger import Ledger
from proa.policy.critic import separate_critic, shared_critic
from proa.policy.micro_batches import deal_rows
from proa.policy.models import load_model
from proa.roles.policy_trainer import DetachedGRPOTrainer, DetachedPPOTrainer
from proa.roles.source import SharedSource
from proa.roles.weights import WeightStore

CONFIG = {"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 24}
SAMPLING = Sampling(group_size=3, max_new_tokens=6)


@pytest.fixture
def model():
    torch.set_num_threads(1)
    return load_model(CONFIG, dtype="float64", seed=3)


def items(groups=4, seed=0):
    """Groups of three completions, of many lengths."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for group in range(groups):
        prompt = torch.randint(1, 11, (1 + group % 3,), generator=generator)
        for sample in range(3):
            completion = torch.randint(1, 11, (1 + (group + 2 * sample) % 6,), generator=generator)
            made.append(
                BufferItem(
                    torch.cat([prompt, completion]),
                    -2 - 0.3 * torch.rand(len(completion), generator=generator, dtype=torch.float64),
                    reward=torch.randn((), generator=generator, dtype=torch.float64),
                    uid=f"{group}/{sample}",
                    group_id=str(group),
                    facts=SampleFacts("length" if sample == 1 else "stop"),
                )
            )
    return made


class Given:
    """A source that has every step's items, and writes down what is settled."""

    made: dict[str, float] = {}  # noqa: RUF012
    logged: dict[str, float] = {}  # noqa: RUF012

    def __init__(self, steps):
        self.steps, self.ready, self.settled, self.ledger = list(steps), True, [], Ledger()

    def start_episode(self, episode):
        pass

    def take_step(self, owner):
        return self.steps.pop(0)

    def settle(self, taken, *, dropped=None):
        self.settled.append(len(taken))

    def interrupt(self):
        pass

    def state_dict(self):
        return {}

    def versions_in_use(self):
        return None

    def close(self, reason):
        pass


def build(model, replicas, steps, algorithm, *, callbacks=(), old="sampler", share_prompts=False, critic="shared"):
    own = copy.deepcopy(model)
    source = Given(steps) if replicas.rank == 0 else None
    common = {
        "algorithm": algorithm, "sampling": SAMPLING, "optimizer": OptimizerSettings(learning_rate=1e-2),
        "optimizer_steps": 10, "store": WeightStore(), "replicas": replicas, "callbacks": callbacks,
        "settings": StepSettings(token_budget=20, old=old, share_prompts=share_prompts),
        "source": source if replicas.size == 1 else SharedSource(replicas, source),
    }  # fmt: skip
    if isinstance(algorithm, PPO):
        made = shared_critic(own) if critic == "shared" else separate_critic(own)
        trainer = DetachedPPOTrainer([], own, critic=made, **common)
    else:
        trainer = DetachedGRPOTrainer([], own, **common)
    return trainer


class Metrics(TrainerCallback):
    all_ranks = True

    def __init__(self):
        self.rows = []

    def on_batch_end(self, metrics, experience):
        self.rows.append({name: value for name, value in metrics.items() if not name.startswith("trainer.")})


def fit(model, replicas, steps, algorithm, *, epochs=1, callbacks=(), **settings):
    heard = Metrics()
    trainer = build(model, replicas, steps, algorithm, callbacks=[heard, *callbacks], **settings)
    trainer.fit(len(steps), 1, epochs)
    return trainer, heard.rows


def parameters(trainer):
    return [p for optimizer in trainer.learner.optimizers for p in optimizer.parameters]


ALGORITHMS = [
    ("grpo", {}, {}),
    ("grpo", {"kl_coefficient": 0.1}, {"share_prompts": True}),
    ("dr_grpo", {}, {"old": "trainer"}),
    ("dapo", {}, {}),
    ("gspo", {}, {}),
    ("reinforce_pp", {"kl_reward_coefficient": 0.1}, {}),
    ("ppo", {"kl_reward_coefficient": 0.1, "kl_target": 1.0}, {}),
    ("ppo", {"bootstrap_truncated": True}, {"critic": "separate"}),
]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("name", "params", "settings"), ALGORITHMS, ids=lambda value: str(value))
def test_several_trainers_make_the_steps_that_one_makes(model, name, params, settings, size):
    """Loss, gradient, weights and metrics after two batches, each gone over twice; 5 groups deal unevenly."""
    algorithm = build_algorithm(name, **params)
    steps = [items(4, seed=1), items(5, seed=2)]
    alone, told_alone = fit(model, Alone(), steps, algorithm, epochs=2, **settings)
    futures = in_threads(size, lambda seat: fit(model, seat, steps, algorithm, epochs=2, **settings))
    for future in futures:
        trainer, told = future.result()
        for ours, theirs in zip(parameters(trainer), parameters(alone), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)
            torch.testing.assert_close(ours.data, theirs.data, rtol=0, atol=1e-10)  # Adam divides by small numbers
        assert [row.keys() for row in told] == [row.keys() for row in told_alone]
        for ours, theirs in zip(told, told_alone, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-7, abs=1e-9)
    first, *others = [future.result()[0] for future in futures]
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(parameters(first), parameters(other), strict=True))


@pytest.mark.parametrize(("name", "settings"), [("grpo", {}), ("ppo", {"critic": "separate"})])
def test_in_bfloat16_several_trainers_have_the_same_float32_weights_and_the_gradient_of_one(name, settings, bfloat16):
    """Each pass gives gradients rounded to 2^-9; which rows it has differs, so that is how far they may differ, of the
    largest. What is added up over micro-batches and trainers is float32, as its numbers show."""
    half = load_model(CONFIG, dtype=bfloat16, seed=3)
    steps = [items(5, seed=2)]
    alone, _ = fit(half, Alone(), steps, build_algorithm(name), **settings)
    trainers = [future.result()[0] for future in in_threads(3, lambda seat: fit(
        half, seat, steps, build_algorithm(name), **settings))]  # fmt: skip
    first, *others = map(parameters, trainers)
    assert any(not torch.equal(one.grad, one.grad.to(torch.bfloat16).float()) for one in first)
    for ours, theirs in zip(first, parameters(alone), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        assert (ours.grad - theirs.grad).abs().max() <= 0.05 * max(float(one.grad.abs().max()) for one in first)
    for other in others:
        assert all(torch.equal(a, b) and torch.equal(a.grad, b.grad) for a, b in zip(first, other, strict=True))


def test_a_batch_with_fewer_groups_than_trainers_is_trained_all_the_same(model):
    """As filtering may leave it: the one without a group adds nothing, and steps with the others."""
    algorithm = build_algorithm("grpo")
    alone, _ = fit(model, Alone(), [items(1)], algorithm)
    for future in in_threads(2, lambda seat: fit(model, seat, [items(1)], algorithm)):
        trainer, _ = future.result()
        for ours, theirs in zip(parameters(trainer), parameters(alone), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


class StopOn(TrainerCallback):
    """Asks for a stop at one of the ranks, at one of the moments."""

    all_ranks = True

    def __init__(self, seat, moment, step):
        self.rank, self.moment, self.step, self.trainer = seat.rank, moment, step, None

    def _maybe(self, moment):
        if self.trainer is not None and moment == self.moment and self.trainer.state.global_step == self.step:
            self.trainer.state.stop_training("enough", by=f"rank {self.rank}")

    def on_batch_end(self, metrics, experience):
        self._maybe("step_end")

    def on_epoch_end(self, epoch):
        self._maybe("epoch_end")

    def on_update_end(self):
        self._maybe("update_end")


@pytest.mark.parametrize("moment", ["step_end", "epoch_end", "update_end"])
@pytest.mark.parametrize("asking", [0, 2])
def test_a_stop_asked_of_one_ends_all_at_the_same_step(model, moment, asking):
    def run(seat):
        stop = StopOn(seat, moment, 2)
        trainer = build(model, seat, [items(3, seed=s) for s in range(4)], build_algorithm("grpo"), callbacks=[stop])
        stop.trainer = trainer if seat.rank == asking else None
        trainer.fit(4, 1)
        return trainer.state

    states = [future.result() for future in in_threads(3, run)]
    assert [(state.global_step, state.stop_reason) for state in states] == [(2, "enough")] * 3
    assert {state.stopped_by for state in states} == {f"rank {asking}"}


class FailOn(TrainerCallback):
    all_ranks = True

    def __init__(self, step):
        self.step, self.steps = step, 0

    def on_batch_start(self):
        self.steps += 1
        if self.steps == self.step:
            raise OSError("the disk is full")


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_at_one_ends_all_at_the_same_step_and_is_named(model, failing):
    def run(seat):
        callbacks = [FailOn(2)] if seat.rank == failing else []
        steps = [items(3, seed=s) for s in range(4)]
        trainer = build(model, seat, steps, build_algorithm("grpo"), callbacks=callbacks)
        states.append(trainer)
        trainer.fit(4, 1)

    states = []
    futures = in_threads(2, run)
    with pytest.raises(OSError, match="the disk is full"):
        futures[failing].result()
    with pytest.raises(ReplicaError, match=f"trainer_{failing} failed: OSError: the disk is full"):
        futures[1 - failing].result()
    assert [trainer.state.global_step for trainer in states] == [1, 1]


def test_the_first_alone_settles_and_the_ranks_know_who_they_are(model):
    trainers = [f.result()[0] for f in in_threads(2, lambda s: fit(model, s, [items(2)] * 2, build_algorithm("grpo")))]
    assert trainers[0].source._source.settled == [6, 6]
    assert [(t.state.rank, t.state.world_size) for t in trainers] == [(0, 2), (1, 2)]
    assert trainers[0].store.versions == [1, 2]
    assert trainers[1].store.versions == []


@pytest.mark.parametrize("trainers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_groups_are_dealt_whole_evenly_and_by_their_tokens(trainers, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 100, (6 * trainers * 4,), generator=generator).tolist()
    groups = [row // 4 for row in range(len(lengths))]
    dealt = deal_rows(lengths, groups, trainers)
    assert sorted(row for rows in dealt for row in rows) == list(range(len(lengths)))
    owners = [{trainer for trainer, rows in enumerate(dealt) for row in rows if groups[row] == g} for g in set(groups)]
    assert all(len(owner) == 1 for owner in owners)
    assert len({len(rows) for rows in dealt}) == 1
    tokens = [sum(lengths[row] for row in rows) for rows in dealt]
    whole = [sum(lengths[row] for row in range(len(lengths)) if groups[row] == group) for group in set(groups)]
    assert max(tokens) - min(tokens) <= max(whole) - min(whole)
