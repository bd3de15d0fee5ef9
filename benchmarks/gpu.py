"""The figures of docs/performance.md and docs/engines.md for a GPU, each with its bound, and one summary at the end.

    python benchmarks/gpu.py [NAME …] [--list] [--keep FOLDER]

Without names all are measured, one after the other, each in a process of its own; that takes about a quarter of an hour
on an H200, for which the bounds are. The exit code is 1 if one is missed. `--keep` writes what each process printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).parents[1]
GIB = 2**30
STEP = ["-m", "proa", "bench", "step", "--json"]
ROLLOUT = ["-m", "proa", "bench", "rollout", "0.6B", "--engines", "native", "--json"]
IN_RUN = ["benchmarks/in_run.py", "--json"]
TESTS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "14", "tests/gpu"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A value in what a process printed, and what it must not be above or below."""

    path: str
    """Keys and places, joined by `/`; of two that are joined by `:`, the ratio."""
    at_least: float | None = None
    at_most: float | None = None

    def check(self, printed: Any) -> tuple[bool, str]:
        """Whether it holds, and that in a line."""
        value = self._ratio(printed)
        holds = (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)
        limit = f"at least {self.at_least:,g}" if self.at_least is not None else f"at most {self.at_most:,g}"
        return holds, f"{self.path}: {value:,.4g}, {limit}"

    def _ratio(self, printed: Any) -> float:
        values = [_value(printed, path) for path in self.path.split(":")]
        return values[0] / values[1] if len(values) == 2 else values[0]


