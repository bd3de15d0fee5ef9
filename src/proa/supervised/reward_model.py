"""Reward models: learned from pairs by Bradley and Terry's likelihood, with margins where the data has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config.supervised_settings import RewardModelSettings
from ..data.loop import TrainingBatch
from ..data.state import LoopState
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..maths.preferences import bradley_terry, brier_score, calibration_error
from ..policy.reward_model import sequence_scores
from ..tasks.overlong import Overlong
from ..tasks.preferences import PreferencePair
from .training import (
    BatchOrder,
    HeldOut,
    LoopOptions,
    PairBatch,
    PairLoss,
    PairOutcome,
    PairStep,
    SupervisedError,
    check_context,
    fitting_pairs,
    held_out_means,
    held_out_pairs,
    make_optimizer,
    pair_batch,
    run_loop,
    score_pairs,
    tokenise_pairs,
)


def fit_reward_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[PreferencePair],
    *,
    steps: int | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    settings: RewardModelSettings | None = None,
    optimizer: OptimizerSettings | Optimizer | None = None,
    token_budget: int = 16_384,
    overlong: Overlong = "error",
    seed: int = 0,
    held_out: HeldOut[Sequence[PreferencePair]] | None = None,
    **loop: Unpack[LoopOptions],
) -> LoopState:
    """Train a reward model (`build_reward_model`) in place for `epochs` times `steps` steps (None: one pass).

    The loss is the mean over a batch's pairs, whatever the micro-batches. Held-out pairs are scored by accuracy,
    margin, loss and calibration.
    """
    settings = settings or RewardModelSettings()
    if getattr(model, "score", None) is None:
        raise SupervisedError(f"{type(model).__name__} has no score: make a reward model of it with build_reward_model")
    max_length = check_context(model, settings.max_length)
    pairs = fitting_pairs(pairs, tokenizer, max_length, overlong)
    order = BatchOrder(len(pairs), batch_size, steps, epochs, seed)
    tokenised = tokenise_pairs(pairs, order.drawn(), tokenizer, max_length, overlong)
    loss_of = reward_loss(model)
    evaluator = None
    if held_out is not None:
        others = held_out_pairs(held_out.data, tokenizer, max_length, overlong)
        score = held_out_scores(model, pair_batch(others, list(others)), token_budget)
        evaluator = held_out.evaluator(score)
    return run_loop(
        PairStep(make_optimizer(model, optimizer, order), loss_of, token_budget),
        lambda places: TrainingBatch(pair_batch(tokenised, places), "bradley_terry"),
        order,
        evaluator,
        **loop,
    )


def reward_loss(model: PreTrainedModel) -> PairLoss:
    """Bradley and Terry's loss of the scores that the model gives the two sides."""

    def loss_of(batch: PairBatch) -> PairOutcome:
        chosen = [pair.prompt + pair.chosen for pair in batch.pairs]
        rejected = [pair.prompt + pair.rejected for pair in batch.pairs]
        chosen_N, rejected_N = sequence_scores(model, chosen + rejected, token_budget=0).chunk(2)
        margins_N = chosen_N.new_tensor([pair.margin for pair in batch.pairs])
        return PairOutcome(bradley_terry(chosen_N, rejected_N, margins_N), {})

    return loss_of


def held_out_scores(model: PreTrainedModel, held_out: PairBatch, token_budget: int) -> Callable[[], dict[str, float]]:
    """A score for an `Evaluator`: accuracy, margin and loss on held-out pairs, and how far σ(margin) can be taken for a
    probability."""
    loss_of = reward_loss(model)

    def score() -> dict[str, float]:
        numbers = score_pairs(model, held_out, loss_of, token_budget)
        margins_N = numbers["margin"].to(torch.float64)
        return {
            **held_out_means(numbers, ("accuracy", "margin", "loss")),
            "calibration_error": float(calibration_error(margins_N)),
            "brier_score": float(brier_score(margins_N)),
        }

    return score
