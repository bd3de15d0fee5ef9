"""Each algorithm a second time: plain floats, loops, derivatives worked out by hand; shares no code with Proa."""

import math
import statistics

import torch


def loss_and_gradients(name, batch, settings):
    """The loss, and its gradient by each token's log-probability and entropy, as tensors."""
    rows = real_tokens(batch)
    advantages = _CREDIT[name](batch, rows, settings)
    loss = 0.0
    by_log_prob, by_entropy = torch.zeros_like(batch.log_probs_BT), torch.zeros_like(batch.log_probs_BT)
    for row, tokens in enumerate(rows):
        for token, advantage in zip(tokens, advantages[row], strict=True):
            weight = _WEIGHTS[name](rows, row, batch.max_new_tokens)
            ratio = _RATIOS.get(name, _token_ratio)(batch, row, token, tokens)
            policy = _POLICIES.get(name, _clipped_surrogate)(ratio, advantage, batch, row, token, settings)
            value, slope = _with_other_terms(policy, batch, row, token, settings)
            loss += weight * value
            by_log_prob[row, token] = weight * slope
            by_entropy[row, token] = -weight * settings["entropy_coefficient"]
    return torch.tensor(loss, dtype=torch.float64), by_log_prob, by_entropy


def real_tokens(batch):
    """The columns of each row's real tokens."""
    return [[token for token, kept in enumerate(row) if kept] for row in batch.mask_BT.tolist()]


# -- the policy's term: its value and its derivative by the token's own log-probability -----------------


def _token_ratio(batch, row, token, tokens):
    return math.exp(float(batch.log_probs_BT[row, token]) - float(batch.old_log_probs_BT[row, token]))


def _sequence_ratio(batch, row, token, tokens):
    product = math.prod(_token_ratio(batch, row, other, tokens) for other in tokens)
    return product ** (1 / len(tokens))


def _clipped_surrogate(ratio, advantage, batch, row, token, settings):
    value, slope = -ratio * advantage, -ratio * advantage
    if advantage > 0 and ratio > 1 + settings["clip_high"]:
        value, slope = -(1 + settings["clip_high"]) * advantage, 0.0
    if advantage < 0 and ratio < 1 - settings["clip_low"]:
        value, slope = -(1 - settings["clip_low"]) * advantage, 0.0
    return value, slope


def _clipped_weight(ratio, advantage, batch, row, token, settings):
    weight = min(max(ratio, 1 - settings["clip_low"]), 1 + settings["clip_high"])
    return -weight * advantage * float(batch.log_probs_BT[row, token]), -weight * advantage


_RATIOS = {"gspo": _sequence_ratio}
_POLICIES = {"cispo": _clipped_weight}


def _with_other_terms(policy, batch, row, token, settings):
    new, reference, entropy, importance = (
        float(tensor[row, token])
        for tensor in (batch.log_probs_BT, batch.reference_log_probs_BT, batch.entropy_BT, batch.importance_BT)
    )
    d = reference - new
    kl, kl_slope = {
        "k1": (-d, 1.0),
        "k2": (d * d / 2, -d),
        "k3": (math.exp(d) - d - 1, 1 - math.exp(d)),
    }[settings["kl_estimator"]]
    beta = settings["kl_coefficient"]
    value, slope = policy
    value = importance * value + beta * kl - settings["entropy_coefficient"] * entropy
    return value, importance * slope + beta * kl_slope


# -- credit: an advantage for each real token of each row -----------------------------------------------


def _by_group(of_group):
    """One advantage for all tokens of a completion, from the rewards of its group."""

    def credit(batch, rows, settings):
        rewards, groups = _shaped(batch, settings), batch.groups_B.tolist()
        result = [0.0] * len(rewards)
        for group in set(groups):
            members = [row for row in range(len(rewards)) if groups[row] == group]
            values = [rewards[row] for row in members]
            if max(values) - min(values) > 1e-6:
                for row, advantage in zip(members, of_group(values), strict=True):
                    result[row] = advantage
        return [[advantage] * len(tokens) for advantage, tokens in zip(result, rows, strict=True)]

    return credit


