"""Each algorithm a second time: plain floats, loops, derivatives worked out by hand; shares no code with Proa."""

import math
import statistics

import torch


def loss_and_gradients(name, batch, settings):
    """The loss, and its gradient by each token's log-probability and entropy, as tensors."""
    advantages = _ADVANTAGES[name](_shaped(batch, settings), batch.groups_B.tolist())
    rows = [[token for token, kept in enumerate(row) if kept] for row in batch.mask_BT.tolist()]
    loss = 0.0
    by_log_prob, by_entropy = torch.zeros_like(batch.log_probs_BT), torch.zeros_like(batch.log_probs_BT)
    for row, tokens in enumerate(rows):
        for token in tokens:
            weight = _WEIGHTS[name](rows, row, batch.max_new_tokens)
            value, slope = _token(batch, row, token, advantages[row], settings)
            loss += weight * value
            by_log_prob[row, token] = weight * slope
            by_entropy[row, token] = -weight * settings["entropy_coefficient"]
    return torch.tensor(loss, dtype=torch.float64), by_log_prob, by_entropy


def _token(batch, row, token, advantage, settings):
    new, old, reference, entropy, importance = (
        float(tensor[row, token])
        for tensor in (
            batch.log_probs_BT,
            batch.old_log_probs_BT,
            batch.reference_log_probs_BT,
            batch.entropy_BT,
            batch.importance_BT,
        )
    )
    ratio = math.exp(new - old)
    value, slope = -ratio * advantage, -ratio * advantage
    if advantage > 0 and ratio > 1 + settings["clip_high"]:
        value, slope = -(1 + settings["clip_high"]) * advantage, 0.0
    if advantage < 0 and ratio < 1 - settings["clip_low"]:
        value, slope = -(1 - settings["clip_low"]) * advantage, 0.0
    d = reference - new
    kl, kl_slope = {
        "k1": (-d, 1.0),
        "k2": (d * d / 2, -d),
        "k3": (math.exp(d) - d - 1, 1 - math.exp(d)),
    }[settings["kl_estimator"]]
    beta = settings["kl_coefficient"]
    value = importance * value + beta * kl - settings["entropy_coefficient"] * entropy
    return value, importance * slope + beta * kl_slope


def _shaped(batch, settings):
    rewards, buffer = batch.rewards_B.tolist(), settings.get("overlong_buffer", 0)
    if not buffer:
        return rewards
    shaped = []
    for reward, length in zip(rewards, batch.lengths_B.tolist(), strict=True):
        too_long = length - (batch.max_new_tokens - buffer)
        shaped.append(reward - min(max(too_long, 0) / buffer, 1))
    return shaped


def _by_group(of_group):
    def advantages(rewards, groups):
        result = [0.0] * len(rewards)
        for group in set(groups):
            rows = [row for row in range(len(rewards)) if groups[row] == group]
            values = [rewards[row] for row in rows]
            if max(values) - min(values) > 1e-6:
                for row, advantage in zip(rows, of_group(values), strict=True):
                    result[row] = advantage
        return result

    return advantages


def _standardised(values):
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return [(value - mean) / (std + 1e-4) for value in values]


def _centred(values):
    return [value - statistics.fmean(values) for value in values]


def _left_out(values):
    return [value - statistics.fmean(values[:i] + values[i + 1 :]) for i, value in enumerate(values)]


_ADVANTAGES = {
    "grpo": _by_group(_standardised),
    "dr_grpo": _by_group(_centred),
    "dapo": _by_group(_standardised),
    "rloo": _by_group(_left_out),
}

_WEIGHTS = {
    "grpo": lambda rows, row, longest: 1 / len(rows) / len(rows[row]),
    "dr_grpo": lambda rows, row, longest: 1 / (len(rows) * longest),
    "dapo": lambda rows, row, longest: 1 / sum(len(row) for row in rows),
    "rloo": lambda rows, row, longest: 1 / (len(rows) * longest),
}
