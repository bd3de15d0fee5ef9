"""The size of a model from its Hugging Face configuration, whose key depends on the architecture."""

from __future__ import annotations

from typing import Any, Protocol

# `n_positions` and `n_ctx` are used by GPT-2, the next by MPT, XLSTM and others, the last by RWKV.
_CONTEXT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "max_target_positions",
    "context_length",
)


class ModelConfig(Protocol):
    """A Hugging Face `PretrainedConfig`."""

    def get_text_config(self) -> object: ...


def context_length(config: ModelConfig) -> int | None:
    """The maximal number of tokens of the model, or of a multimodal model's text part; None if unlimited.

    Mamba, whose state has a fixed size, has no limit, nor has Bloom, whose positions are distances.
    """
    text = config.get_text_config()
    for name in _CONTEXT_NAMES:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def cache_bytes(config: ModelConfig, itemsize: int) -> int:
    """What the keys and values of a token take in all layers."""
    text: Any = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width * itemsize)
