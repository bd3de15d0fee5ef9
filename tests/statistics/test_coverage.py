"""The 95 % interval covers the true difference about 95 % of the time, for few seeds and few tasks too."""

import numpy as np
import pytest

from proa.statistics import compare

SEEDS, TASKS = (1, 2, 3, 5, 10), (10, 50, 300)

# Standard deviations of the effect of the seed, of the task, and of the noise.
NORMAL = [(0, 0, 1), (0, 0.5, 1), (0.1, 0.5, 1), (0.5, 0.5, 1), (1, 1, 0.3)]
# Of logits: of each arm's seeds, of each arm's tasks, and of the difficulty that both arms share.
BINARY = [(0, 0, 2), (0, 1, 2), (0.5, 1, 2), (0.1, 0.1, 6)]


def normal_arms(generator, seeds, tasks, seed_effect, task_effect, noise):
    if seeds == 1:
        seed_effect = 0  # what one seed cannot tell, its interval does not claim
    difference = (
        seed_effect * generator.normal(size=(seeds, 1))
        + task_effect * generator.normal(size=(1, tasks))
        + noise * generator.normal(size=(seeds, tasks))
    )
    shared = generator.normal(size=(1, tasks))
    return difference + shared, np.broadcast_to(shared, difference.shape)


def binary_arms(generator, seeds, tasks, seed_effect, task_effect, difficulty):
    if seeds == 1:
        seed_effect = 0
    shared = difficulty * generator.normal(size=(1, tasks))

    def one():
        logits = (
            shared + task_effect * generator.normal(size=(1, tasks)) + seed_effect * generator.normal(size=(seeds, 1))
        )
        return (generator.random((seeds, tasks)) < 1 / (1 + np.exp(-logits))).astype(float)

    return one(), one()


def scores(table):
    return {seed: dict(enumerate(row)) for seed, row in enumerate(table.tolist())}


def coverage(arms, seeds, tasks, effects, repeats, level=0.95):
    """The share of simulated comparisons of equal arms that do not see a difference."""
    generator = np.random.default_rng([seeds, tasks, repeats])
    seen = 0
    for _ in range(repeats):
        a, b = arms(generator, seeds, tasks, *effects)
        seen += compare(scores(a), scores(b), resamples=1, level=level).verdict in ("better", "worse")
    return 1 - seen / repeats


# Where it must be exact: one component, and its own t. Standard error at 1500: 0.6 %.
@pytest.mark.parametrize(
    ("seeds", "tasks", "effects"), [(1, 10, (0, 0.5, 1)), (3, 10, (3, 0, 0.3)), (2, 10, (3, 0, 0.3))]
)
def test_with_one_source_of_chance_the_interval_covers_95_percent(seeds, tasks, effects):
    assert coverage(normal_arms, seeds, tasks, effects, 1500) == pytest.approx(0.95, abs=0.02)


# In the first three a bootstrap over seeds has 49 to 67 %, t over seeds alone 71 to 93 %; in the second a bootstrap
# over seeds and tasks has 75 %, Satterthwaite's interval 88 %.
@pytest.mark.parametrize(
    ("arms", "seeds", "tasks", "effects"),
    [
        (normal_arms, 10, 10, (0, 0.5, 1)),
        (normal_arms, 2, 10, (1, 1, 0.3)),
        (normal_arms, 3, 20, (0.1, 0.5, 1)),
        (binary_arms, 2, 10, (0, 0, 2)),
        (binary_arms, 5, 20, (0.5, 1, 2)),
    ],
)
def test_with_several_sources_of_chance_it_covers_95_percent_or_little_more(arms, seeds, tasks, effects):
    assert 0.93 < coverage(arms, seeds, tasks, effects, 1200) < 0.9999


@pytest.mark.parametrize(("seeds", "certain"), [(2, 1.0), (3, 1.0), (3, 0.95), (4, 0.95), (5, 1.0), (5, 0.8)])
def test_arms_that_learn_or_collapse_by_chance_are_not_told_apart(seeds, certain):
    """Every task of a run that learned is right with chance `certain`, of one that collapsed wrong with that."""

    def arms(generator, seeds, tasks):
        learned = generator.random((2, seeds, 1)) < 0.5
        right = generator.random((2, seeds, tasks)) < np.where(learned, certain, 1 - certain)
        return tuple(right.astype(float))

    assert coverage(arms, seeds, 20, (), 800) > 0.94


def test_a_lower_level_covers_less():
    assert coverage(normal_arms, 1, 10, (0, 0, 1), 1000, level=0.5) == pytest.approx(0.5, abs=0.06)


def test_a_true_difference_is_found():
    generator = np.random.default_rng(3)
    found = [
        compare(scores(a + 1.0), scores(b), resamples=1).verdict
        for a, b in (normal_arms(generator, 5, 50, 0.1, 0.5, 1) for _ in range(50))
    ]
    assert found == ["better"] * 50


@pytest.mark.prove
@pytest.mark.parametrize(
    ("arms", "effects"),
    [*((normal_arms, effects) for effects in NORMAL), *((binary_arms, effects) for effects in BINARY)],
)
def test_the_interval_covers_at_every_size(arms, effects):
    table = {
        (seeds, tasks): coverage(arms, seeds, tasks, effects, 300 if tasks == 300 else 1000)
        for seeds in SEEDS
        for tasks in TASKS
    }
    print(arms.__name__, effects)
    for seeds in SEEDS:
        print(f"  {seeds:2} seeds", *(f"{tasks} tasks {100 * table[seeds, tasks]:5.1f} %" for tasks in TASKS))
    assert min(table.values()) > 0.92
    assert sum(table.values()) / len(table) < 0.99
