"""The one small model that tests train, and the one small run that they make of it.

A llama of about three thousand parameters over the sixteen characters of the built-in tasks' tokenizer: every layer
matters, and a run of a few steps takes a fraction of a second.
"""

from __future__ import annotations

from typing import Any

MODEL: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
}  # fmt: skip
MODEL_WITH_END = {**MODEL, "eos_token_id": 1}
"""The same, knowing the token that ends a completion."""

DETACHED: dict[str, Any] = {
    "total_steps": 4, "train_batch_size": 8, "sampling": {"group_size": 2, "max_new_tokens": 7},
    "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 64}, "reward": {"workers": 0},
    "optimizer": {"learning_rate": 3e-3}, "wait_timeout": 60.0,
}  # fmt: skip
"""Settings of a detached run; tests add what they are about."""


class Numbers:
    """A tokenizer for rollouts without a model: text is the tokens' numbers."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(map(str, tokens))
