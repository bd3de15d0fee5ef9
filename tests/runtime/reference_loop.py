"""A plain synchronous loop in one file: what a run with max_staleness 0 must equal, bit for bit.

It shares the engine, the model's forward pass and the reward with the library, and nothing of its loop: no
leases, no buffer, no threads, no versions, no micro-batch planning, no algorithm classes.
"""

from __future__ import annotations

import torch
from tests.engines.prompted import Prompted, generated
from tests.runtime.small_run import CONFIG, PROMPTS, SAMPLING, STEPS, reward

from proa.data.lease import sample_seed
from proa.engines import build_engine
from proa.policy.log_probs import action_statistics
from proa.policy.models import load_model, model_weights, weights_digest
from proa.tasks import PromptStream
from proa.tasks.builtin import builtin_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer


def reference_digest(steps: int = STEPS) -> str:
    torch.set_num_threads(1)
    model, tokenizer = load_model(CONFIG, seed=1), make_tokenizer()
    stream = PromptStream(builtin_task("sort_digits", "train", count=64, seed=3), tokenizer, seed=5)
    engine = build_engine("native", model, end_ids=[tokenizer.eos_token_id])
    optimizer = torch.optim.AdamW(
        _groups(model), lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, foreach=False
    )
    for step in range(steps):
        engine.load(model_weights(model), 0)
        rows = []
        for ordinal in range(step * PROMPTS, (step + 1) * PROMPTS):  # one prompt is one lease here
            rows += _rollout(engine, tokenizer, stream[ordinal])
        _update(model, optimizer, rows, learning_rate=3e-3 * (1 - step / steps))
    return weights_digest(model_weights(model))


def _groups(model):
    return [{"params": list(model.parameters())}]


def _rollout(engine, tokenizer, prompt):
    seeds = tuple(sample_seed(7, prompt.ordinal, sample) for sample in range(SAMPLING.group_size))
    completions = generated(engine, [Prompted(prompt.tokens, seeds)], SAMPLING)[0]
    texts = [tokenizer.decode(c.tokens.tolist(), skip_special_tokens=True) for c in completions]
    answers = [prompt.columns["answer"]] * len(texts)
    rewards = torch.tensor(reward([prompt.text] * len(texts), texts, answer=answers))
    advantages = _standardised(rewards)
    return [(prompt.tokens, c, a) for c, a in zip(completions, advantages, strict=True)]


def _standardised(rewards):
    """One after the other, so that the order of additions is plain to see."""
    total = torch.zeros(())
    for one in rewards:
        total = total + one
    mean = total / len(rewards)
    squares = torch.zeros(())
    for one in rewards:
        squares = squares + (one - mean).square()
    return (rewards - mean) / ((squares / (len(rewards) - 1)).sqrt() + 1e-4)


def _update(model, optimizer, rows, *, learning_rate):
    prompt_length = max(len(prompt) for prompt, _, _ in rows)
    length = max(len(c) for _, c, _ in rows)
    sequences = torch.zeros(len(rows), prompt_length + length, dtype=torch.long)
    mask = torch.zeros(len(rows), prompt_length + length, dtype=torch.bool)
    old = torch.zeros(len(rows), length)
    for i, (prompt, c, _) in enumerate(rows):
        sequences[i, prompt_length - len(prompt) : prompt_length] = torch.tensor(prompt)
        sequences[i, prompt_length : prompt_length + len(c)] = c.tokens
        mask[i, prompt_length - len(prompt) : prompt_length + len(c)] = True
        old[i, : len(c)] = c.log_probs
    action_mask = mask[:, prompt_length:]
    advantages = torch.stack([a for _, _, a in rows])[:, None]
    optimizer.zero_grad()
    now = action_statistics(model, sequences, mask, length, temperature=1.0, with_entropy=True)
    ratio = torch.exp(torch.where(action_mask, now.log_probs_BA - old, 0.0))
    surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    token_loss = torch.where(action_mask, surrogate, 0.0) - 0.01 * torch.where(action_mask, now.entropy_BA, 0.0)
    weights = action_mask.float() / (action_mask.sum(-1, keepdim=True) * len(rows))
    (weights * token_loss).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
