"""Direct preference optimisation: a policy learns from pairs, against the policy as it was, without a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config.supervised_settings import DPOSettings
from ..data.experience import BufferItem, merge
from ..data.loop import TrainingBatch
from ..data.state import LoopState
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..maths.preferences import dpo_sigmoid, ipo, log_ratios
from ..policy.log_probs import action_statistics, check_causal
from ..policy.measuring import measuring
from ..policy.policy import FrozenModel, Reference
from ..tasks.overlong import Overlong
from ..tasks.preferences import PreferencePair, TokenisedPair
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


def fit_dpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[PreferencePair],
    *,
    steps: int | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    settings: DPOSettings | None = None,
    reference: Reference | PreTrainedModel | None = None,
    optimizer: OptimizerSettings | Optimizer | None = None,
    token_budget: int = 16_384,
    overlong: Overlong = "error",
    seed: int = 0,
    held_out: HeldOut[Sequence[PreferencePair]] | None = None,
    **loop: Unpack[LoopOptions],
) -> LoopState:
    """Train `model` in place for `epochs` times `steps` steps (None: one pass over the pairs).

    The loss is the mean over a batch's pairs, whatever the micro-batches; prompts are not learned. The reference is
    the model as it is now, unless another is given: a frozen model, or a `Reference` such as `AdapterOff(model)`. Its
    log-probabilities are taken once per pair: of the model as it is now before the first step, so that no copy is held;
    of another at a pair's first use.
    """
    settings = settings or DPOSettings()
    if settings.reference_free and reference is not None:
        raise SupervisedError("reference_free has no reference: leave out one of the two")
    if isinstance(reference, PreTrainedModel):
        reference = FrozenModel(reference)
    max_length = check_context(model, settings.max_length)
    pairs = fitting_pairs(pairs, tokenizer, max_length, overlong)
    order = BatchOrder(len(pairs), batch_size, steps, epochs, seed)
    check_causal(model)

    def loss_over(tokenised: Mapping[int, TokenisedPair]) -> PairLoss:
        known = None if settings.reference_free else ReferenceLogProbs(model, reference, tokenised, token_budget)
        return dpo_loss(model, settings, known)

    tokenised = tokenise_pairs(pairs, order.drawn(), tokenizer, max_length, overlong)
    evaluator = None
    if held_out is not None:
        others = held_out_pairs(held_out.data, tokenizer, max_length, overlong)
        score = held_out_scores(model, pair_batch(others, list(others)), loss_over(others), token_budget)
        evaluator = held_out.evaluator(score)
    noted = {
        "beta": settings.beta,
        "label_smoothing": settings.label_smoothing,
        "reference_free": settings.reference_free,
    }
    return run_loop(
        PairStep(make_optimizer(model, optimizer, order), loss_over(tokenised), token_budget),
        lambda places: TrainingBatch(pair_batch(tokenised, places), _LOSS_NAMES[settings.loss], dict(noted)),
        order,
        evaluator,
        **loop,
    )


class ReferenceLogProbs:
    """The reference's log-probabilities of each pair: two numbers, computed once."""

    def __init__(
        self,
        model: PreTrainedModel,
        reference: Reference | None,
        pairs: Mapping[int, TokenisedPair],
        token_budget: int,
    ) -> None:
        self._reference = FrozenModel(model) if reference is None else reference
        self._pairs = pairs
        self._token_budget = token_budget
        self._known: dict[int, tuple[float, float]] = {}
        if reference is None:
            self._learn(list(pairs))  # now: after the first step the model is not the reference any more

    def of(self, places: Sequence[int]) -> torch.Tensor:
        """The log-probabilities of the chosen sides and, in a second row, of the rejected ones."""
        self._learn(list(dict.fromkeys(place for place in places if place not in self._known)))
        return torch.tensor([self._known[place] for place in places], dtype=torch.float64).T

    def _learn(self, places: Sequence[int]) -> None:
        if not places:
            return
        with self._reference.active() as reference, measuring(reference):
            for micro in pair_batch(self._pairs, places).micro_batches(self._token_budget):
                chosen_N, rejected_N = completion_log_probs(reference, micro.pairs)
                both = list(zip(chosen_N.tolist(), rejected_N.tolist(), strict=True))
                _refuse_impossible(micro.places, both)
                self._known.update(zip(micro.places, both, strict=True))


def _refuse_impossible(places: Sequence[int], log_probs: Sequence[tuple[float, float]]) -> None:
    """Raise for a completion that is impossible under the reference: it has no log-ratio to learn from."""
    for place, sides in zip(places, log_probs, strict=True):
        for name, log_prob in zip(("chosen", "rejected"), sides, strict=True):
            if log_prob == -math.inf:
                raise SupervisedError(
                    f"preference pair {place}: the {name} completion has a token that cannot come by the reference, "
                    "its logit being -inf (a masked vocabulary?). Leave the pair out, or set reference_free"
                )


def completion_log_probs(model: PreTrainedModel, pairs: Sequence[TokenisedPair]) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of chosen and of rejected completions, summed over their tokens: (N,) each."""
    items = [_item(pair.prompt, pair.chosen) for pair in pairs] + [_item(pair.prompt, pair.rejected) for pair in pairs]
    batch = merge(items)
    assert batch.attention_mask is not None
    batch.to_device(model.device)
    statistics = action_statistics(model, batch.sequences, batch.attention_mask, batch.action_log_probs.shape[1])
    chosen_N, rejected_N = statistics.log_probs_BA.sum(-1).chunk(2)
    return chosen_N, rejected_N


def dpo_loss(model: PreTrainedModel, settings: DPOSettings, reference: ReferenceLogProbs | None) -> PairLoss:
    """The loss of pairs under the model against a reference, or without one."""

    def loss_of(batch: PairBatch) -> PairOutcome:
        log_probs = completion_log_probs(model, batch.pairs)
        known = [None, None] if reference is None else list(reference.of(batch.places).to(log_probs[0]))
        ratios = [log_ratios(of_policy, of_reference) for of_policy, of_reference in zip(log_probs, known, strict=True)]
        tokens = [
            log_probs[0].new_tensor([len(side) for side in sides])
            for sides in ([pair.chosen for pair in batch.pairs], [pair.rejected for pair in batch.pairs])
        ]
        more = {"chosen_log_prob": log_probs[0], "rejected_log_prob": log_probs[1]}
        if settings.loss == "ipo":
            return PairOutcome(ipo(*ratios, *tokens, beta=settings.beta), more)
        smoothing = settings.label_smoothing
        return PairOutcome(dpo_sigmoid(*ratios, beta=settings.beta, label_smoothing=smoothing), more)

    return loss_of


def held_out_scores(
    model: PreTrainedModel, held_out: PairBatch, loss_of: PairLoss, token_budget: int
) -> Callable[[], dict[str, float]]:
    """A score for an `Evaluator`: accuracy, margin and loss on held-out pairs."""

    def score() -> dict[str, float]:
        return held_out_means(score_pairs(model, held_out, loss_of, token_budget), ("accuracy", "margin", "loss"))

    return score


_LOSS_NAMES = {"sigmoid": "dpo_sigmoid", "ipo": "ipo"}


def _item(prompt: Sequence[int], completion: Sequence[int]) -> BufferItem:
    tokens = torch.tensor([*prompt, *completion])
    return BufferItem(
        tokens,
        torch.zeros(len(completion)),
        attention_mask=torch.ones(len(tokens), dtype=torch.bool),
        action_mask=torch.ones(len(completion), dtype=torch.bool),
    )
