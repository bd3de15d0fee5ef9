"""Custom rewards: the digits of the prompt, in any order, each as often as it was given.

    python examples/custom_reward.py [--steps 60]

A reward function gets the prompts, the completions and the columns of the task by name, and returns a number for each
completion, or None where it does not apply. Here two of them are added, each with its weight.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from proa.recipes import grpo

MODEL = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32,
}  # fmt: skip


def same_digits(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """The share of the prompt's digits that are in the completion."""
    return [_overlap(prompt.rstrip(">"), completion) for prompt, completion in zip(prompts, completions, strict=True)]


def right_length(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """1 if the completion has as many digits as the prompt; an empty completion gets no value."""
    return [
        None if not completion else float(len(completion) == len(prompt) - 1)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


def _overlap(given: str, back: str) -> float:
    common = Counter(given) & Counter(back)
    return sum(common.values()) / max(len(given), len(back), 1)


def main(steps: int, output_dir: Path) -> float:
    """Train, and return the reward at the end."""
    state = grpo(
        output_dir=output_dir,
        name="custom_reward",
        total_steps=steps,
        train_batch_size=128,
        model={"config": MODEL},
        task="sort_digits",
        reward={"functions": [same_digits, right_length], "weights": [1.0, 0.25], "workers": 0},
        sampling={"group_size": 8, "max_new_tokens": 8},
        optimizer={"learning_rate": 1e-3, "token_budget": 0},
    )
    print(f"reward {state.metrics['reward']:.3f}: {state.metrics['reward.same_digits']:.3f} of the digits are right")
    return float(state.metrics["reward"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    with TemporaryDirectory() as folder:
        main(parser.parse_args().steps, Path(folder))
