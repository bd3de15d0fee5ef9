"""Records as runs and experiments write them, made up: enough for a page without a model or a step of training."""

from __future__ import annotations

import json
import math
import os
import platform
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HOSTILE = (
    "<script>document.title='owned';fetch('http://evil.example/')</script><img src=x onerror=alert(1)>"
    "</script><!--<style>*{display:none}</style>\x00\x07\x1b[2J\x7f\x85\u202ereversed\u2028\u2029&lt;b&gt; ]]> "
    "\u200b\ufeff\udc80 ${7*7} {{7*7}} \"quoted\" 'single' `tick`"
)
STARTED = 1_790_000_000.0
CONFIG = {
    "name": "made_up", "output_dir": "runs", "seed": 0, "total_steps": 40, "train_epochs": 1, "makers": 2,
    "optimizer": {"learning_rate": 3e-4, "schedule": "linear"}, "sampling": {"group_size": 8},
    "eval": [{"name": "sort"}],
}  # fmt: skip


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_run(
    folder: Path,
    *,
    steps: int = 40,
    seed: int = 0,
    gain: float = 1.0,
    status: str = "completed",
    config: Mapping[str, Any] | None = None,
    texts: bool = True,
    text: str = "3456",
) -> Path:
    """A run's folder with all that a run of `steps` writes."""
    chance = random.Random(seed * 1000 + steps + int(100 * gain))
    header: dict[str, Any] = {
        "status": status, "started": STARTED, "host": "elsewhere", "pid": 1, "steps_run": steps,
        "policy_version": steps,
        "weights_digest": "ab" * 32, "libraries": {"proa": "0.1", "torch": "2.13"}, "callback_errors": {},
        "ledger": ledger(steps), "evals": {"sort": {"exact": _learned(steps, gain, chance), "completion_tokens": 7.0}},
    }  # fmt: skip
    if status == "running":
        header = {key: header[key] for key in ("status", "started", "host", "pid", "libraries")}
    else:
        header["ended"] = STARTED + steps
    write_json(folder / "run.json", header)
    write_json(folder / "config.json", {**CONFIG, "seed": seed, "total_steps": steps, **(config or {})})
    rows = [*metric_rows(steps, gain, chance), *scored_rows(steps, gain, chance)]
    write_lines(folder / "metrics.jsonl", sorted(rows, key=lambda row: row["step"]))
    write_lines(folder / "evals.jsonl", eval_rows(steps, gain, chance))
    write_lines(folder / "checkpoints.jsonl", checkpoint_rows(steps))
    if texts:
        write_lines(folder / "spans.jsonl", span_rows(steps, chance))
        for done in sorted({1, steps // 2 or 1, steps}):
            write_lines(folder / "rollouts" / f"step_{done}.jsonl", rollout_rows(done - 1, chance, text))
        write_lines(folder / "evals" / "sort" / f"step_{steps}.jsonl", prediction_rows(60, chance, text))
    return folder


def ledger(steps: int) -> dict[str, Any]:
    return {
        "leased": 64 * steps, "trained": 64 * steps - 20, "buffered": 12, "in_flight": 0,
        "dropped": {"group_too_small": 3, "reward_failed": 4, "left_over": 1},
        "tokens": {"made": 448 * steps, "trained": 448 * steps - 140, "buffered": 84, "dropped": 56},
    }  # fmt: skip


def metric_rows(steps: int, gain: float, chance: random.Random) -> Iterable[dict[str, Any]]:
    for step in range(steps):
        yield {
            "step": step, "epoch": 0, "time": STARTED + step, "loss": chance.gauss(0.0, 0.02),
            "reward": _learned(step, gain, chance), "reward_std": 0.2 + chance.random() / 10,
            "grad_norm": 1 + chance.random(), "learning_rate": 3e-4 * (1 - step / steps),
            "entropy": 1 / (1 + step / 20),
            "ratio": chance.gauss(1.0, 0.01), "staleness": float(min(step, 1)), "completion_tokens": 7.0,
            "samples": 64.0,
            "trainer.wait_seconds": chance.random() / 5, "trainer.compute_seconds": 0.5,
            "trainer.publish_seconds": 0.02,
            "maker.wait_seconds": chance.random() / 3, "maker.generate_seconds": 0.6, "maker.tokens_per_second": 5000.0,
        }  # fmt: skip


def scored_rows(steps: int, gain: float, chance: random.Random) -> Iterable[dict[str, Any]]:
    for done in range(0, steps + 1, 10):
        yield {"step": done - 1, "epoch": 0, "time": STARTED + done, "sort.exact": _learned(done, gain, chance)}


def eval_rows(steps: int, gain: float, chance: random.Random) -> Iterable[dict[str, Any]]:
    parts = {
        "length": {
            "short": {"n": 30, "mean_reward": 0.9, "pass_rate": 0.8},
            "long": {"n": 30, "mean_reward": 0.4, "pass_rate": 0.2},
        }
    }
    for done in sorted({0, steps // 2, steps}):
        metrics = {"exact": _learned(done, gain, chance), "completion_tokens": 7.0}
        yield {
            "name": "sort",
            "benchmark_id": "sort",
            "metrics": metrics,
            "breakdowns": parts,
            "eval_seconds": 0.5,
            "step": done - 1,
            "tags": [],
        }


def checkpoint_rows(steps: int) -> Iterable[dict[str, Any]]:
    for name, step in (("step_10", min(10, steps)), ("final", steps)):
        yield {
            "name": name, "batch": step - 1, "epoch": 0, "state_path": f"checkpoints/{name}/state",
            "sampler_path": None,
            "final": name == "final", "step": step, "policy_version": step, "metrics": {"sort.exact": 0.5,
            "reward": 0.6},
            "sizes": {"state/a": 1_000_000}, "digests": {"state/a": "00"},
        }  # fmt: skip
    yield {"name": "step_10", "removed": True}


def span_rows(steps: int, chance: random.Random) -> Iterable[dict[str, Any]]:
    at = STARTED
    for step in range(steps):
        wait = chance.random() / 4
        for kind, seconds in (("wait", wait), ("compute", 0.6), ("publish", 0.03)):
            yield {
                "actor": "trainer_0",
                "kind": kind,
                "start": at,
                "seconds": seconds,
                "step": step,
                "lease": None,
                "version": step,
            }
            at += seconds
        if step % 20 == 19:
            yield {
                "actor": "trainer_0",
                "kind": "eval",
                "start": at,
                "seconds": 1.5,
                "step": step,
                "lease": None,
                "version": step,
            }
            at += 1.5
    for maker in range(2):
        now, lease = STARTED, maker
        while now < at:
            pieces = (
                ("load", 0.02),
                ("generate", 0.3 + chance.random() / 4),
                ("score", 0.04),
                ("send", 0.03),
                ("wait", chance.random() / 5),
            )
            for kind, seconds in pieces:
                yield {
                    "actor": f"maker_{maker}",
                    "kind": kind,
                    "start": now,
                    "seconds": seconds,
                    "step": None,
                    "lease": lease,
                    "version": lease // 2,
                }
                now += seconds
            lease += 2


def rollout_rows(step: int, chance: random.Random, text: str) -> Iterable[dict[str, Any]]:
    for sample in range(6):
        pieces = [text[place : place + 3] for place in range(0, len(text), 3)] + ["\n", " done", "<eos>"]
        reward = chance.random()
        log_probs = [-chance.expovariate(2) for _ in pieces]
        yield {
            "step": step, "uid": f"{step}/{sample}", "group_id": step, "prompt": f"sort {text}",
            "completion": "".join(pieces),
            "reward": reward, "reward_parts": {"exact": reward, "length": 0.1}, "finish_reason": "stop",
            "tokens": pieces,
            "log_probs": log_probs, "trainer_log_probs": [p + chance.gauss(0, 0.2) for p in log_probs],
            "advantages": [(reward - 0.5) * 2 * math.cos(place / 4) for place in range(len(pieces))],
            "versions": [step] * len(pieces),
        }  # fmt: skip


def prediction_rows(count: int, chance: random.Random, text: str) -> Iterable[dict[str, Any]]:
    for task in range(count):
        right = chance.random() < 0.6
        yield {
            "task_id": f"t{task}", "sample": 0, "prompt": f"sort {text}", "completion": text if right else text[::-1],
            "reward": float(right), "correct": right,
            "error": "TimeoutError: 30 s" if task % 17 == 3 else None, "tokens": 7,
            "finish_reason": "stop", "policy_version": 40, "seed": 0, "columns": {"answer": text, "length": "short"},
        }  # fmt: skip


def write_experiment(
    folder: Path, arms: Mapping[str, float], *, seeds: int = 3, steps: int = 40, status: str = "completed", **extra: Any
) -> Path:
    """Arms with their gains, each with so many repeats; all were completed."""
    runs, results = [], []
    for arm, gain in arms.items():
        for seed in range(seeds):
            key = f"{arm}__s{seed}" if seeds > 1 else arm
            config = {"name": key, "output_dir": str(folder), "optimizer": {"learning_rate": gain * 1e-4}}
            write_run(folder / key, steps=steps, seed=seed, gain=gain, config=config, texts=seed == 0)
            header = json.loads((folder / key / "run.json").read_text())
            runs.append({"key": key, "arm": arm, "group": arm, "seed": seed})
            results.append(
                {
                    "name": key,
                    "status": "completed",
                    "metrics": {"reward": 0.5},
                    "eval_metrics": header["evals"],
                    "error": None,
                }
            )
    content = {
        "name": folder.name, "status": status, "runs": runs, "arms": results, "best_arm": None, "best_score": None,
        "conclusion": "", "hypothesis": "More is better.", "groups": {},
        "config": {"metadata": {"success_metric": "sort.exact", "mode": "max"}, "n_repeats": seeds}, **extra,
    }  # fmt: skip
    write_json(folder / "experiment.json", content)
    return folder


def mark_running_here(folder: Path, pid: int) -> None:
    """Let a run's header say that it runs on this machine, under this process."""
    path = folder / "run.json"
    header = json.loads(path.read_text())
    header = {"status": "running", "started": header["started"], "host": platform.node(), "pid": pid}
    write_json(path, header)


def gone_process() -> int:
    """The number of a process that was there and has ended."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def _learned(step: int, gain: float, chance: random.Random) -> float:
    return max(0.0, min(1.0, 0.3 + 0.6 * (1 - math.exp(-step * gain / 60)) + chance.gauss(0, 0.02)))
