"""Packed rows under flash attention, whose rules are followed here on a CPU.

transformers' flash attention takes no mask of packed samples. Of a batch of one row it reads where samples begin from
the positions; of several rows it takes each for one sample, whatever the positions say.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from proa.policy.log_probs import UnsupportedModelError
from proa.policy.models import load_model
from proa.policy.packing import check_packing, pack, pack_lengths, packed_log_probs

TINY = {
    "model_type": "llama", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "eos_token_id": 2,
}  # fmt: skip
LENGTHS = [9, 5, 4, 7, 3, 6, 2]


def attend_as_flash(module, query, key, value, attention_mask, scaling=None, position_ids=None, **_):
    """Causal within each row; of one row, within each run of positions that starts again from 0."""
    batch, heads, length, _ = query.shape
    key, value = (part.repeat_interleave(heads // part.shape[1], dim=1) for part in (key, value))
    samples = torch.zeros(batch, length, dtype=torch.long)
    if batch == 1 and position_ids is not None:
        samples = (position_ids == 0).cumsum(-1)
    places = torch.arange(length)
    seen = (samples[:, :, None] == samples[:, None, :]) & (places[:, None] >= places[None, :])
    if attention_mask is not None:
        seen = seen & attention_mask.bool()[:, None, :] | torch.eye(length, dtype=torch.bool)
    scores = (query @ key.transpose(2, 3)) * scaling
    weights = functional.softmax(scores.masked_fill(~seen[:, None], float("-inf")), dim=-1)
    return (weights @ value).transpose(1, 2), None


@pytest.fixture(params=["emulated_flash_attention", "like_that_under_another_name"])
def flash_model(request):
    AttentionInterface.register(request.param, attend_as_flash)
    AttentionMaskInterface.register(request.param, flash_attention_mask)
    model = load_model(TINY, dtype="float64", seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10.0)
    model.config._attn_implementation = request.param  # its setter would look for a kernel
    return model


def samples():
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(3, 23, (length,), generator=generator) for length in LENGTHS]
    return tokens, [torch.arange(length) > 0 for length in LENGTHS]


def test_several_packed_rows_do_not_leak_between_samples(flash_model):
    tokens, learned = samples()
    packed = pack(tokens, learned, pack_lengths(LENGTHS, max(LENGTHS)))
    assert len(packed.tokens_RL) > 2
    ours = packed_log_probs(flash_model, packed)
    for sample, row in enumerate(tokens):
        alone = flash_model(input_ids=row[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        expected = alone.gather(-1, row[1:, None])[:, 0]
        # Norms and rotations of Llama are in float32, so a few units of 2**-24 of hidden states remain, grown by
        # weights of about 10 * 0.02 * 16 = 3 in each of some four products: 1e-7 * 3**4.
        torch.testing.assert_close(ours[packed.learned_samples_N == sample], expected, rtol=0, atol=1e-5)


def test_their_gradients_are_those_of_each_sample_alone(flash_model):
    tokens, learned = samples()
    packed = pack(tokens, learned, pack_lengths(LENGTHS, max(LENGTHS)))
    packed_log_probs(flash_model, packed).sum().backward()
    ours = {name: parameter.grad.clone() for name, parameter in flash_model.named_parameters()}
    flash_model.zero_grad()
    for row in tokens:
        log_probs = flash_model(input_ids=row[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        log_probs.gather(-1, row[1:, None]).sum().backward()
    for name, parameter in flash_model.named_parameters():
        bound = 1e-5 * float(parameter.grad.abs().max())  # as above, relative to the largest
        torch.testing.assert_close(ours[name], parameter.grad, rtol=0, atol=bound)


def test_an_attention_that_separates_samples_in_no_way_is_refused_before_training(flash_model):
    def leaking(*inputs, position_ids=None, **more):
        return attend_as_flash(*inputs, **more)

    AttentionInterface.register("flash_attention_that_leaks", leaking)
    AttentionMaskInterface.register("flash_attention_that_leaks", flash_attention_mask)
    flash_model.config._attn_implementation = "flash_attention_that_leaks"
    with pytest.raises(UnsupportedModelError, match="cannot be trained on packed rows.*Set packing to False"):
        check_packing(flash_model, 9)
