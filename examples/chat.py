"""Reinforcement learning on conversations: a small model learns to answer with the larger of two digits.

    python examples/chat.py [--steps 150] [--forget-turn]

After the first step a sample is shown as the model saw it, so that a wrong chat template is seen before a night is lost
to it: `--forget-turn` leaves out what begins the assistant's turn. Model and tokenizer are made from configuration.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from proa.recipes import grpo

PAD, END = "<pad>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>")
WORDS = (PAD, END, *ROLES, "larger", *"0123456789")
TURNS = "{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
BEGIN = "{% if add_generation_prompt %}<assistant>{% endif %}"


def make_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """One token for each word."""
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token=PAD))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token=PAD, eos_token=END, additional_special_tokens=[*ROLES]
    )
    tokenizer.chat_template = template
    return tokenizer


def conversations(count: int = 500) -> list[dict[str, Any]]:
    """Two digits, and what is asked of them."""
    drawn = random.Random(0)
    rows = []
    for _ in range(count):
        pair = drawn.sample("0123456789", 2)
        prompt = [{"role": "system", "content": "larger"}, {"role": "user", "content": " ".join(pair)}]
        rows.append({"prompt": prompt, "answer": max(pair)})
    return rows


def reward(completions: list[list[dict[str, str]]], answer: list[str], **_columns: Any) -> list[float]:
    """1 for the right digit alone, half of it for the right digit and more."""
    said = [completion[0]["content"].split() for completion in completions]
    return [
        1.0 if words == [right] else 0.5 * (words[:1] == [right]) for words, right in zip(said, answer, strict=True)
    ]


def main(steps: int, output_dir: Path | str = "runs", *, forget_turn: bool = False) -> float:
    state = grpo(
        model={
            "config": {
                "model_type": "llama", "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 128,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 32, "eos_token_id": WORDS.index(END),
            }
        },
        tokenizer=make_tokenizer(TURNS if forget_turn else TURNS + BEGIN),
        task=conversations(),
        reward={"functions": reward, "workers": 0},  # it is quick, and defined in this script
        output_dir=str(output_dir),
        total_steps=steps,
        train_batch_size=256,
        sampling={"group_size": 16, "max_new_tokens": 3},
        optimizer={"learning_rate": 3e-3},
        checkpoint={"save_every": 0},
    )  # fmt: skip
    return float(state.metrics["reward"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A small model learns to answer with the larger of two digits.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument(
        "--forget-turn", action="store_true", help="a template that does not begin the assistant's turn"
    )
    options = parser.parse_args()
    print(f"reward at the end: {main(options.steps, forget_turn=options.forget_turn):.2f}")
