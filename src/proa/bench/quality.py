"""Time to quality: how long it takes until a small model sorts digits, ours beside TRL's, seed by seed.

Both start from the same weights, a little supervised, and have the same prompts, batches, rewards, learning rate and
clipping, and the whole machine: ours a trainer and a maker side by side, one thread each; TRL's trainer as many threads
as both. The clock runs from the first step until the mean reward of five batches in a row has reached the target.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..learning.optimizer import OptimizerSettings
from ..lifecycle.manager import CallbackManager
from ..policy.models import load_model, save_model
from ..recipes import grpo
from ..statistics.intervals import Estimate, estimate
from ..supervised.sft import fit_sft
from ..tasks import Task
from ..tasks.builtin import builtin_task
from ..tasks.builtin.characters import tokenizer as make_tokenizer

MODEL = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32, "eos_token_id": 1,
    "pad_token_id": 0, "bos_token_id": None,
}  # fmt: skip
BATCH, GROUP, NEW_TOKENS, LEARNING_RATE, CLIP_HIGH = 512, 8, 8, 3e-4, 0.28
AVERAGED = 5
"""Batches whose mean reward must have reached the target."""


@dataclass(frozen=True, slots=True)
class Reached:
    """When the target was reached; infinite if it was not."""

    library: str
    seed: int
    seconds: float
    steps: int


class _Watch:
    """Notes when the mean reward of some batches in a row has reached a target."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._rewards: deque[float] = deque(maxlen=AVERAGED)
        self._begun = 0.0
        self.seconds = math.inf
        self.steps = 0

    def begin(self) -> None:
        self._begun = time.perf_counter()

    def is_reached(self, reward: float) -> bool:
        self.steps += 1
        self._rewards.append(reward)
        if len(self._rewards) == AVERAGED and statistics.fmean(self._rewards) >= self._target:
            self.seconds = time.perf_counter() - self._begun
            return True
        return False


def measure_seed(seed: int, *, target: float, most_steps: int, libraries: Sequence[str]) -> list[Reached]:
    """Both libraries from the same start."""
    tokenizer = make_tokenizer()
    task = builtin_task("sort_digits", "train", seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        _warm_start(start, tokenizer, task, seed)
        runs = {"proa": _with_proa, "trl": _with_trl}
        return [runs[name](start, task, tokenizer, seed, target, most_steps) for name in libraries]


def _warm_start(folder: Path, tokenizer: PreTrainedTokenizerBase, task: Task, seed: int) -> None:
    model = load_model(MODEL, seed=seed)
    fit_sft(
        model, tokenizer, task, steps=25, batch_size=128, optimizer=OptimizerSettings(learning_rate=1e-3), seed=seed
    )
    save_model(model, tokenizer, folder)


def _with_proa(
    start: Path, task: Task, tokenizer: PreTrainedTokenizerBase, seed: int, target: float, most_steps: int
) -> Reached:
    watch, manager = _Watch(target), CallbackManager()
    manager.on("train_start")(lambda _: watch.begin())

    @manager.on("step_end")
    def note(state: Any, metrics: dict[str, float]) -> None:
        if watch.is_reached(metrics["reward"]):
            state.stop_training("the target is reached")

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        grpo(
            model=str(start), tokenizer=tokenizer, task=task, output_dir=folder, seed=seed, total_steps=most_steps,
            train_batch_size=BATCH, callbacks=manager,
            sampling={"group_size": GROUP, "max_new_tokens": NEW_TOKENS},
            algorithm={"name": "grpo", "params": {"clip_high": CLIP_HIGH}},
            optimizer={"learning_rate": LEARNING_RATE, "share_prompts": True}, reward={"workers": 0},
            checkpoint={"save_every": 0}, record={"rollouts": 0}, progress=False,
        )  # fmt: skip
    return Reached("proa", seed, watch.seconds, watch.steps)


def _with_trl(
    start: Path, task: Task, tokenizer: PreTrainedTokenizerBase, seed: int, target: float, most_steps: int
) -> Reached:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from transformers import PrinterCallback, TrainerCallback

    trl, datasets = (import_module(name) for name in ("trl", "datasets"))
    watch = _Watch(target)

    class Note(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_log(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
            if "reward" in facts["logs"] and watch.is_reached(facts["logs"]["reward"]):
                control.should_training_stop = True

    rows = [{"prompt": row.prompt, **row.columns} for row in task.rows]
    model: PreTrainedModel = load_model(str(start))
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder, per_device_train_batch_size=BATCH, num_generations=GROUP,
            max_completion_length=NEW_TOKENS, max_steps=most_steps, learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant", beta=0.0, epsilon=0.2, epsilon_high=CLIP_HIGH, use_cpu=True, report_to=[],
            logging_steps=1, save_strategy="no", disable_tqdm=True, bf16=False, gradient_checkpointing=False,
            loss_type="grpo", seed=seed, max_grad_norm=1.0,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=task.reward, args=config, processing_class=tokenizer, callbacks=[Note()],
            train_dataset=datasets.Dataset.from_list(rows),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    torch.set_num_threads(1)
    return Reached("trl", seed, watch.seconds, watch.steps)


def compare(reached: Sequence[Reached]) -> Estimate:
    """Seconds of ours over TRL's, seed by seed: their geometric mean, with its interval; of seeds in which both came to
    the target.

    >>> both = [Reached("proa", 0, 1.0, 1), Reached("trl", 0, 2.0, 1), Reached("proa", 1, 1.0, 1)]
    >>> round(compare(both).mean, 6), compare(both).n
    (0.5, 1)
    """
    seconds = {(one.library, one.seed): one.seconds for one in reached if math.isfinite(one.seconds)}
    pairs = [(ours, seconds.get(("trl", seed))) for (library, seed), ours in seconds.items() if library == "proa"]
    logs = estimate(math.log(ours / theirs) for ours, theirs in pairs if theirs is not None)
    mean, low, high = (None if value is None else math.exp(value) for value in (logs.mean, logs.low, logs.high))
    return replace(logs, mean=mean, low=low, high=high)
