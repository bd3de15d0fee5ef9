"""What the clients are tried on: a small chat model that has half learned to call a tool, and rows to score it with."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from proa.recipes import sft
from proa.tasks.builtin.look_up import CALL, CLOSE, LETTERS, VOCABULARY, tokenizer

MODEL = {
    "model_type": "llama", "vocab_size": len(VOCABULARY), "hidden_size": 48, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
    "eos_token_id": VOCABULARY.index("<end>"),
}  # fmt: skip
ROWS = 24
STEPS = 30
"""In which it learns to call, and to copy the word into some of the calls."""


def exact(completions, answer, **_):
    """1 for the right words, 0 for any other; of a conversation its last message's."""
    said = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(text == right) for text, right in zip(said, answer, strict=True)]


def make(folder: Path) -> None:
    """The model, and the same rows as texts and as chats."""
    draw = random.Random(0)
    words = ["".join(draw.sample(LETTERS, 3)) for _ in range(300 + ROWS)]
    taught = [
        {"prompt": f"{tools}<user>{word}<end><assistant>", "completion": f"{CALL}{word}{CLOSE}"}
        for tools in ("", "<tool>")
        for word in words[ROWS:]
    ]
    sft(
        model={"config": MODEL}, tokenizer=tokenizer(), task=taught, name="small", output_dir=folder,
        total_steps=STEPS, train_batch_size=32, optimizer={"learning_rate": 3e-3}, progress=False,
    )  # fmt: skip
    rows = [
        {"answer": f"{CALL}{word}{CLOSE}", "wrong": f"{CALL}{word[:2]}{word[0]}{CLOSE}", "word": word}
        for word in words[:ROWS]
    ]
    texts = [{"prompt": f"<user>{row['word']}<end><assistant>", **row} for row in rows]
    chats = [{"prompt": [{"role": "user", "content": row["word"]}], **row} for row in rows]
    for name, content in (("texts", texts), ("chats", chats)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
