"""The ancestor's documented example, as it stands but for the import line, with two producers feeding it."""

import time
from collections import Counter

import pytest
import torch
from tests.engines.made_up import MadeUpEngine
from tests.small import Numbers

from proa import DetachedTrainer, ExperienceMakerHolder
from proa.actors.finding import find_actor
from proa.data.lease import Prompt
from proa.data.sampling import Sampling
from proa.errors import SettingError
from proa.rewards import InlineRewards
from proa.roles.weights import Weights
from proa.rollouts import SingleTurn

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_a_users_trainer_is_found_by_name_and_fed_by_several_at_once(ray_cluster, tmp_path):
    ray = ray_cluster
    import torch

    from proa import DetachedTrainer, Experience, TrainerCallback

    class Steps(TrainerCallback):
        def __init__(self, path):
            self.path = path

        def on_fit_end(self):
            self.path.write_text("over")

    @ray.remote(concurrency_groups={
        "buffer_length": 1, "buffer_append": 1,
        "buffer_sample": 1, "compute": 1
    })  # fmt: skip
    class MyTrainer(DetachedTrainer):
        def training_step(self, experience: Experience):
            # Implement training logic
            return {"loss": 0.0}

        def _update_remote_makers(self, fully_update=False, **kwargs):
            # Implement model sync to remote makers
            pass

    trainer = MyTrainer.options(name="trainer_0").remote(
        experience_maker_holder_name_list=["maker_0"],
        train_batch_size=8,
        callbacks=[Steps(tmp_path / "told")],
    )

    @ray.remote
    def produce(batches):
        found = ray.get_actor("trainer_0")
        for _ in range(batches):
            ray.get(found.buffer_append.remote(Experience(torch.zeros(8, 4), torch.zeros(8, 2))))
        return batches

    producers = [produce.remote(10), produce.remote(10)]
    ray.get(trainer.fit.remote(total_steps=20, update_steps=10, train_epochs=2), timeout=600)
    assert ray.get(producers) == [10, 10]
    assert ray.get(trainer.buffer_get_length.remote()) == 0
    assert (tmp_path / "told").read_text() == "over"
    ray.kill(trainer)


MAKER_GROUPS = {"experience_io": 1, **ExperienceMakerHolder.CONCURRENCY_GROUPS}
TRAINER_GROUPS = {"buffer_length": 1, "buffer_append": 1, "buffer_sample": 1, "compute": 1}


class Updating(DetachedTrainer):
    """Writes down what it trains on, and pushes weights to all makers, as every other trainer does."""

    def __init__(self, makers, number, **settings):
        super().__init__(makers, **settings)
        self.number, self.seen = number, []

    def training_step(self, experience):
        self.seen += list(zip(experience.group_ids, experience.versions[:, 0].tolist(), strict=True))
        return {"loss": 0.0}

    def _update_remote_makers(self, fully_update=False, **kwargs):
        version = 10 * self.number + self.state.policy_version + 1
        weights = Weights.of(version, {"weight": torch.full((1000,), float(version))})
        for name in self.maker_names:
            find_actor(name).update_experience_maker(weights)

    def what_was_seen(self):
        return self.seen


class OneWeight(MadeUpEngine):
    """An engine whose completions say which weights made them."""

    def load(self, weights, version):
        self.weight = int(weights["weight"][0])

    def step(self):
        time.sleep(0.02)
        return super().step()

    def tokens(self, request):
        return (self.weight,), "stop"


def half(completions, **_):
    return [0.5] * len(completions)


def prompts(first, count):
    return lambda: [[Prompt(ordinal, (1, 2), "text")] for ordinal in range(first, first + count)]


@pytest.mark.prove  # with shipped trainers it is in test_by_hand_ray.py
def test_makers_deal_groups_round_robin_and_every_trainer_may_update_every_maker(ray_cluster):
    """Two makers, two trainers, all pushing to all: nobody waits for ever, no group is split, weights are whole."""
    ray = ray_cluster
    makers, trainers = ["own_maker_0", "own_maker_1"], ["own_trainer_0", "own_trainer_1"]
    trainer = ray.remote(concurrency_groups=TRAINER_GROUPS)(Updating)
    maker = ray.remote(concurrency_groups=MAKER_GROUPS)(ExperienceMakerHolder)
    started = [
        trainer.options(name=name).remote(makers, number, train_batch_size=8, buffer_limit=2)
        for number, name in enumerate(trainers, start=1)
    ]
    making = [
        maker.options(name=name).remote(
            trainers,
            engine=OneWeight(),
            rollout=SingleTurn(Numbers(), Sampling(group_size=4), scorer=InlineRewards([half])),
        )
        for name in makers
    ]
    first = Weights.of(0, {"weight": torch.zeros(1000)})
    ray.get([one.update_experience_maker.remote(first) for one in making])
    fitting = [one.fit.remote(total_steps=8, update_steps=2) for one in started]
    working = [
        one.workingloop.remote(prompts(100 * number, 8), num_epochs=2) for number, one in enumerate(making)
    ]  # fmt: skip
    ray.get([*fitting, *working], timeout=600)
    seen = ray.get([one.what_was_seen.remote() for one in started])
    for groups in seen:
        assert len(groups) == 8 * 8
        counts = Counter(group for group, _ in groups)
        assert set(counts.values()) == {4}  # whole
        assert {group.partition("/")[0] for group in counts} == set(makers)  # from both
        versions = {version for _, version in groups}
        assert versions <= {0, *range(11, 15), *range(21, 25)}
    assert set(dict(seen[0])).isdisjoint(dict(seen[1]))
    for one in (*started, *making):
        ray.kill(one)


def test_a_name_that_is_not_there_is_told_as_such(ray_cluster):
    with pytest.raises(SettingError, match=r"there is no actor 'nobody'.*options\(name='nobody'\)"):
        find_actor("nobody")
