"""How fast the engine is inside a run, beside the same engine alone, and what a step of the run takes.

    python benchmarks/in_run.py [--json] [--steps N] [--makers N] [--staleness N] [--device auto] [--checkpointing]
                                 [--lora RANK] [--sleep] [--only-run]

A GRPO run of random weights (Qwen3-0.6B's shape on a GPU, a small model on a CPU), 8 prompts × 8 samples a step of full
length. The engine's tokens per second in the run are over the time in which it has work, the median over steps after
the first three; alone it decodes as many sequences at once as the run keeps under way. On one device trainer and engine
share the arithmetic, so on one GPU the figure includes what the trainer takes of it; `--staleness 0` has them take
turns. `ready_after` and `first_step_after` are from the start of the process, but for making the model's folder: when
training begins, and when its first step has ended. `imported_after` is how much of that importing libraries took, which
a slow disk makes long.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from proa import Callback
from proa.bench.rollout import SHAPES, load_shape
from proa.bench.step import number_tokenizer, varied_reward
from proa.data.sampling import Sampling
from proa.engines import build_engine, generate, group_requests
from proa.recipes import grpo

PROMPTS, GROUP, SKIPPED = 8, 8, 3


def process_age() -> float:
    """Seconds since this process was started, before it imported anything (Linux)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Clock(Callback):
    """When training began."""

    began = 0.0

    def on_train_start(self, state: Any) -> None:
        self.began = time.time()


STARTED = time.time() - process_age()
IMPORTED = time.time()


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
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        load_shape(shape, device=device, dtype="bfloat16" if device != "cpu" else "float32").save_pretrained(
            f"{folder}/model"
        )
        number_tokenizer(vocabulary).save_pretrained(f"{folder}/model")
        made = time.time() - begun
        model = {"path": f"{folder}/model", "device": device, "dtype": "auto"}
        if options.checkpointing:
            model["gradient_checkpointing"] = True
        further: dict[str, Any] = {"lora": {"rank": options.lora}} if options.lora else {}
        if options.sleep:
            further["engine"] = {"sleep": True}
        if device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        clock = Clock()
        grpo(
            model=model, task=rows, reward=varied_reward, output_dir=folder, name="run",
            total_steps=options.steps, train_batch_size=PROMPTS * GROUP, makers=options.makers,
            max_staleness=options.staleness, sampling={"group_size": GROUP, "max_new_tokens": new_tokens},
            optimizer={"learning_rate": 1e-6}, checkpoint={"save_every": 0}, record={"rollouts": 0},
            callbacks=[clock], **{"reward.workers": 0}, **further,
        )  # fmt: skip
        run = Path(folder) / "run"
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        header = json.loads((run / "run.json").read_text())
    steps = [step for step in steps if "loss" in step]
    later = steps[SKIPPED:]
    times = [step["time"] for step in steps]
    names = ("maker.tokens_per_second", "trainer.compute_seconds", "trainer.publish_seconds", "trainer.wait_seconds")
    seconds = [after - before for before, after in itertools.pairwise(times)][SKIPPED - 1 :]
    return {
        **{name: statistics.median(step.get(name, 0.0) for step in later) for name in (*names, "maker.probe_gap")},
        "step_seconds": statistics.median(seconds),
        "imported_after": IMPORTED - STARTED,
        "ready_after": clock.began - STARTED - made,
        "first_step_after": times[0] - STARTED - made,
        "weights_digest": header["weights_digest"],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else None,
    }


def alone_figure(shape: str, device: str, lengths: tuple[int, int], groups: int) -> float:
    """Tokens per second of the engine by itself, for so many groups at once; the better of two rounds."""
    prompt_tokens, new_tokens = lengths
    model = load_shape(shape, device=device, dtype="bfloat16" if device != "cpu" else "float32")
    sampling = Sampling(GROUP, new_tokens)
    requests = [
        request
        for group in range(groups)
        for request in group_requests(
            str(group), tuple(range(2 + group, 2 + group + prompt_tokens)),
            seeds=[group * GROUP + place for place in range(GROUP)], sampling=sampling,
        )
    ]  # fmt: skip
    cache_tokens = len(requests) * (prompt_tokens + new_tokens + 32) if device != "cpu" else 0
    engine = build_engine("native", model, end_ids=(), slots=len(requests), cache_tokens=cache_tokens)
    generate(engine, requests)
    rates = []
    for _ in range(2):
        begun = time.perf_counter()
        tokens = sum(map(len, generate(engine, requests)))
        rates.append(tokens / (time.perf_counter() - begun))
    return max(rates)


def main() -> int:
    parser = argparse.ArgumentParser(description="The engine inside a run, beside the same engine alone.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--makers", type=int, default=1)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only-run", action="store_true", help="without the engine alone")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora", type=int, default=0, help="train adapters of this rank instead of all weights")
    parser.add_argument("--sleep", action="store_true", help="the engine gives its cache back while the trainer steps")
    options = parser.parse_args()
    if options.steps <= SKIPPED:
        parser.error(f"--steps must be more than {SKIPPED}: so many are left out")
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available() and options.device != "cpu"
    device, shape = ("cuda", "0.6B") if has_gpu else ("cpu", "small")
    lengths = (128, 256) if has_gpu else (32, 32)
    inside = run_figures(options, shape, device, lengths)
    if options.only_run:
        print(json.dumps(inside, indent=2))
        return 0
    alone = alone_figure(shape, device, lengths, groups=(1 + options.staleness) * PROMPTS)
    share = inside["maker.tokens_per_second"] / alone
    figures = {**inside, "alone_tokens_per_second": alone, "share_of_alone": share}
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:26} {value:,.3f}" if isinstance(value, float) else f"{name:26} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