def _value(printed: Any, path: str) -> float:
    for key in path.split("/"):
        printed = printed[int(key) if isinstance(printed, list) else key]
    return float(printed)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One process, and the bounds of what it prints as JSON; without bounds its exit code counts."""

    what: str
    command: Sequence[str]
    bounds: Sequence[Bound] = ()
    digest: str = ""
    """Those with the same name here must end with the same digest of the weights."""


MEASUREMENTS = {
    "step": Measurement(
        "a GRPO step beside TRL's",
        [*STEP, "--steps", "2"],
        [
            Bound("trl_over_proa", at_least=10.0),
            Bound("figures/0/training", at_most=0.26),
            Bound("figures/0/publishing", at_most=0.05),
            Bound("figures/0/peak_memory", at_most=48 * GIB),
        ],
    ),
    "checkpointed": Measurement(
        "the same with activation checkpointing",
        [*STEP, "--checkpointing", "--steps", "2"],
        [
            Bound("trl_over_proa", at_least=10.0),
            Bound("figures/0/training", at_most=0.32),
            Bound("figures/0/publishing", at_most=0.05),
            Bound("figures/0/peak_memory", at_most=20 * GIB),
        ],
    ),
    "decode": Measurement(
        "tokens per second of the engine alone, at 64 and 256 rows",
        [*ROLLOUT, "--rows", "64,256", "--lengths", "uniform"],
        [
            Bound("figures/0/tokens_per_second", at_least=30_000),
            Bound("figures/1/tokens_per_second", at_least=65_000),
        ],
    ),
    "tail": Measurement(
        "2,048 requests of long-tailed lengths through 64 rows, beside uniform ones",
        [*ROLLOUT, "--rows", "64"],
        [Bound("figures/1/tokens_per_second:figures/0/tokens_per_second", at_least=0.8)],
    ),
    "in_run": Measurement(
        "the engine inside a run, beside the same engine alone",
        [*IN_RUN, "--staleness", "0"],
        [Bound("share_of_alone", at_least=0.9), Bound("maker.probe_gap", at_most=0.01)],
    ),
    "asynchronous": Measurement("the same, trainer and engine at work together", IN_RUN, [Bound("step_seconds", 0.0)]),
    "sleep": Measurement(
        "the same in turns, with the cache given back between them",
        [*IN_RUN, "--staleness", "0", "--sleep", "--only-run"],
        [Bound("step_seconds", 0.0)],
    ),
    "one_maker": Measurement(
        "twenty steps with one maker, nothing compiled before",
        [*IN_RUN, "--only-run", "--steps", "20"],
        [Bound("ready_after", at_most=30.0)],
        "whole",
    ),
    "three_makers": Measurement(
        "the same with three makers, everything compiled before",
        [*IN_RUN, "--only-run", "--steps", "20", "--makers", "3"],
        [Bound("ready_after", at_most=15.0)],
        "whole",
    ),
    "lora_one_maker": Measurement(
        "an adapter, one maker",
        [*IN_RUN, "--only-run", "--steps", "20", "--lora", "16"],
        [Bound("step_seconds", 0.0)],
        "lora",
    ),
    "lora_three_makers": Measurement(
        "an adapter, three makers",
        [*IN_RUN, "--only-run", "--steps", "20", "--lora", "16", "--makers", "3"],
        [Bound("step_seconds", 0.0)],
        "lora",
    ),
    "4B": Measurement(
        "a 4B-shaped model, all weights",
        [*STEP, "--shape", "4B", "--checkpointing", "--without", "trl", "--steps", "2"],
        [Bound("figures/0/seconds", 0.0)],
    ),
    "4B_lora": Measurement(
        "a 4B-shaped model with an adapter",
        [*STEP, "--shape", "4B", "--lora", "16", "--checkpointing", "--without", "trl", "--steps", "2"],
        [Bound("figures/0/seconds", 0.0)],
    ),
    "8GiB": Measurement(
        "a 0.5B-shaped model with an adapter in 8 GiB",
        [
            *STEP, "--shape", "0.5B", "--lora", "16", "--memory", "8", "--token-budget", "8192", "--checkpointing",
            "--without", "trl", "--steps", "2",
        ],
        [Bound("figures/0/peak_memory", at_most=8 * GIB)],
    ),
    "tests": Measurement("the tests that need a GPU", TESTS),
    "learning": Measurement("three seeds of the demo in float32 and bfloat16", [*TESTS, "-m", "prove"]),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    holds: bool
    lines: list[str]
    digest: str = ""


def measure(name: str, folder: Path | None) -> Outcome:
    """Run one, and check what it printed."""
    measurement = MEASUREMENTS[name]
    print(f"{name}: {measurement.what} ...", flush=True)
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *measurement.command], cwd=REPOSITORY, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    seconds = f"{time.monotonic() - begun:.0f} s"
    if folder is not None:
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
    if done.returncode != 0 or not measurement.bounds:
        last = (done.stdout + done.stderr).strip().splitlines()[-8:]
        return Outcome(name, done.returncode == 0, [f"exit code {done.returncode}, {seconds}", *last])
    printed = json.loads(done.stdout[done.stdout.index("{") :])
    checks = [bound.check(printed) for bound in measurement.bounds]
    lines = [f"{'' if holds else 'MISSED '}{line}" for holds, line in checks]
    return Outcome(name, all(holds for holds, _ in checks), [*lines, seconds], printed.get("weights_digest", ""))


def _different_digests(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for kind in sorted({one.digest for one in MEASUREMENTS.values() if one.digest}):
        found = {one.digest for one in outcomes if MEASUREMENTS[one.name].digest == kind and one.digest}
        if len(found) > 1:
            yield f"MISSED {kind}: {len(found)} digests of the weights: {', '.join(sorted(found))}"


def main() -> int:
    parser = argparse.ArgumentParser(description="The figures for a GPU, with their bounds.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure; everything if none is named")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write what each process printed there")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:18} {one.what}" for name, one in MEASUREMENTS.items()))
        return 0
    if unknown := set(options.names) - set(MEASUREMENTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    if not torch.cuda.is_available():
        print("skipped: these figures need a CUDA device, and there is none")
        return 0
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in options.names or MEASUREMENTS:
        outcomes.append(measure(name, options.keep))
        print("\n".join(f"  {line}" for line in outcomes[-1].lines), flush=True)
    differing = list(_different_digests(outcomes))
    failed = [one.name for one in outcomes if not one.holds]
    print("\n".join(differing))
    print(f"{len(outcomes) - len(failed)} hold, {len(failed)} do not{': ' if failed else ''}{', '.join(failed)}")
    return int(bool(failed or differing))


if __name__ == "__main__":
    raise SystemExit(main())
