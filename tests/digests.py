"""Digests of two dozen small runs, for a change that must not change results: take them before, and compare after.

    python -m tests.digests --save before.json
    python -m tests.digests --against before.json

Two digests of each run: of its final weights, and of its record (metrics, evals with their predictions, kept
completions, ledger, journal), without what depends on the clock. They hold for one machine and its packages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.small import DETACHED, MODEL

from proa import Experiment, TrainerCallback, recipes
from proa.config import load_experiment_config
from proa.data.state import LoopState
from proa.lifecycle.hooks import Callback

EVAL = {"eval": [{"name": "held_out", "count": 8, "run_every": 2}]}
SAMPLED = {"eval": [{"name": "sampled", "count": 4, "samples": 2, "run_every": 2, "apart": True}]}
LORA = {"lora": {"rank": 2, "alpha": 4.0}}
PAIRS = [{"prompt": f"{d}>", "chosen": str(d), "rejected": str((d + 1) % 10)} for d in range(10)]
OLD_RUN = Path(__file__).parent / "cli" / "fixtures" / "run_of_0_1"

DETACHED_RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", EVAL),
    "grpo, 3 makers, staleness 2": ("grpo", {"makers": 3, "max_staleness": 2, "update_steps": 2, "total_steps": 5}),
    "grpo, reference, 2 epochs": ("grpo", {"algorithm.params": {"kl_coefficient": 0.1}, "train_epochs": 2, **EVAL}),
    "grpo, shared prompts, budget": ("grpo", {"optimizer.share_prompts": True, "optimizer.token_budget": 40}),
    "grpo, lora": ("grpo", {**LORA, **SAMPLED, "algorithm.params": {"kl_coefficient": 0.1}}),
    "grpo, warm start, lora": ("grpo", {**LORA, "warm_start": {"steps": 2, "batch_size": 8}}),
    "grpo, hf engine, background": ("grpo", {"engine": "hf", "checkpoint": {"save_every": 2, "background": True}}),
    "dr_grpo": ("dr_grpo", {"sampling.top_k": 5}),
    "dapo": ("dapo", {"algorithm.params": {"overlong_buffer": 3}, "total_steps": 3}),
    "rloo, old trainer": ("rloo", {"algorithm.old": "trainer", "train_epochs": 2}),
    "gspo": ("gspo", {"sampling.temperature": 0.7}),
    "cispo": ("cispo", {"buffer_limit": 1}),
    "decoupled": ("decoupled", {"max_staleness": 2, "train_epochs": 2}),
    "reinforce_pp": ("reinforce_pp", {"algorithm.params": {"kl_reward_coefficient": 0.05}}),
    "reinforce_pp_baseline": ("reinforce_pp_baseline", {"algorithm.params": {"kl_coefficient": 0.05}}),
    "ppo, shared critic": ("ppo", {"algorithm.params": {"kl_reward_coefficient": 0.05, "kl_target": 0.5}, **EVAL}),
    "ppo, separate critic": ("ppo", {"critic": {"kind": "separate", "learning_rate": 1e-2}, "train_epochs": 2}),
    "ppo, separate critic, lora": (
        "ppo",
        {"critic": "separate", **LORA, "algorithm.params": {"bootstrap_truncated": True}},
    ),
}  # fmt: skip
SUPERVISED_RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("sft", {**EVAL, "train_epochs": 2}),
    "sft, packing, lora": ("sft", {**LORA, "algorithm.params": {"packing": True}}),
    "dpo": ("dpo", {"task": PAIRS, "train_epochs": 2}),
    "dpo, lora": ("dpo", {"task": PAIRS, **LORA}),
    "reward_model": ("reward_model", {"task": PAIRS}),
    "reward_model, lora": ("reward_model", {"task": PAIRS, **LORA}),
}  # fmt: skip
RAY_RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ray, 2 makers": ("grpo", {"makers": 2, **EVAL}),
    "ray, 2 trainers, ppo": ("ppo", {"trainers": 2, "critic": "separate"}),
    "ray, lora": ("grpo", LORA),
}
SUPERVISED: dict[str, Any] = {
    "total_steps": 4, "train_batch_size": 4, "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 32},
    "optimizer": {"learning_rate": 3e-3},
}  # fmt: skip


class StopAfter(TrainerCallback):
    """Ends a run as a crash would, but at a step of its own."""

    def __init__(self, steps: int) -> None:
        self._steps_left = steps

    def on_batch_end(self, metrics: dict[str, Any], experience: Any) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise RuntimeError("stopped here")


class Moments(Callback):
    """Notes what a callback is shown, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_end(self, state: LoopState, step_idx: int, batch: Any, metrics: dict[str, float]) -> None:
        names = sorted(timeless(metrics))
        self.seen.append([step_idx, state.episode, state.epoch, state.step, state.policy_version, names])


