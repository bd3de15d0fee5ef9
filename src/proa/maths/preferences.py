"""Losses on pairs of which one side was preferred, one per pair, with what is worth reporting of each.

`N` pairs. A completion's log-ratio is log π(y|x) − log π_ref(y|x), summed over its tokens. Nothing is averaged
here: a mean over the pairs of a batch, taken once, is the same however the batch is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import SettingError


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """The loss of each pair, and the rewards that the model gives its two sides (without gradient)."""

    loss_N: Tensor  # noqa: N815 - a shape, not a word
    chosen_rewards_N: Tensor  # noqa: N815
    rejected_rewards_N: Tensor  # noqa: N815

    @property
    def margins_N(self) -> Tensor:  # noqa: N802
        """By how much the chosen side is ahead."""
        return self.chosen_rewards_N - self.rejected_rewards_N

    @property
    def correct_N(self) -> Tensor:  # noqa: N802
        """1 where the chosen side is ahead, 0 where it is behind, and half for a tie."""
        return correct(self.margins_N)


def bradley_terry(
    chosen_scores_N: Tensor, rejected_scores_N: Tensor, margins_N: Tensor | None = None
) -> PreferenceLoss:
    """−log σ(r_chosen − r_rejected − m): the likelihood of the preference (Bradley and Terry, 1952).

    As the loss of reward models: Ouyang et al., arXiv:2203.02155. The margin m asks for a distance between clear
    cases (Touvron et al., arXiv:2307.09288); without margins it is 0.

    >>> loss = bradley_terry(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    >>> loss.loss_N, loss.correct_N
    (tensor([0.3133, 0.6931]), tensor([1.0000, 0.5000]))
    """
    distance_N = chosen_scores_N - rejected_scores_N
    if margins_N is not None:
        distance_N = distance_N - margins_N
    return PreferenceLoss(-_log_sigmoid(distance_N), chosen_scores_N.detach(), rejected_scores_N.detach())


def log_ratios(log_probs_N: Tensor, reference_log_probs_N: Tensor | None) -> Tensor:
    """log π − log π_ref; the reference is a constant, whatever its tensor says.

    Without a reference, log π alone: every completion counts as equally likely before (reference-free DPO).
    """
    return log_probs_N if reference_log_probs_N is None else log_probs_N - reference_log_probs_N.detach()


def dpo_sigmoid(
    chosen_log_ratios_N: Tensor, rejected_log_ratios_N: Tensor, *, beta: float, label_smoothing: float = 0.0
) -> PreferenceLoss:
    """−(1 − ε) log σ(β h) − ε log σ(−β h), with h = the chosen log-ratio − the rejected one.

    DPO (arXiv:2305.18290, equation 7); ε, the share of preferences that are taken to be the wrong way round,
    makes it conservative DPO (Mitchell, 2023, "A note on DPO with noisy preferences").

    >>> dpo_sigmoid(torch.tensor([2.0]), torch.tensor([-3.0]), beta=0.1).loss_N
    tensor([0.4741])
    """
    _check_beta(beta)
    if not 0 <= label_smoothing < 0.5:
        raise SettingError(f"label_smoothing must be from 0 to below 0.5, not {label_smoothing}")
    logits_N = beta * (chosen_log_ratios_N - rejected_log_ratios_N)
    loss_N = -(1 - label_smoothing) * _log_sigmoid(logits_N)
    if label_smoothing:
        loss_N = loss_N - label_smoothing * _log_sigmoid(-logits_N)
    return _with_implicit_rewards(loss_N, chosen_log_ratios_N, rejected_log_ratios_N, beta)


def ipo(
    chosen_log_ratios_N: Tensor,
    rejected_log_ratios_N: Tensor,
    chosen_tokens_N: Tensor,
    rejected_tokens_N: Tensor,
    *,
    beta: float,
) -> PreferenceLoss:
    """(h − 1/(2β))², with h = the chosen log-ratio per token − the rejected one per token (IPO, arXiv:2310.12036).

    Equation 17 of the paper, its τ being β. The paper writes sums over a completion's tokens; means are taken
    here, as TRL takes them, because the distance 1/(2β) does not grow with the length.

    >>> tokens = torch.tensor([4.0]), torch.tensor([2.0])
    >>> ipo(torch.tensor([2.0]), torch.tensor([-3.0]), *tokens, beta=0.1).loss_N   # (2/4 + 3/2 - 5)^2
    tensor([9.])
    """
    _check_beta(beta)
    per_token_N = chosen_log_ratios_N / chosen_tokens_N - rejected_log_ratios_N / rejected_tokens_N
    loss_N = (per_token_N - 1 / (2 * beta)).square()
    return _with_implicit_rewards(loss_N, chosen_log_ratios_N, rejected_log_ratios_N, beta)


def correct(margins_N: Tensor) -> Tensor:
    """1 for a margin above 0, 0 below, and half for none: who cannot tell is right half the time."""
    return (margins_N > 0).to(margins_N.dtype) + 0.5 * (margins_N == 0).to(margins_N.dtype)


def calibration_error(margins_N: Tensor, *, bins: int = 10) -> Tensor:
    """Expected calibration error of σ(margin) as the probability of being right (Guo et al., arXiv:1706.04599).

    Σ_b |Σ_{i∈b} (correct_i − c_i)| / N over equal bins of the confidence c = σ(|margin|), which lies in [½, 1]. (The
    chosen side is always the right one: over bins of σ(margin) itself the sum would say no more than its mean.)
    Margins that are NaN are left out; of none at all the error is NaN.

    >>> calibration_error(torch.tensor([2.0, 2.0, 2.0, -2.0]))   # 75 % right, and sure to 88 %
    tensor(0.1308)
    """
    margins_N = margins_N[~margins_N.isnan()]
    confidence_N = margins_N.abs().sigmoid()
    bins_N = ((confidence_N - 0.5) * (2 * bins)).long().clamp(max=bins - 1)
    gaps_K = margins_N.new_zeros(bins).index_add(0, bins_N, correct(margins_N) - confidence_N)
    return gaps_K.abs().sum() / len(margins_N)


def brier_score(margins_N: Tensor) -> Tensor:
    """Mean of (1 − σ(margin))², the chosen side being the right one; a coin's is ¼ (Brier, 1950). NaN is left out.

    >>> brier_score(torch.tensor([0.0, float("nan")]))
    tensor(0.2500)
    """
    margins_N = margins_N[~margins_N.isnan()]
    return (-margins_N).sigmoid().square().mean()


def _with_implicit_rewards(
    loss_N: Tensor, chosen_log_ratios_N: Tensor, rejected_log_ratios_N: Tensor, beta: float
) -> PreferenceLoss:
    """β log π/π_ref is the reward for which the policy would be the best one (arXiv:2305.18290, equation 5)."""
    return PreferenceLoss(loss_N, beta * chosen_log_ratios_N.detach(), beta * rejected_log_ratios_N.detach())


def _log_sigmoid(logits_N: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(logits_N)  # log(sigmoid()) is -inf where sigmoid rounds to 0


def _check_beta(beta: float) -> None:
    if not 0 < beta < float("inf"):
        raise SettingError(f"beta must be a number above 0, not {beta}")