def _shaped(batch, settings):
    rewards, buffer = batch.rewards_B.tolist(), settings.get("overlong_buffer", 0)
    if not buffer:
        return rewards
    shaped = []
    for reward, length in zip(rewards, batch.lengths_B.tolist(), strict=True):
        too_long = length - (batch.max_new_tokens - buffer)
        shaped.append(reward - min(max(too_long, 0) / buffer, 1))
    return shaped


def _standardised(values):
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return [(value - mean) / (std + 1e-4) for value in values]


def _centred(values):
    return [value - statistics.fmean(values) for value in values]


def _left_out(values):
    return [value - statistics.fmean(values[:i] + values[i + 1 :]) for i, value in enumerate(values)]


def _token_rewards(batch, rows, settings):
    rewards = []
    for row, tokens in enumerate(rows):
        rewards.append([-settings["kl_reward_coefficient"] * float(batch.kl_BT[row, token]) for token in tokens])
        if tokens:
            rewards[-1][-1] += float(batch.rewards_B[row])
    return rewards


def ppo_advantages(batch, rows, settings):
    """Generalized advantages before whitening, as the double sum of their definition."""
    gamma, lam = settings["gamma"], settings["lam"]
    result = []
    for row, rewards in enumerate(_token_rewards(batch, rows, settings)):
        values = [float(batch.values_BT[row, token]) for token in rows[row]]
        following = [*values, float(batch.bootstrap_B[row])][1:]
        deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
        result.append([
            sum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(deltas[t:])) for t in range(len(deltas))
        ])  # fmt: skip
    return result


def _rewards_to_go(batch, rows, settings):
    return [[sum(row[t:]) for t in range(len(row))] for row in _token_rewards(batch, rows, settings)]


def _whitened(credit):
    def whitened(batch, rows, settings):
        advantages = credit(batch, rows, settings)
        values = [value for row in advantages for value in row]
        if not values or max(values) - min(values) < 1e-6 * max(1, *map(abs, values)):
            return [[0.0] * len(row) for row in advantages]
        mean, std = statistics.fmean(values), math.sqrt(statistics.pvariance(values) + 1e-8)
        return [[(value - mean) / std for value in row] for row in advantages]

    return whitened


def keeps_its_digits(name, batch, settings):
    """Whether whitening, where the algorithm does it, divides by no spread so small that only rounding is left."""
    if name not in _BEFORE_WHITENING:
        return True
    values = [value for row in _BEFORE_WHITENING[name](batch, real_tokens(batch), settings) for value in row]
    spread = statistics.pstdev(values) if values else 0.0
    return spread < 1e-9 or spread > 1e-2


_BEFORE_WHITENING = {
    "ppo": ppo_advantages,
    "reinforce_pp": _rewards_to_go,
    "reinforce_pp_baseline": _by_group(_centred),
}

_CREDIT = {
    "grpo": _by_group(_standardised),
    "dr_grpo": _by_group(_centred),
    "dapo": _by_group(_standardised),
    "rloo": _by_group(_left_out),
    "gspo": _by_group(_standardised),
    "cispo": _by_group(_standardised),
    "decoupled": _by_group(_standardised),
    **{name: _whitened(credit) for name, credit in _BEFORE_WHITENING.items()},
}


# -- what a token of a row counts -----------------------------------------------------------------------


def _sequence_mean(rows, row, longest):
    return 1 / len(rows) / len(rows[row])


def _token_mean(rows, row, longest):
    return 1 / sum(len(row) for row in rows)


def _constant(rows, row, longest):
    return 1 / (len(rows) * longest)


_WEIGHTS = {
    "grpo": _sequence_mean,
    "dr_grpo": _constant,
    "dapo": _token_mean,
    "rloo": _constant,
    "gspo": _sequence_mean,
    "cispo": _token_mean,
    "decoupled": _token_mean,
    "ppo": _token_mean,
    "reinforce_pp": _token_mean,
    "reinforce_pp_baseline": _token_mean,
}
