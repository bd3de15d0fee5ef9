"""Runs to be killed: small ones of every kind, each with more to lose than weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.killed_runs import DETACHED, SUPERVISED

from proa import Callback
from proa.recipes import dapo, dpo, dr_grpo, grpo, ppo, reward_model, sft
from proa.tasks.builtin.characters import tokenizer

PAIRS = [{"prompt": f"{n}>", "chosen": str(9 - n % 3) * 3, "rejected": str(n % 3) * 3} for n in range(1, 10)]
TWICE = {"total_steps": 3, "update_steps": 2, "train_epochs": 2}
ADAPTIVE_KL = {"kl_reward_coefficient": 0.05, "kl_target": 0.02, "kl_horizon": 50}
OF_PAIRS = {"task": PAIRS, "tokenizer": tokenizer(), "eval": []}
LORA = {"rank": 2, "alpha": 4.0}


class StopAfter(Callback):
    """Asks for the end after so many steps."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, state, step_idx, batch, metrics):
        if state.global_step == self.steps:
            state.stop_training("it is enough")


def often_the_same(completions):
    """Half of the groups have no difference in it."""
    return [float("3" in completion) for completion in completions]


def not_always_a_number(completions):
    """Some samples have no reward, and what says so is journaled."""
    return [None if "5" in completion else float(completion.count("1")) for completion in completions]


def beyond_all_numbers(prompts, completions):
    """For some prompts so large that nothing finite comes of it, and the step is skipped."""
    sizes = [3e38 if prompt.startswith("1") else 1.0 for prompt in prompts]
    return [size * (-1) ** place for place, size in enumerate(sizes)]


def inline(function):
    return {"functions": [function], "workers": 0}


@dataclass(frozen=True)
class Scenario:
    """A recipe and its settings, with makers of callbacks to be beside."""

    recipe: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    more: Callable[[], list[Any]] = list


def detached(recipe, more=list, **changes):
    return Scenario(recipe, DETACHED | changes, more)


def supervised(recipe, more=list, **changes):
    return Scenario(recipe, SUPERVISED | changes, more)


SCENARIOS = {
    "grpo_in_step": detached(grpo, max_staleness=0),
    "grpo_one_behind": detached(grpo, max_staleness=1),
    "grpo_twice_over": detached(grpo, max_staleness=0, **TWICE),
    "grpo_twice_over_one_behind": detached(grpo, max_staleness=1, makers=2, **TWICE | {"total_steps": 5}),
    "ppo_shared": detached(ppo, algorithm={"params": ADAPTIVE_KL}, **TWICE),
    "ppo_separate": detached(
        ppo, algorithm={"params": ADAPTIVE_KL}, critic={"kind": "separate", "learning_rate": 1e-2}, **TWICE
    ),
    "grpo_reference_after_warm_start": detached(
        grpo, algorithm={"params": {"kl_coefficient": 0.1}}, warm_start={"steps": 2, "batch_size": 8}
    ),
    "grpo_lora": detached(grpo, lora=LORA, algorithm={"params": {"kl_coefficient": 0.1}}),
    "dapo_with_refill": detached(dapo, reward=inline(often_the_same), lease_prompts=2),
    "grpo_rewards_that_fail": detached(grpo, reward=inline(not_always_a_number), makers=2),
    "dr_grpo_skipped_steps": detached(dr_grpo, reward=inline(beyond_all_numbers)),
    "grpo_stopped": detached(grpo, lambda: [StopAfter(3)], **TWICE),
    "grpo_stopped_between_saves": detached(
        grpo, lambda: [StopAfter(3)], checkpoint={"save_every": 2, "keep": 2}, **TWICE
    ),
    "grpo_stopped_between_epochs": detached(grpo, lambda: [StopAfter(2)], **TWICE),
    "grpo_behind": detached(grpo, total_steps=5, checkpoint={"save_every": 3, "keep": 2, "background": True}),
    "ppo_behind": detached(
        ppo,
        algorithm={"params": ADAPTIVE_KL},
        critic={"kind": "separate"},
        checkpoint={"save_every": 3, "keep": 2, "background": True},
        **TWICE,
    ),
    "sft": supervised(sft),
    "sft_behind": supervised(sft, checkpoint={"save_every": 3, "keep": 2, "background": True}),
    "sft_lora": supervised(sft, lora=LORA),
    "sft_stopped": supervised(sft, lambda: [StopAfter(4)]),
    "sft_stopped_between_saves": supervised(sft, lambda: [StopAfter(4)], checkpoint={"save_every": 3}),
    "dpo": supervised(dpo, **OF_PAIRS),
    "dpo_lora": supervised(dpo, **OF_PAIRS, lora=LORA),
    "reward_model": supervised(reward_model, **OF_PAIRS),
    "reward_model_lora": supervised(reward_model, **OF_PAIRS, lora=LORA),
}  # fmt: skip
