"""One GRPO step, ours beside TRL's, for the same work in one run: generation, scoring, loss, optimizer step.

    python benchmarks/step.py [--json] [--steps N] [--new-tokens N]

The same model (4 layers, 256 wide, random weights), 8 prompts of 8 samples, one thread, float32, a cheap
reward. Ours runs synchronously in one thread here (`max_staleness` 0, the maker's work and then the
trainer's), so the ratio is about the work, not about overlap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from proa.algorithms import build_algorithm
from proa.data.experience import merge
from proa.data.lease import sample_seed
from proa.data.sampling import Sampling
from proa.engines import build_engine
from proa.learning.learner import StepSettings
from proa.policy.models import load_model, model_weights
from proa.rewards import InlineRewards
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.policy_trainer import DetachedGRPOTrainer
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn
from proa.tasks import PromptStream, load_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer

PROMPTS, GROUP = 8, 8
MODEL = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512, "eos_token_id": 1,
    "pad_token_id": 0, "bos_token_id": None,
}  # fmt: skip


def length_reward(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(completion))) for completion in completions]


def rows() -> list[dict[str, str]]:
    return [{"prompt": f"{number:06}>"} for number in range(1000)]


def proa_step(new_tokens: int) -> Callable[[], None]:
    """A step of ours: make the experience of one batch, train on it, push the weights to the maker."""
    model, tokenizer = load_model(MODEL, seed=0), make_tokenizer()
    sampling = Sampling(GROUP, new_tokens)
    stream = PromptStream(load_task(rows()), tokenizer, seed=0)
    store = WeightStore()
    store.publish(0, model_weights(model))
    trainer = DetachedGRPOTrainer(
        [], model, algorithm=build_algorithm("grpo"), sampling=sampling, learning_rate=1e-6,
        optimizer_steps=1000, store=store, settings=StepSettings(token_budget=8192),
    )  # fmt: skip
    maker = ExperienceMakerHolder(
        engine=build_engine("native", model, end_ids=[]),
        rollout=SingleTurn(tokenizer, sampling, scorer=InlineRewards(length_reward)),
    )  # fmt: skip
    maker.update_experience_maker(store.fetch(0, owner="maker"))
    batch = 0

    def step() -> None:
        nonlocal batch
        prompts = [stream[ordinal] for ordinal in range(batch * PROMPTS, (batch + 1) * PROMPTS)]
        seeds = [[sample_seed(0, prompt.ordinal, sample) for sample in range(GROUP)] for prompt in prompts]
        trainer.training_step(merge(maker.make(prompts, seeds)))
        batch += 1
        store.publish(batch, model_weights(model))
        store.retire(but=set())
        maker.update_experience_maker(store.fetch(batch, owner="maker"))

    return step


def trl_seconds(steps: int, new_tokens: int) -> float:
    """Seconds per step of TRL's GRPOTrainer, without its first."""
    import logging
    import os

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logging.disable(logging.WARNING)
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    model, tokenizer = load_model(MODEL, seed=0), make_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP,
            max_completion_length=new_tokens, max_steps=steps + 1, learning_rate=1e-6, beta=0.0, use_cpu=True,
            report_to=[], logging_steps=10**6, save_strategy="no", disable_tqdm=True, bf16=False,
            gradient_checkpointing=False, loss_type="grpo",
            generation_kwargs={"min_new_tokens": new_tokens},  # both generate to the full length
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, reward_funcs=length_reward, args=config, train_dataset=Dataset.from_list(rows()),
            processing_class=tokenizer, callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    logging.disable(logging.NOTSET)
    return min(after - before for before, after in itertools.pairwise(times))


def main() -> int:
    parser = argparse.ArgumentParser(description="One GRPO step, ours beside TRL's.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    step = proa_step(options.new_tokens)
    step()
    ours = min(_seconds(step) for _ in range(options.steps))
    figures: dict[str, Any] = {"samples": PROMPTS * GROUP, "new_tokens": options.new_tokens}
    figures["proa_seconds"] = round(ours, 3)
    try:
        theirs = trl_seconds(options.steps, options.new_tokens)
        figures |= {"trl_seconds": round(theirs, 3), "trl_over_proa": round(theirs / ours, 2)}
    except ImportError as error:
        figures["not_measured"] = f"trl ({error})"
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:16} {value}")
    return 0


def _seconds(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
