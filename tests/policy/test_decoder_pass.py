"""Rows of different lengths: the hidden states of each row alone, whether or not the model heeds its mask."""

from __future__ import annotations

import logging

import pytest
import torch

from proa.policy.decoder_pass import find_decoder, hidden_states
from proa.policy.log_probs import UnsupportedModelError, action_statistics, check_causal
from proa.policy.models import load_model

SIZES = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "eos_token_id": 2}
RWKV = {"model_type": "rwkv", **SIZES, "attention_hidden_size": 16, "context_length": 64}
LLAMA = {"model_type": "llama", **SIZES, "num_attention_heads": 2, "max_position_embeddings": 64}
LLAMA4 = {
    "model_type": "llama4_text", **SIZES, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "intermediate_size_mlp": 24, "num_local_experts": 2, "attention_chunk_size": 8, "max_position_embeddings": 64,
    "pad_token_id": 0, "no_rope_layers": [1, 1],
}  # fmt: skip
XLNET = {"model_type": "xlnet", "vocab_size": 23, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
CPM_ANT = {
    "model_type": "cpmant", "vocab_size": 23, "hidden_size": 16, "num_attention_heads": 2, "dim_head": 8, "dim_ff": 24,
    "num_hidden_layers": 2, "prompt_length": 4, "prompt_types": 4, "segment_types": 4,
}  # fmt: skip
BERT = {"model_type": "bert", **SIZES, "num_attention_heads": 2, "max_position_embeddings": 64}

# Float32 through two layers of width 16, with weights of 5 * 0.02: sums of up to 24 terms are off by sqrt(24) * 2**-24,
# and each of some ten products grows that by 5 * 0.02 * 16 at the most: 3e-5. Rows were wrong by whole nats.
CLOSE = {"rtol": 0, "atol": 1e-4}


def tiny(configuration, dtype="float32"):
    model = load_model(configuration, dtype=dtype, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    return model


def padded_batch(length=24, actions=16):
    """Prompts padded on the left, completions on the right, and one row that fills the batch."""
    generator = torch.Generator().manual_seed(1)
    sequences = torch.randint(3, 23, (3, length), generator=generator)
    mask = torch.ones_like(sequences, dtype=torch.bool)
    mask[1, :5] = mask[1, 18:] = mask[2, 14:] = False
    return sequences, mask, actions


def log_probs_alone(model, sequences, mask, actions):
    expected = torch.zeros(len(sequences), actions, dtype=torch.promote_types(model.dtype, torch.float32))
    for row, (tokens, real) in enumerate(zip(sequences, mask, strict=True)):
        tokens, count = tokens[real], int(real[-actions:].sum())
        log_probs = model(input_ids=tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        expected[row, :count] = log_probs.gather(-1, tokens[1:, None])[-count:, 0]
    return expected


@pytest.mark.parametrize("configuration", [RWKV, LLAMA, LLAMA4], ids=lambda keys: keys["model_type"])
def test_padding_changes_neither_log_probs_nor_gradients(configuration):
    model, batch = tiny(configuration), padded_batch()
    ours, alone = action_statistics(model, *batch).log_probs_BA, log_probs_alone(model, *batch)
    torch.testing.assert_close(ours, alone, **CLOSE)
    for own, expected in zip(gradients(model, ours), gradients(model, alone), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-4 * float(expected.abs().max()) + 1e-6)


def gradients(model, log_probs):
    weights = torch.arange(log_probs.numel(), dtype=log_probs.dtype).view_as(log_probs) / log_probs.numel()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad((weights * log_probs).sum(), parameters, allow_unused=True)
    return [torch.zeros(()) if gradient is None else gradient for gradient in found]


def test_eager_attention_in_float64_which_is_nan_for_padding_is_computed_without_it():
    model, batch = tiny(LLAMA, dtype="float64"), padded_batch()
    model.set_attn_implementation("eager")
    torch.testing.assert_close(
        action_statistics(model, *batch).log_probs_BA.detach(), log_probs_alone(model, *batch).detach(), **CLOSE
    )


def test_a_model_that_reads_its_padding_says_so_once(caplog):
    model = tiny(RWKV)
    with caplog.at_level(logging.WARNING, "proa.policy"):
        for _ in range(2):
            action_statistics(model, *padded_batch())
    assert [record.getMessage() for record in caplog.records] == [
        "RwkvModel computes other numbers for a row with padding than without: rows of different lengths go through "
        "it one length at a time, which is right and slower"
    ]


def test_a_row_of_padding_alone_does_no_harm():
    model, (sequences, mask, _) = tiny(RWKV), padded_batch()
    mask[2] = False
    assert hidden_states(find_decoder(model), sequences, mask).isfinite().all()


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        (XLNET, "XLNetLMHeadModel is not causal: what it says of a token depends on those that follow"),
        (CPM_ANT, "CpmAntForCausalLM is not causal: what it says of a token depends on those that follow"),
        (BERT, "BertLMHeadModel computes its logits in a way that Proa does not know"),
        (
            {**BERT, "model_type": "bert-generation"},
            "BertGenerationDecoder is not causal: .*: set is_decoder to true in its configuration",
        ),
    ],
    ids=["xlnet", "cpmant", "bert", "bert-generation"],
)
def test_a_model_that_is_not_causal_is_refused_in_words(configuration, words):
    with pytest.raises(UnsupportedModelError, match=words):
        check_causal(tiny(configuration))
