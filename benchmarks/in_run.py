"""How fast the engine is inside a run, beside the same engine alone, and what a step of the run takes.

    python benchmarks/in_run.py [--json] [--steps N] [--makers N] [--staleness N] [--device auto] [--checkpointing]

A GRPO run of random weights (Qwen3-0.6B's shape on a GPU, a small model on a CPU), 8 prompts × 8 samples a step of full
length. The engine's tokens per second in the run are over the time in which it has work, the median over steps after
the first three; alone it decodes as many sequences at once as the run keeps under way. On one device trainer and engine
share the arithmetic, so on one GPU the figure includes what the trainer takes of it; `--staleness 0` has them take
turns. `first_step_after` is from the start of the process, but for making the model's folder.
"""

from __future__ import annotations

import time

STARTED = time.time()

import argparse  # noqa: E402 - the clock runs while they are imported
import itertools  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from proa.bench.rollout import SHAPES, load_shape  # noqa: E402
from proa.bench.step import number_tokenizer, varied_reward  # noqa: E402
from proa.data.sampling import Sampling  # noqa: E402
from proa.engines import build_engine, generate, group_requests  # noqa: E402
from proa.recipes import grpo  # noqa: E402

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
        if device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        grpo(
            model=model, task=rows, reward=varied_reward, output_dir=folder, name="run",
            total_steps=options.steps, train_batch_size=PROMPTS * GROUP, makers=options.makers,
            max_staleness=options.staleness, sampling={"group_size": GROUP, "max_new_tokens": new_tokens},
            optimizer={"learning_rate": 1e-6}, checkpoint={"save_every": 0}, record={"rollouts": 0},
            **{"reward.workers": 0},
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
