"""The whole RLHF pipeline with a known preference rule: supervised start, reward model from preferences, PPO.

    python examples/rlhf.py [--seed N] [--output_dir FOLDER] [--shuffled]

A model learns to write six digits. The annotator prefers even ones; we only see which of two texts was preferred. The
reward model learns from these pairs, PPO learns from the reward model, and at the end we measure the rule itself.
`--shuffled` is the control: with random preferences the true score does not rise.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from proa import recipes

MODEL = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32, "eos_token_id": 1,
}  # fmt: skip
KL_TARGET = 3.0
"""How far PPO may move from its initial model, in nats per completion; all digits even would be 4.2."""


def true_score(text: str) -> float:
    """The true preference: the share of even digits in a text of six."""
    return sum(digit in "02468" for digit in text) / 6 if len(text) == 6 and text.isdigit() else 0.0


def even_digits(completions: list[str], **_: Any) -> list[float]:
    """The rule as a reward function of weight 0: PPO's metrics show it, PPO does not learn from it."""
    return [true_score(text) for text in completions]


def digits(stream: random.Random) -> str:
    return "".join(stream.choices("0123456789", k=6))


def demonstrations(count: int, seed: int) -> list[dict[str, Any]]:
    stream = random.Random(seed)
    return [{"prompt": f"{digits(stream)}>", "answer": digits(stream)} for _ in range(count)]


def preferences(count: int, seed: int, *, shuffled: bool = False) -> list[dict[str, Any]]:
    """Pairs of texts, the better one chosen; or, shuffled, either of them."""
    stream = random.Random(seed)
    pairs: list[dict[str, Any]] = []
    while len(pairs) < count:
        one, other = sorted((digits(stream), digits(stream)), key=true_score, reverse=True)
        if true_score(one) > true_score(other):
            sides = stream.sample([one, other], 2) if shuffled else [one, other]
            pairs.append({"prompt": f"{digits(stream)}>", "chosen": sides[0], "rejected": sides[1]})
    return pairs


def pipeline(output_dir: Path, *, seed: int = 0, shuffled: bool = False, scale: float = 1.0) -> dict[str, float]:
    """Run the three stages and return the results. `scale` shortens them for a quick test."""
    from proa.tasks.builtin.characters import tokenizer

    output_dir.mkdir(parents=True, exist_ok=True)
    held_out = output_dir / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(pair) + "\n" for pair in preferences(200, seed + 1000)))
    common: dict[str, Any] = {"output_dir": output_dir, "seed": seed}
    recipes.sft(
        name="sft", model={"config": MODEL}, tokenizer=tokenizer(), task=demonstrations(2000, seed),
        total_steps=round(80 * scale), train_batch_size=64, optimizer={"learning_rate": 3e-3}, **common,
    )  # fmt: skip
    policy = str(output_dir / "sft" / "model")
    recipes.reward_model(
        name="reward_model", model=policy, task=preferences(2000, seed, shuffled=shuffled),
        total_steps=round(120 * scale), train_batch_size=64, optimizer={"learning_rate": 1e-3, "schedule": "linear"},
        eval=[{"name": "held_out", "source": str(held_out), "count": 200}], **common,
    )  # fmt: skip
    recipes.ppo(
        name="ppo", model=policy, task=demonstrations(2000, seed), makers=2,
        reward={
            "model": {"path": str(output_dir / "reward_model" / "model")},
            "functions": [even_digits], "weights": [0.0], "workers": 0,  # the rule is reported, not rewarded
        },
        sampling={"group_size": 1, "max_new_tokens": 8},
        algorithm={
            "name": "ppo",
            "params": {"kl_reward_coefficient": 0.1, "kl_target": KL_TARGET, "kl_horizon": 2000, "lam": 1.0},
        },
        critic={"kind": "separate", "learning_rate": 3e-3}, total_steps=round(80 * scale), train_batch_size=128,
        optimizer={"learning_rate": 1e-3, "schedule": "linear", "token_budget": 0},
        **common,
    )  # fmt: skip
    return _result(output_dir)


def _result(output_dir: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (output_dir / "ppo" / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[:2], rows[-10:]
    header = json.loads((output_dir / "reward_model" / "run.json").read_text())
    return {
        "reward model, held-out accuracy": header["evals"]["held_out"]["accuracy"],
        "true score before PPO": _mean(first, "reward.even_digits"),
        "true score after PPO": _mean(last, "reward.even_digits"),
        "KL to the reference at the end": _mean(last, "kl_to_reference"),
        "largest KL": max(row["kl_to_reference"] for row in rows),
    }


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/rlhf"))
    parser.add_argument("--shuffled", action="store_true", help="the control: random preferences")
    options = parser.parse_args()
    for name, value in pipeline(options.output_dir, seed=options.seed, shuffled=options.shuffled).items():
        print(f"{name:34} {value:.3f}")
