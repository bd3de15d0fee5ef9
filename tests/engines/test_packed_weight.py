"""Large products on a CPU: another layout of the same weights, never of others."""

import pytest
import torch
from tests.engines.tiny import tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

from proa.data.sampling import Sampling
from proa.engines import NativeEngine, Request, generate, packed_weight, shapes
from proa.engines.decoder import Linear
from proa.engines.description import ModelDescription
from proa.engines.packed_weight import SMALLEST, PackedWeight
from proa.engines.shapes import build_decoder
from proa.policy.models import model_weights

WIDTH, VOCABULARY = 64, SMALLEST // 64
TEXTS = [[1, 2, 3, 4, 5], [VOCABULARY - 1, 7, 9]]

needs_packing = pytest.mark.skipif(not packed_weight.is_available(), reason="this torch has no packed products")


def large_model(seed, tied=False):
    """Its head is large enough to be packed, and nothing else is."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=64, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    ).eval()  # fmt: skip


def scores(engine, model, version=0):
    engine.load(model_weights(model), version)
    return engine.score(TEXTS)


def engine_of(model):
    return NativeEngine(ModelDescription.of(model, end_ids=[]), slots=8)


def request_of(version):
    return Request("a", (1, 2, 3), 5, Sampling(max_new_tokens=6), version)


def head_is_packed(model):
    decoder, _ = build_decoder(ModelDescription.of(model, end_ids=[]))
    return decoder.head.packed is not None


@needs_packing
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_the_product_is_that_of_the_weight(rows):
    weight, bias, inputs = torch.randn(256, 520), torch.randn(520), torch.randn(rows, 256)
    packed = PackedWeight.of(weight)
    exact = inputs.double() @ weight.double() + bias.double()
    # each of 257 additions may be off by half a unit in the last place of what is added up
    bound = 257 * torch.finfo(torch.float32).eps * (inputs.abs() @ weight.abs() + bias.abs()).double()
    assert ((packed.product(inputs, bias).double() - exact).abs() <= bound).all()


@needs_packing
def test_a_weight_that_is_loaded_anew_is_packed_anew_also_by_its_parts():
    stacked = torch.randn(520, 256)
    linear = Linear(stacked.t(), None, PackedWeight.of(stacked.t()))
    inputs = torch.randn(8, 256)
    before = linear(inputs)
    stacked.split_with_sizes((260, 260))[1].copy_(torch.zeros(260, 256))
    linear.packed.forget()
    after = linear(inputs)
    assert torch.equal(after[:, :260], before[:, :260])
    assert (after[:, 260:] == 0).all()


@pytest.mark.parametrize("weight", [torch.zeros(8, 8), torch.zeros(SMALLEST // 64, 64).double()])
def test_what_gains_nothing_stays_as_it_is(weight):
    assert PackedWeight.of(weight) is None


@pytest.mark.parametrize("tied", [False, True])
def test_an_engine_computes_with_the_weights_that_it_loaded_last(tied):
    first, second = large_model(0, tied), large_model(1, tied)
    engine = engine_of(first)
    assert head_is_packed(first) == packed_weight.is_available()
    scores(engine, first)
    for again, fresh in zip(scores(engine, second, 1), scores(engine_of(second), second), strict=True):
        assert torch.equal(again, fresh)


def test_it_agrees_with_the_model_and_with_the_plain_product(monkeypatch):
    model = large_model(0)
    packed = scores(engine_of(model), model)
    monkeypatch.setattr(packed_weight, "is_available", lambda: False)
    plain = scores(engine_of(model), model)
    for text, ours, theirs in zip(TEXTS, packed, plain, strict=True):
        logits = model(torch.tensor([text])).logits[0, :-1].double()
        exact = logits.log_softmax(-1).gather(-1, torch.tensor(text[1:])[:, None])[:, 0]
        torch.testing.assert_close(ours.double(), exact, atol=1e-4, rtol=0)
        torch.testing.assert_close(theirs.double(), exact, atol=1e-4, rtol=0)


@needs_packing
def test_two_versions_side_by_side_each_compute_with_their_own_weights():
    """The second one has memory of its own, which is loaded again and again while the first one decodes."""
    first, others = large_model(0), [large_model(seed) for seed in (1, 2, 3)]
    engine = engine_of(first)
    engine.load(model_weights(first), 0)
    expected = generate(engine, [request_of(version=0)])
    engine.submit(request_of(version=0))
    collected = list(engine.step())  # so that version 0 is in use, and the next gets memory of its own
    for version, model in enumerate(others, start=1):
        engine.load(model_weights(model), version)
        alone = engine_of(model)
        alone.load(model_weights(model), version)
        for again, fresh in zip(engine.score(TEXTS), alone.score(TEXTS), strict=True):
            assert torch.equal(again, fresh)
    while not collected or collected[-1].finish_reason is None:
        collected += engine.step()
    assert [token for one in collected for token in one.tokens] == expected[0].tokens.tolist()


def test_small_weights_and_large_models_are_not_packed(monkeypatch):
    assert not head_is_packed(tiny_model("llama"))
    monkeypatch.setattr(shapes, "LARGEST_MODEL", VOCABULARY * WIDTH)
    assert not head_is_packed(large_model(0))
