"""How fast the engine is inside a run, beside the same engine alone, and what a step of the run takes.

    python benchmarks/in_run.py [--json] [--steps N] [--makers N] [--device auto] [--checkpointing]

A GRPO run of random weights (Qwen3-0.6B's shape on a GPU, a small model on a CPU), 8 prompts × 8 samples a step of full
length, `max_staleness` 1. The engine's tokens per second in the run are over the time in which it has work, the median
over steps after the first three; alone it decodes as many sequences at once as the run keeps under way. On one device
trainer and engine share the arithmetic, so on one GPU the figure includes what the trainer takes of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from proa.bench.rollout import SHAPES, Case, measure
from proa.bench.step import number_tokenizer, varied_reward
from proa.recipes import grpo

PROMPTS, GROUP, SKIPPED = 8, 8, 3


def run_figures(options: argparse.Namespace, shape: str, device: str, lengths: tuple[int, int]) -> dict[str, Any]:
    """Medians over the later steps of a run."""
    vocabulary = SHAPES[shape]["vocab_size"]
    prompt_tokens, new_tokens = lengths
    rows = [
        {
            "prompt": " ".join(
                f"t{(row * 7919 + place * 104_729) % (vocabulary - 2) + 2}" for place in range(prompt_tokens)
            )
        }
        for row in range(1000)
    ]
    model = {"config": SHAPES[shape], "device": device, "dtype": "auto"}
    if options.checkpointing:
        model["gradient_checkpointing"] = True
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        grpo(
            model=model, tokenizer=number_tokenizer(vocabulary), task=rows, reward=varied_reward, output_dir=folder,
            total_steps=options.steps, train_batch_size=PROMPTS * GROUP, makers=options.makers, max_staleness=1,
            sampling={"group_size": GROUP, "max_new_tokens": new_tokens}, optimizer={"learning_rate": 1e-6},
            checkpoint={"save_every": 0}, record={"rollouts": 0}, **{"reward.workers": 0},
        )  # fmt: skip
        run = Path(folder) / "run"
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        header = json.loads((run / "run.json").read_text())
    steps = [step for step in steps if "loss" in step]
    later = steps[SKIPPED:]
    times = [step["time"] for step in steps]
    names = ("maker.tokens_per_second", "trainer.compute_seconds", "trainer.publish_seconds", "trainer.wait_seconds")
    return {
        **{name: statistics.median(step.get(name, 0.0) for step in later) for name in (*names, "maker.probe_gap")},
        "step_seconds": statistics.median(after - before for before, after in itertools.pairwise(times)),
        "first_step_after": times[0] - begun,
        "weights_digest": header["weights_digest"],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The engine inside a run, beside the same engine alone.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--makers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()
    if options.steps <= SKIPPED:
        parser.error(f"--steps must be more than {SKIPPED}: so many are left out")
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available() and options.device != "cpu"
    device, shape = ("cuda", "0.6B") if has_gpu else ("cpu", "small")
    lengths = (128, 256) if has_gpu else (32, 32)
    inside = run_figures(options, shape, device, lengths)
    case = Case(2 * PROMPTS * GROUP, "uniform", *lengths)
    dtype = "bfloat16" if has_gpu else "float32"
    (alone,), _ = measure(shape, ["native"], [case], device=device, dtype=dtype)
    share = inside["maker.tokens_per_second"] / alone.tokens_per_second
    figures = {**inside, "alone_tokens_per_second": alone.tokens_per_second, "share_of_alone": share}
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:26} {value:,.3f}" if isinstance(value, float) else f"{name:26} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
