"""The demo on five seeds, its control, and its digests; long, so `make prove` runs it."""

import json

import pytest

from proa.config import load_run_config
from proa.recipes import run as run_recipe

pytestmark = pytest.mark.prove


def run(repository, tmp_path, name, example="sort_digits", **changes):
    run_recipe(load_run_config(repository / "examples" / f"{example}.yaml", output_dir=tmp_path, name=name, **changes))
    return json.loads((tmp_path / name / "run.json").read_text())


def test_five_seeds_learn_to_sort(repository, tmp_path):
    exact = [run(repository, tmp_path, f"s{s}", seed=s)["evals"]["sort_digits"]["exact"] for s in range(5)]
    print(f"exact match of seeds 0 to 4: {exact}")
    assert min(exact) > 0.85
    assert sum(score > 0.9 for score in exact) >= 4


def flipped(prompts, completions, answer, **columns):
    from proa.tasks.builtin.sort_digits import reward

    return [None if score is None else -score for score in reward(prompts, completions, answer, **columns)]


def test_with_the_rewards_sign_flipped_it_does_not_rise(repository, tmp_path):
    header = run(
        repository, tmp_path, "flipped", total_steps=60, **{"reward.functions": [f"{__name__}:flipped"]}
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "flipped" / "metrics.jsonl").read_text().splitlines()]
    before = next(row["sort_digits.exact"] for row in rows if "sort_digits.exact" in row)
    assert header["evals"]["sort_digits"]["exact"] < before


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_one_digest_for_one_two_and_three_makers(repository, tmp_path, staleness):
    digests = {
        run(repository, tmp_path, f"m{m}", makers=m, max_staleness=staleness, total_steps=6)["weights_digest"]
        for m in (1, 2, 3)
    }
    assert len(digests) == 1


def test_ppo_learns_the_same_task(repository, tmp_path):
    exact = run(repository, tmp_path, "ppo", "ppo_sort_digits")["evals"]["sort_digits"]["exact"]
    print(f"exact match by PPO: {exact}")
    assert exact > 0.85


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_ppo_too_has_one_digest_for_one_two_and_three_makers(repository, tmp_path, critic):
    digests = {
        run(repository, tmp_path, f"p{m}", "ppo_sort_digits", makers=m, critic=critic, total_steps=6)["weights_digest"]
        for m in (1, 2, 3)
    }
    assert len(digests) == 1
