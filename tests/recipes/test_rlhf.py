"""The pipeline from demonstrations to PPO, on a rule that we know: short here, on three seeds in `make prove`."""

import sys

import pytest


@pytest.fixture
def rlhf(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "examples"))
    sys.modules.pop("rlhf", None)
    import rlhf

    return rlhf


def test_the_pipeline_raises_the_true_score(rlhf, tmp_path):
    result = rlhf.pipeline(tmp_path, seed=0, scale=0.3)
    assert result["reward model, held-out accuracy"] > 0.85
    assert result["true score after PPO"] > result["true score before PPO"] + 0.1


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_three_seeds_end_near_the_target_with_the_true_score_high(rlhf, tmp_path, seed):
    result = rlhf.pipeline(tmp_path, seed=seed)
    print(seed, result)
    assert result["reward model, held-out accuracy"] > 0.95
    assert result["true score after PPO"] > 0.85
    assert 0.5 * rlhf.KL_TARGET < result["KL to the reference at the end"] < 1.5 * rlhf.KL_TARGET
    assert result["largest KL"] < 2 * rlhf.KL_TARGET


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_preferences_that_mean_nothing_the_true_score_does_not_rise(rlhf, tmp_path, seed):
    result = rlhf.pipeline(tmp_path, seed=seed, shuffled=True)
    print(seed, result)
    # It has learned noise, which all pairs see alike: by chance it may agree with the rule a little, or disagree.
    assert result["reward model, held-out accuracy"] < 0.75
    assert result["true score after PPO"] < result["true score before PPO"] + 0.15
