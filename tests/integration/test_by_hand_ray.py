"""Topologies by hand on Ray: makers follow the weights of their trainers, and rewards rise."""

import socket

import pytest
import torch
from tests.small import MODEL

from proa import DetachedGRPOTrainer, DetachedPPOTrainer, ExperienceMakerHolder, TrainerCallback
from proa.policy.models import load_model, save_model, weights_digest
from proa.tasks.builtin import builtin_task
from proa.tasks.builtin.characters import tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

ROUNDS, FREE_PUSHES, GROUP, PROMPTS = 16, 2, 4, 4
LORA = {"rank": 8, "alpha": 64.0}


def sevens(completions, **_):
    return [text.count("7") / max(1, len(text)) for text in completions]


class Rewards(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_batch_end(self, metrics, experience):
        self.seen.append(metrics["reward"])


class Shown:
    """What a test wants to know of a trainer."""

    def outcome(self):
        rewards = next(one for one in self.manager.callbacks if isinstance(one, Rewards))
        return rewards.seen, self.state.policy_version, weights_digest(self.policy.weights()), self.source.ledger.closes


class GRPOTrainer(Shown, DetachedGRPOTrainer):
    pass


class PPOTrainer(Shown, DetachedPPOTrainer):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = load_model(MODEL)
    with torch.no_grad():
        model.lm_head.weight *= 40  # a frozen head that is nearly 0 could not say anything with confidence
    save_model(model, tokenizer(), tmp_path_factory.mktemp("model"))
    return str(tmp_path_factory.getbasetemp() / "model0")


def case(kind, makers, trainers, lora):
    long = (kind, makers, trainers, lora) != (PPOTrainer, 1, 2, LORA)
    name = f"{kind.__name__}-{makers}x{trainers}-{'lora' if lora else 'full'}"
    return pytest.param(kind, makers, trainers, lora, id=name, marks=[pytest.mark.prove] if long else [])


CASES = [
    case(kind, makers, trainers, lora)
    for kind in (GRPOTrainer, PPOTrainer)
    for makers, trainers in ((1, 1), (2, 2), (3, 1), (1, 2))
    for lora in (None, LORA)
]


@pytest.mark.parametrize(("kind", "makers", "trainers", "lora"), CASES)
def test_makers_follow_and_rewards_rise(ray_cluster, folder, kind, makers, trainers, lora):
    ray = ray_cluster
    maker_names = [f"{kind.__name__}_maker_{number}" for number in range(makers)]
    trainer_names = [f"{kind.__name__}_trainer_{number}" for number in range(trainers)]
    port = free_port()
    trainer = ray.remote(concurrency_groups=kind.CONCURRENCY_GROUPS, num_cpus=0.25)(kind)
    maker = ray.remote(concurrency_groups=ExperienceMakerHolder.CONCURRENCY_GROUPS, num_cpus=0.25)(
        ExperienceMakerHolder
    )
    training = [
        trainer.options(name=name).remote(
            maker_names, folder, lora=lora, learning_rate=1e-2 if lora else 5e-3, buffer_limit=2,
            train_batch_size=GROUP * PROMPTS * makers // trainers, callbacks=[Rewards()], wait_timeout=600.0,
            env_info={"rank": rank, "world_size": trainers, "master_addr": "127.0.0.1", "master_port": port},
        )
        for rank, name in enumerate(trainer_names)
    ]  # fmt: skip
    making = [
        maker.options(name=name).remote(
            trainer_names, folder, lora=lora, task=builtin_task("sort_digits", count=64), reward=sevens,
            prompts_per_batch=PROMPTS, group_size=GROUP, max_new_tokens=4, wait_timeout=600.0,
        )
        for name in maker_names
    ]  # fmt: skip
    for _ in range(ROUNDS):  # by turns: what is learned does not depend on who is faster
        for one in making:
            ray.get(one.workingloop.remote(num_steps=1))
        ray.get([one.fit.remote(total_steps=1, update_steps=1) for one in training])
    working = [one.workingloop.remote(num_epochs=1000) for one in making]  # more than is trained: it ends with fit
    ray.get([one.fit.remote(total_steps=2 * FREE_PUSHES, update_steps=2) for one in training])
    ray.get(working)
    outcomes = ray.get([one.outcome.remote() for one in training])
    versions = ray.get([one.get_policy_version.remote() for one in making])
    for one in (*training, *making):
        ray.kill(one)
    assert versions == [ROUNDS + FREE_PUSHES] * makers
    assert {(version, closes) for _, version, _, closes in outcomes} == {(ROUNDS + FREE_PUSHES, True)}
    assert len({digest for *_, digest, _ in outcomes}) == 1
    rewards = outcomes[0][0][:ROUNDS]
    assert rewards[0] < 0.2
    assert sum(rewards[-3:]) / 3 > 0.35


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
