"""Tiny models that vLLM serves, and engines of them, which are made once: starting one takes seconds."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tests.engines.tiny import CONTEXT, VOCABULARY
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from proa.engines import ModelDescription, build_engine
from proa.engines.vllm import VLLMEngine
from proa.policy.lora_policy import as_policy

_NO_SPECIALS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT, **_NO_SPECIALS,
}  # fmt: skip
_ROPE = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16}  # fmt: skip

SHAPES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True)),
    "llama, biases": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True)),
    "llama, llama3 rope": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=_ROPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON)),
    "qwen3, tied": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=2, n_positions=CONTEXT, **_NO_SPECIALS)
    ),
}  # fmt: skip


class Engines:
    """Engines by model and settings, handed out again with nothing to do and the weights that are asked for."""

    def __init__(self) -> None:
        self._made: dict[str, VLLMEngine] = {}

    def build(
        self, kind: Any, model: Any, *, end_ids: Collection[int], dtype: Any = None, device: Any = None, **settings: Any
    ) -> Any:
        """In the place of `build_engine`."""
        if kind != "vllm" or not isinstance(model, PreTrainedModel):
            return build_engine(kind, model, end_ids=end_ids, dtype=dtype, device=device, **settings)
        description = ModelDescription.of(model, end_ids=end_ids, dtype=dtype)
        shape = [description.architecture.__name__, description.config.to_dict(), str(description.dtype)]
        key = json.dumps([shape, sorted(end_ids), settings], sort_keys=True, default=str)
        engine = self._made.get(key) or VLLMEngine(description, **settings)
        self._made[key] = engine
        for name in [*engine._requests, *engine._kept]:
            engine.cancel(name)
        policy = as_policy(model)
        engine.load(policy.published_base() or policy.whole(), 0)
        return engine
