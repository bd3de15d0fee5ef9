"""Models of a few thousand parameters, and batches of the shape that makers send."""

import pytest
import torch

from proa.policy.models import load_model

torch.set_num_threads(1)

VOCABULARY = 23
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, **_TOKENS,
}  # fmt: skip
CONFIGURATIONS = {
    "llama": {"model_type": "llama", **_SIZES},
    "qwen2": {"model_type": "qwen2", **_SIZES, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 8},
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, **_TOKENS},
    "gemma2": {"model_type": "gemma2", **_SIZES, "head_dim": 8, "final_logit_softcapping": 0.1},
    "cohere": {"model_type": "cohere", **_SIZES, "logit_scale": 0.25},
    "granite": {"model_type": "granite", **_SIZES, "logits_scaling": 4.0},
}


@pytest.fixture
def configuration():
    return lambda shape="llama", **changes: {**CONFIGURATIONS[shape], **changes}


@pytest.fixture
def tiny(configuration):
    """A tiny model of a shape, float64 unless told, with larger weights than usual so that tokens matter."""

    def build(shape="llama", *, dtype="float64", seed=0, **changes):
        model = load_model(configuration(shape, **changes), dtype=dtype, seed=seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(10.0)
        return model

    return build


@pytest.fixture
def padded():
    """Sequences and mask of rows of (prompt, completion) lengths, boundary aligned, junk under the mask."""

    def build(lengths, *, seed=0, junk=0):
        generator = torch.Generator().manual_seed(seed)
        prompts, actions = max(p for p, _ in lengths), max(c for _, c in lengths)
        sequences = torch.full((len(lengths), prompts + actions), junk)
        mask = torch.zeros_like(sequences, dtype=torch.bool)
        for row, (p, c) in enumerate(lengths):
            real = slice(prompts - p, prompts + c)
            sequences[row, real] = torch.randint(3, VOCABULARY, (p + c,), generator=generator)
            mask[row, real] = True
        return sequences, mask, actions

    return build
