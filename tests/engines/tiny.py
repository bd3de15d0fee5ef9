"""Tiny Hugging Face models with random weights, and what the Hugging Face model itself says about a text."""

from __future__ import annotations

import torch
from tests.engines.prompted import Prompted
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from proa.data.sampling import Completion

VOCABULARY = 23
CONTEXT = 64

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def _rope(kind: str, **parameters: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **parameters}}


SHAPES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, tie_word_embeddings=True)),
    "llama, biases": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, attention_bias=True, mlp_bias=True)),
    "llama, wide heads": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, head_dim=6)),
    "llama, one key head": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON | {"num_key_value_heads": 1})),
    "llama, one of each": lambda: LlamaForCausalLM(
        LlamaConfig(**_COMMON | {"num_key_value_heads": 1, "num_hidden_layers": 1})
    ),
    "llama, as many key heads": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON | {"num_key_value_heads": 4})),
    "llama, linear rope": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, **_rope("linear", factor=4.0))),
    "llama, llama3 rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **_COMMON,
            **_rope(
                "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
            ),
        )
    ),
    "llama, yarn rope": lambda: LlamaForCausalLM(
        LlamaConfig(**_COMMON, **_rope("yarn", factor=4.0, original_max_position_embeddings=16))
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_COMMON)),
    "qwen3, tied": lambda: Qwen3ForCausalLM(Qwen3Config(**_COMMON, head_dim=8, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**_GPT2, **_NO_SPECIALS)),
    "gpt2, untied and scaled by layer": lambda: GPT2LMHeadModel(
        GPT2Config(**_GPT2, **_NO_SPECIALS, tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True)
    ),
}


def tiny_model(shape: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A model that has opinions: its weights are large enough for every part of it to matter."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = SHAPES[shape]().eval()
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def some_requests(seeds: int = 3) -> list[Prompted]:
    """Prompts of different lengths, the longest neither first nor last."""
    lengths = (3, 1, 9, 5)
    return [
        Prompted(tuple((7 * index + 3 * place) % VOCABULARY for place in range(length)), _seeds(index, seeds))
        for index, length in enumerate(lengths)
    ]


def _seeds(index: int, count: int) -> tuple[int, ...]:
    return tuple(range(100 * index, 100 * index + count))


def logits_of(model: PreTrainedModel, request: Prompted, completion: Completion) -> torch.Tensor:
    """The logits from which each token of the completion came, of one full pass without any cache."""
    with torch.no_grad():
        logits = model(torch.tensor([[*request.tokens, *completion.tokens.tolist()]]), use_cache=False).logits[0]
    return logits[len(request.tokens) - 1 : -1]


def tokens_of(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.tokens.tolist() for completion in group] for group in groups]
