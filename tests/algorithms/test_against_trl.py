"""Where TRL has the algorithm, ours is TRL's, in value and gradient."""

import warnings
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.algorithms.batches import credit, loss_and_gradients, random_batch

from proa.algorithms import ALGORITHMS
from proa.maths.reductions import token_mean
from proa.maths.shaping import overlong_penalty

SETTINGS = {"clip_low": 0.15, "clip_high": 0.25}


@pytest.fixture(scope="module")
def trl_grpo_trainer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's many imports, not ours to mend
        try:
            from trl.trainer.grpo_trainer import GRPOTrainer
        except ImportError as error:
            pytest.skip(f"needs trl as oracle, which is no dependency of proa: {error}")
    return GRPOTrainer


def trl_loss_and_gradient(trainer, loss_type, batch, advantages, *, beta, with_importance, level="token"):
    """`GRPOTrainer._compute_loss`, called unbound with what it reads of `self`."""
    log_probs_BT = batch.log_probs_BT.clone().requires_grad_()
    accelerator = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1)
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (log_probs_BT, batch.entropy_BT, None),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        accelerator=accelerator,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_low=SETTINGS["clip_low"],
        epsilon_high=SETTINGS["clip_high"] + (loss_type == "cispo"),  # its CISPO has the largest weight itself
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=batch.max_new_tokens,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=with_importance,
        vllm_importance_sampling_correction=with_importance,
    )
    B, T = batch.mask_BT.shape
    inputs = {
        "prompt_ids": torch.zeros(B, 1, dtype=torch.long),
        "prompt_mask": torch.ones(B, 1, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": batch.mask_BT.long(),
        "advantages": advantages,
        "old_per_token_logps": batch.old_log_probs_BT,
        "ref_per_token_logps": batch.reference_log_probs_BT,
        "importance_sampling_ratio": batch.importance_BT,
        "num_items_in_batch": batch.mask_BT.sum(),
    }
    loss = trainer._compute_loss(stub, stub.model, inputs)
    return loss.detach(), torch.autograd.grad(loss, log_probs_BT)[0]


def assert_equals_trl(trainer, algorithm, loss_type, batch, advantages, **how):
    loss, gradient_BT = trl_loss_and_gradient(trainer, loss_type, batch, advantages, **how)
    our_loss, our_gradient_BT, _ = loss_and_gradients(algorithm, batch)
    torch.testing.assert_close(our_loss, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_gradient_BT, gradient_BT, rtol=1e-12, atol=1e-12)


def batches_for(with_importance):
    for seed in range(20):
        batch = random_batch(seed, groups=3, size=4, T=7)
        yield batch if with_importance else replace(batch, importance_BT=torch.ones_like(batch.importance_BT))


@pytest.mark.parametrize("with_importance", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize(
    ("name", "loss_type"),
    [
        ("grpo", "grpo"),
        ("dr_grpo", "dr_grpo"),
        ("dapo", "dapo"),
        ("dapo", "bnpo"),
        ("cispo", "cispo"),
        ("decoupled", "dapo"),
    ],
)
def test_value_and_gradient_equal_trl(trl_grpo_trainer, name, loss_type, beta, with_importance):
    clips = {**SETTINGS, "clip_low": 1.0} if name == "cispo" else SETTINGS  # TRL's CISPO has no bound below
    algorithm = ALGORITHMS[name](**clips, kl_coefficient=beta)
    for batch in batches_for(with_importance):
        advantages_B = algorithm.advantages(batch.rewards_B, batch.groups_B)
        how = {"beta": beta, "with_importance": with_importance}
        assert_equals_trl(trl_grpo_trainer, algorithm, loss_type, batch, advantages_B, **how)


@pytest.mark.parametrize("with_importance", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_gspo_equals_trls_sequence_level(trl_grpo_trainer, beta, with_importance):
    """TRL differentiates the sequence's ratio itself, so a weight per token must be one for all of a completion."""
    algorithm = ALGORITHMS["gspo"](**SETTINGS, kl_coefficient=beta)
    for batch in batches_for(with_importance):
        batch = replace(batch, importance_BT=batch.importance_BT[:, :1].expand_as(batch.mask_BT))
        advantages_B = algorithm.advantages(batch.rewards_B, batch.groups_B)
        how = {"beta": beta, "with_importance": with_importance, "level": "sequence"}
        assert_equals_trl(trl_grpo_trainer, algorithm, "grpo", batch, advantages_B, **how)


@pytest.mark.parametrize("with_importance", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("name", ["ppo", "reinforce_pp", "reinforce_pp_baseline"])
def test_with_the_same_credit_the_policy_loss_equals_trls_token_mean(trl_grpo_trainer, name, beta, with_importance):
    """TRL has none of these, but takes an advantage for each token: what is left is the loss."""
    algorithm = ALGORITHMS[name](**SETTINGS, kl_coefficient=beta, kl_estimator="k3")
    for batch in batches_for(with_importance):
        advantages_BT = credit(algorithm, batch).advantages_BT
        how = {"beta": beta, "with_importance": with_importance}
        assert_equals_trl(trl_grpo_trainer, algorithm, "dapo", batch, advantages_BT, **how)


def test_a_different_reduction_is_not_taken_for_trls(trl_grpo_trainer):
    """The control: GRPO's loss with the token mean is not TRL's GRPO."""
    batch = random_batch(0, groups=3, size=4, T=7)

    class TokenMeanGRPO(ALGORITHMS["grpo"]):
        def token_weights(self, mask_BT, max_new_tokens, *, dtype):
            return token_mean(mask_BT, dtype=dtype)

    algorithm = TokenMeanGRPO(**SETTINGS)
    advantages_B = algorithm.advantages(batch.rewards_B, batch.groups_B)
    loss, _ = trl_loss_and_gradient(trl_grpo_trainer, "grpo", batch, advantages_B, beta=0.0, with_importance=True)
    assert abs(float(loss_and_gradients(algorithm, batch)[0] - loss)) > 1e-4


def test_the_overlong_penalty_equals_trl(trl_grpo_trainer):
    from trl.rewards import get_soft_overlong_punishment

    lengths = list(range(0, 130, 7))
    theirs = get_soft_overlong_punishment(100, 20)(completion_ids=[[0] * length for length in lengths])
    ours_B = overlong_penalty(torch.tensor(lengths, dtype=torch.float64), max_length=100, buffer=20)
    assert ours_B.tolist() == pytest.approx(theirs, abs=1e-12)
