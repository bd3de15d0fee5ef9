"""A trajectory is learned from as a whole, however many rows it has.

The oracle: a trajectory in one row, and the same one forked, each turn in a row whose prompt is all that came before.
Every sampled token has the same context in both, so loss, gradient and metrics must be the same.
"""

from dataclasses import replace

import pytest
import torch

from proa.algorithms import ALGORITHMS, CriticAlgorithm, build_algorithm
from proa.data.experience import BufferItem, merge
from proa.data.facts import SampleFacts
from proa.data.sampling import Sampling
from proa.learning.learner import Learner, StepSettings
from proa.learning.optimizer import OptimizerSettings
from proa.policy.critic import separate_critic, shared_critic
from proa.policy.models import load_model
from proa.policy.policy import PlainPolicy

CONFIG = {"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 40}
SAMPLING = Sampling(group_size=2, max_new_tokens=6)


def turns(generator, count):
    """Sampled tokens, and what the environment answered, turn by turn; the last has no answer."""
    for turn in range(count):
        said = torch.randint(1, 11, (1 + (turn + count) % 3,), generator=generator)
        answered = torch.randint(1, 11, (2 if turn < count - 1 else 0,), generator=generator)
        log_probs = -2 - 0.3 * torch.rand(len(said), generator=generator, dtype=torch.float64)
        yield said, answered, log_probs, float(turn == 0)


def items(*, forked):
    """Two groups of two trajectories, of one to three turns."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number, count in enumerate((3, 1, 2, 3)):
        context = torch.randint(1, 11, (2,), generator=generator)
        rewards = torch.randn((), generator=generator, dtype=torch.float64)
        rows = []
        for said, answered, log_probs, reward in turns(generator, count):
            turn_rewards = torch.zeros(len(said), dtype=torch.float64)
            turn_rewards[-1] = reward
            rows.append(
                BufferItem(
                    torch.cat([context, said]),
                    log_probs,
                    reward=rewards,
                    action_mask=torch.ones(len(said), dtype=torch.bool),
                    versions=torch.zeros(len(said), dtype=torch.int32),
                    turn_rewards=turn_rewards,
                    uid=f"{number // 2}/{number % 2}",
                    group_id=str(number // 2),
                    facts=SampleFacts("length" if number == 2 else "stop", {"a": 1.0, "b": 2.0}),
                )
            )
            context = torch.cat([context, said, answered])
        made += rows if forked else [joined(rows)]
    return made


def joined(rows):
    """The rows of one trajectory as one row."""
    whole = rows[-1].sequences
    count = len(whole) - rows[0].prompt_length
    row = replace(
        rows[-1],
        sequences=whole,
        action_log_probs=torch.zeros(count, dtype=torch.float64),
        action_mask=torch.zeros(count, dtype=torch.bool),
        versions=torch.full((count,), -1, dtype=torch.int32),
        turn_rewards=torch.zeros(count, dtype=torch.float64),
    )
    for part in rows:
        begin = part.prompt_length - rows[0].prompt_length
        place = slice(begin, begin + part.action_length)
        for name in ("action_log_probs", "action_mask", "versions", "turn_rewards"):
            getattr(row, name)[place] = getattr(part, name)
    return row


def learner(name, critic=None, **settings):
    torch.set_num_threads(1)
    model = load_model(CONFIG, dtype="float64", seed=3)
    options = {"bootstrap_truncated": True} if issubclass(ALGORITHMS[name], CriticAlgorithm) else {}
    made = None if critic is None else critic(model)
    if made is not None:
        torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    return Learner(
        PlainPolicy(model), build_algorithm(name, **options), OptimizerSettings(), made, optimizer_steps=1,
        sampling=SAMPLING, settings=StepSettings(**settings),
    )  # fmt: skip


CASES = [(name, None) for name in ALGORITHMS if not issubclass(ALGORITHMS[name], CriticAlgorithm)]
CASES += [("ppo", shared_critic), ("ppo", separate_critic)]


@pytest.mark.parametrize("settings", [{}, {"token_budget": 20}, {"share_prompts": True}], ids=["", "pieces", "shared"])
@pytest.mark.parametrize(("name", "critic"), CASES)
def test_a_forked_trajectory_teaches_what_it_teaches_in_one_row(name, critic, settings):
    found = []
    for forked in (False, True):
        one = learner(name, critic, **settings)
        experience = merge(items(forked=forked))
        gradients = one.find_gradients(experience)
        found.append((one.gradients(), one.take_step(experience, gradients)))
    (plain, metrics), (forked_gradients, forked_metrics) = found
    assert forked_metrics == pytest.approx(metrics, rel=1e-9, abs=1e-12)
    assert metrics["samples"] == 4
    for parameter, gradient in plain.items():
        torch.testing.assert_close(forked_gradients[parameter], gradient, rtol=1e-9, atol=1e-13)


def test_advantages_follow_time_over_turns_and_rows():
    """GAE, against a loop over one trajectory's sampled tokens."""
    one = learner("ppo", separate_critic)
    experience = merge(items(forked=True))
    one.find_gradients(experience)
    algorithm, done = one.algorithm, 0
    advantages, values = [], []
    for rows in ([0, 1, 2], [3], [4, 5], [6, 7, 8]):
        places = [(row, place) for row in rows for place in experience.action_mask[row].nonzero().flatten().tolist()]
        own = [float(experience.values[at]) for at in places]
        rewards = [float(experience.turn_rewards[at]) for at in places]
        rewards[-1] += float(experience.reward[rows[0]]) - sum(rewards)
        after = [*own[1:], float(one.values._values(experience)[1][rows[-1]]) if rows == [4, 5] else 0.0]
        running, expected = 0.0, []
        for value, reward, following in zip(reversed(own), reversed(rewards), reversed(after), strict=True):
            running = reward + algorithm.gamma * following - value + algorithm.gamma * algorithm.lam * running
            expected.insert(0, running)
        advantages += expected
        values += own
        returns = [float(experience.returns[at]) for at in places]
        assert returns == pytest.approx([a + v for a, v in zip(expected, own, strict=True)], rel=1e-9)
        done += len(places)
    assert done == int(experience.action_mask.sum())


def test_advantages_follow_time_where_turns_of_two_rows_alternate():
    """Two conversations of one trajectory: turns 0 and 2 in the row that it ended in, turn 1 in the other."""
    generator = torch.Generator().manual_seed(4)

    def row(count, given, numbers, rewards):
        sampled = torch.tensor([number is not None for number in numbers])
        return BufferItem(
            torch.randint(1, 11, (2 + count,), generator=generator),
            -2 - 0.3 * torch.rand(count, generator=generator, dtype=torch.float64),
            reward=torch.tensor(1.5, dtype=torch.float64),
            action_mask=sampled,
            versions=torch.where(sampled, 0, -1).int(),
            turn_rewards=torch.tensor(rewards, dtype=torch.float64),
            turns=torch.tensor([given if number is None else number for number in numbers], dtype=torch.int32),
            uid="0/0",
            group_id="0",
        )

    other = row(2, 1, [1, 1], [0.0, 0.4])
    ended_in = row(5, 0, [0, 0, None, 2, 2], [0.0, -0.3, 0.0, 0.0, 0.7])
    one = learner("ppo", separate_critic)
    experience = merge([other, ended_in])
    one.find_gradients(experience)
    places = [(1, 0), (1, 1), (0, 0), (0, 1), (1, 3), (1, 4)]
    own = [float(experience.values[at]) for at in places]
    rewards = [float(experience.turn_rewards[at]) for at in places]
    rewards[-1] += 1.5 - sum(rewards)
    running, expected = 0.0, []
    for value, reward, following in zip(reversed(own), reversed(rewards), [0.0, *reversed(own[1:])], strict=True):
        running = reward + one.algorithm.gamma * following - value + one.algorithm.gamma * one.algorithm.lam * running
        expected.insert(0, running + value)
    assert [float(experience.returns[at]) for at in places] == pytest.approx(expected, rel=1e-9)
