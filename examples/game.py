"""A game of several turns: guess a number, and listen to whether it is higher or lower.

    python examples/game.py [--steps 100] [--deaf]

From scratch, a small model learns to search by halves in about a minute. `--deaf` shuffles what the game says: then
there is nothing to listen to, and nothing is learned beyond not to guess the same twice, which wins three in seven. The
environment is a class with `reset`, `step` and `close`; model and tokenizer are made from configuration.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proa.environments import Message, Start, Step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NUMBERS = "abcdefg"
"""Letters in their order, each one token; whoever halves finds any of seven in three turns."""
TURNS = 3
HIGHER, LOWER, END = ">", "<", "."
WORDS = (END, HIGHER, LOWER, "?", *NUMBERS)


class Game:
    """Has a letter in mind. Earlier finds are worth more."""

    def __init__(self, deaf: bool = False) -> None:
        self._deaf = deaf
        self._turn = 0

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Start:
        self._secret = NUMBERS.index(str(row["secret"]))
        self._random = random.Random(f"{seed} {row['secret']}")
        return Start([{"role": "user", "content": str(row["prompt"])}])

    def step(self, message: Message) -> Step:
        self._turn += 1
        guess = NUMBERS.find(str(message["content"])[-1:] or "?")  # to say nothing is no guess
        if guess == self._secret:
            return Step(reward=1.0 - 0.1 * (self._turn - 1), done=True)
        hint = HIGHER if guess < self._secret else LOWER
        if self._deaf:
            hint = self._random.choice([HIGHER, LOWER])
        return Step([{"role": "user", "content": hint}], reward=0.0, done=self._turn == TURNS)

    def close(self) -> None:
        """There is nothing to close."""


def won(completions: list[list[dict[str, Any]]], secret: list[str], **_columns: Any) -> list[float]:
    """1 where the last guess was right."""
    said = [[message["content"] for message in one if message["role"] == "assistant"] for one in completions]
    return [float(guesses[-1:] == [letter]) for guesses, letter in zip(said, secret, strict=True)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token=END))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=END)  # type: ignore[no-untyped-call]


def main(steps: int, output_dir: Path | str = "runs", *, deaf: bool = False, seed: int = 0) -> float:
    """The share of games that are won in the end."""
    from proa.recipes import grpo  # not where games are played: it would be loaded in their processes too

    rows = [{"prompt": "?", "secret": letter} for letter in NUMBERS]
    state = grpo(
        model={
            "config": {
                "model_type": "llama", "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 128,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                "max_position_embeddings": 32, "eos_token_id": 0, "initializer_range": 0.1,
            }
        },
        tokenizer=make_tokenizer(),
        task=rows,
        environment={"path": "examples.game:Game", "params": {"deaf": deaf}, "max_turns": TURNS, "workers": 1},
        name="game",
        output_dir=str(output_dir),
        seed=seed,
        total_steps=steps,
        train_batch_size=224,
        sampling={"group_size": 16, "max_new_tokens": 1, "stop": list(NUMBERS)},  # a letter ends a turn
        algorithm={"name": "grpo", "params": {"entropy_coefficient": 0.01}},
        optimizer={"learning_rate": 6e-3, "schedule": "linear"},
        checkpoint={"save_every": 0},
        eval=[{"name": "games", "source": rows, "metric": won, "samples": 32, "baseline": True, "run_every": steps}],
    )  # fmt: skip
    return float(state.metrics["games.won"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A small model learns to guess a number by halves.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--deaf", action="store_true", help="what the game says is shuffled")
    options = parser.parse_args()
    print(f"games won: {main(options.steps, deaf=options.deaf):.0%}")
