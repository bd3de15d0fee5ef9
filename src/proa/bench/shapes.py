"""Models of random weights to measure with, by the names of their shapes."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 688,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048,
    },
    "0.6B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
    },
    "0.5B": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "4B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Models of random weights, by name: a tiny Llama, and the shapes of Qwen3-0.6B, Qwen2.5-0.5B and Qwen3-4B."""