def recipe_run(folder: Path, recipe: str, settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, str]:
    getattr(recipes, recipe)(**{**base, **settings, "output_dir": folder, "name": "run"})
    return digests_of(folder / "run")


def with_tokenizer(folder: Path, recipe: str, settings: Mapping[str, Any]) -> dict[str, str]:
    from proa.tasks.builtin.characters import tokenizer

    settings = {**SUPERVISED, **settings, "output_dir": folder, "name": "run", "tokenizer": tokenizer()}
    getattr(recipes, recipe)(**settings)
    return digests_of(folder / "run")


def resumed(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Failed in its third step, and resumed from the checkpoint of the second."""
    settings = {**DETACHED, **settings, "output_dir": folder, "name": "run", "checkpoint": {"save_every": 2}}
    try:
        recipes.grpo(**settings, callbacks=[StopAfter(3)])
    except RuntimeError:
        pass
    recipes.grpo(**settings, resume="auto")
    return digests_of(folder / "run")


def resumed_old_run(folder: Path) -> dict[str, str]:
    from proa.cli.main import main

    shutil.copytree(OLD_RUN, folder / "run")
    with contextlib.redirect_stdout(io.StringIO()):
        main(["resume", str(folder / "run")])
    return digests_of(folder / "run")


def hooks(folder: Path) -> dict[str, str]:
    moments = Moments()
    settings = {**DETACHED, **EVAL, "output_dir": folder, "name": "run", "train_epochs": 2, "update_steps": 2}
    recipes.grpo(**settings, callbacks=[moments])
    return {**digests_of(folder / "run"), "hooks": digest(moments.seen)}


def experiment(folder: Path) -> dict[str, str]:
    config = load_experiment_config(
        name="two", output_dir=str(folder), n_repeats=2, base_seed=3,
        matrix={"run": {**DETACHED, "total_steps": 2}, "over": {"optimizer.learning_rate": [1e-3, 3e-3]}},
    )  # fmt: skip
    Experiment(config).run()
    found: dict[str, str] = {}
    for run in sorted((folder / "two").glob("*/run.json")):
        found |= {f"{run.parent.name} {key}": value for key, value in digests_of(run.parent).items()}
    return found


def runs() -> dict[str, Callable[[Path], dict[str, str]]]:
    named: dict[str, Callable[[Path], dict[str, str]]] = {}
    for name, (recipe, settings) in DETACHED_RUNS.items():
        named[name] = lambda folder, r=recipe, s=settings: recipe_run(folder, r, s, DETACHED)
    for name, (recipe, settings) in SUPERVISED_RUNS.items():
        named[name] = lambda folder, r=recipe, s=settings: with_tokenizer(folder, r, s)
    named["resumed"] = lambda folder: resumed(folder, EVAL)
    named["resumed, lora, 2 epochs"] = lambda folder: resumed(folder, {**LORA, "train_epochs": 2})
    named["run of version 0.1, resumed"] = resumed_old_run
    named["hooks"] = hooks
    named["experiment"] = experiment
    for name, (recipe, settings) in RAY_RUNS.items():
        named[name] = lambda folder, r=recipe, s=settings: recipe_run(folder, r, {**s, "runtime": "ray"}, DETACHED)
    return named


# -- what is digested ------------------------------------------------------------------------------------


def digests_of(run: Path) -> dict[str, str]:
    header = json.loads((run / "run.json").read_text())
    record: dict[str, Any] = {name: header.get(name) for name in ("status", "steps_run", "ledger", "evals")}
    for path in sorted([*run.glob("*.jsonl"), *run.glob("rollouts/*"), *run.glob("evals/*/*.jsonl")]):
        if path.name not in ("spans.jsonl", "checkpoints.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            record[str(path.relative_to(run))] = [timeless(line) for line in lines]
    return {"weights": header["weights_digest"][:16], "record": digest(record)}


def timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the record without what depends on the clock, or on which maker was faster."""
    timed = ("time", "seconds", "per_second", "makers", "probe_gap", "ended", "started")
    return {key: value for key, value in row.items() if not key.endswith(timed)}


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="", help="runs whose names contain this")
    options = parser.parse_args()
    before = json.loads(options.against.read_text()) if options.against else {}
    found: dict[str, dict[str, str]] = {}
    for name, make in runs().items():
        if options.only in name:
            with tempfile.TemporaryDirectory() as folder:
                found[name] = make(Path(folder))
            same = "" if name not in before else "  same" if before[name] == found[name] else f"  WAS {before[name]}"
            print(f"{name:32}", *(f"{key} {value}" for key, value in found[name].items()), same, flush=True)
    if options.save:
        options.save.write_text(json.dumps(found, indent=1))
    different = [name for name in found if name in before and before[name] != found[name]]
    if before:
        print(f"{len(found) - len(different)} the same, {len(different)} different: {', '.join(different)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
