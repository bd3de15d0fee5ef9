"""What a Hugging Face configuration says of a model's size, under whichever name its architecture gives it."""

from __future__ import annotations

from typing import Any

# `n_positions` and `n_ctx` are those of GPT-2's time, the next of MPT, XLSTM and others, the last of RWKV.
_CONTEXT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "max_target_positions",
    "context_length",
)


def context_length(config: Any) -> int | None:
    """The most tokens that the model was made for, of a multimodal one its text part; None if nothing bounds them.

    Mamba, whose state has one size whatever the length, has no bound, nor has Bloom, whose positions are distances.
    """
    text = config.get_text_config()
    for name in _CONTEXT_NAMES:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
