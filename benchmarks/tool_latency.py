"""How busy the engine stays while tools take their time: a run with slow environments beside the same with quick ones.

    python benchmarks/tool_latency.py [--seconds 0.5] [--steps 8] [--at-least 0.85] [--json]

A GRPO run of random weights whose turns end by themselves now and then; each answer of the environment takes so long.
At any time more conversations are under way than the engine has rows, so that others are decoded while some wait. The
share is the engine's time at work over the time of the run, from the first step's end to the last's, weights being
pushed after each; the same number of rows, the same seeds and so the same conversations in both. It fails where the
engine is less than 0.85 times as busy, or the weights in the end are others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from proa.environments import Message, Start, Step
from proa.recipes import grpo

SKIPPED = 1
MODEL = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512,
    "eos_token_id": [1],
}  # fmt: skip


class Slow:
    """Answers late, three times."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turns = 0

    def reset(self, row: dict[str, Any], *, seed: int) -> Start:
        return Start([{"role": "user", "content": str(row["prompt"])}])

    async def step(self, message: Message) -> Step:
        await asyncio.sleep(self._seconds)
        self._turns += 1
        digits = sum(map(str.isdigit, message["content"]))
        return Step([{"role": "user", "content": "5>"}], reward=digits % 3, done=self._turns == 3)

    def close(self) -> None:
        pass


def share_at_work(seconds: float, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        grpo(
            model={"config": MODEL}, task="sort_digits", output_dir=folder, name="run", progress=False,
            environment={"path": Slow, "params": {"seconds": seconds}, "max_turns": 3, "workers": 1},
            total_steps=options.steps, train_batch_size=options.batch, max_staleness=options.staleness,
            sampling={"group_size": 8, "max_new_tokens": 128}, engine={"slots": options.slots},
            optimizer={"learning_rate": 1e-6}, checkpoint={"save_every": 0}, record={"rollouts": 0},
            wait_timeout=600,
        )  # fmt: skip
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
        header = json.loads((Path(folder) / "run" / "run.json").read_text())
    later = rows[SKIPPED:]
    wall = later[-1]["time"] - rows[SKIPPED - 1]["time"]
    engine = sum(row["maker.generate_seconds"] for row in later)
    tokens = sum(row["trajectory.policy_tokens"] * row["samples"] for row in later)
    return {
        "latency_seconds": seconds, "share_at_work": engine / wall, "tokens_per_second": tokens / wall,
        "wall_seconds": wall, "turns": rows[-1]["trajectory.turns"], "digest": header["weights_digest"],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="How busy the engine stays while tools take their time.")
    parser.add_argument("--seconds", type=float, default=0.5, help="what each answer takes")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--at-least", type=float, default=0.85, help="how busy the engine must be beside quick ones")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    quick, slow = share_at_work(0.0, options), share_at_work(options.seconds, options)
    ratio = slow["share_at_work"] / quick["share_at_work"]
    if options.json:
        print(json.dumps({"quick": quick, "slow": slow, "ratio": ratio}))
    else:
        for one in (quick, slow):
            print(
                ", ".join(
                    f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                    for name, value in one.items()
                )
            )
        print(f"the engine is {ratio:.2f} times as busy with answers that take {options.seconds:g} s")
    return 0 if ratio >= options.at_least and quick["digest"] == slow["digest"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
