"""LoRA across both hulls: makers keep the base, get adapters, and sample from what the trainer computes."""

from __future__ import annotations

import copy
import pickle
from typing import Literal

import pytest
import torch
from tests.engines.prompted import Prompted, generated
from tests.engines.tiny import some_requests, tiny_model
from transformers import PreTrainedModel

from proa.data.sampling import Completion, Sampling
from proa.engines import Engine, build_engine
from proa.learning.optimizer import Optimizer, OptimizerSettings
from proa.policy.adapter_layout import AdapterError, AdapterOverBase
from proa.policy.log_probs import action_statistics
from proa.policy.lora import LoraSettings, adapter_layout, adapter_weights, add_lora, base_weights, has_lora
from proa.policy.models import model_weights, weights_digest

Kind = Literal["native", "hf"]
both_kinds = pytest.mark.parametrize("kind", ["native", "hf"])
every_shape = pytest.mark.parametrize("shape", ["llama", "llama, tied", "qwen2", "qwen3, tied", "gpt2"])
SETTINGS = LoraSettings(rank=3, alpha=6.0)
SAMPLING = Sampling(max_new_tokens=8, temperature=0.7)


def with_lora(model: PreTrainedModel) -> PreTrainedModel:
    add_lora(model, SETTINGS, seed=0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        for tensor in adapter_weights(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return model


def copies(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def bits(groups: list[list[Completion]]) -> list[tuple[list[int], list[float]]]:
    return [(one.tokens.tolist(), one.log_probs.tolist()) for group in groups for one in group]


def applied_log_probs(model: PreTrainedModel, request: Prompted, completion: Completion) -> torch.Tensor:
    """What the trainer says of a completion, with the adapter applied, not merged."""
    sequence_1S = torch.tensor([[*request.tokens, *completion.tokens.tolist()]])
    statistics = action_statistics(model, sequence_1S, None, len(completion.tokens), temperature=SAMPLING.temperature)
    return statistics.log_probs_BA[0]


def largest_difference(model: PreTrainedModel, engine: Engine, requests: list[Prompted] | None = None) -> float:
    requests = requests or some_requests(seeds=1)
    groups = generated(engine, requests, SAMPLING)
    return max(
        float((applied_log_probs(model, request, one).detach() - one.log_probs).abs().max())
        for request, group in zip(requests, groups, strict=True)
        for one in group
    )


@every_shape
@both_kinds
def test_an_engine_of_a_model_with_an_adapter_begins_with_the_plain_base(shape: str, kind: Kind) -> None:
    expected = bits(generated(build_engine(kind, tiny_model(shape), end_ids=(4,)), some_requests(), SAMPLING))
    model = with_lora(tiny_model(shape))
    before = weights_digest(adapter_weights(model))
    engine = build_engine(kind, model, end_ids=(4,))
    assert bits(generated(engine, some_requests(), SAMPLING)) == expected
    assert has_lora(model)
    assert weights_digest(adapter_weights(model)) == before
    engine.load(model_weights(tiny_model(shape, seed=1)), 0)  # it takes whole weights under their plain names
    other = build_engine(kind, tiny_model(shape, seed=1), end_ids=(4,))
    assert bits(generated(engine, some_requests(), SAMPLING)) == bits(generated(other, some_requests(), SAMPLING))


@every_shape
@both_kinds
def test_merged_and_applied_log_probs_agree(shape: str, kind: Kind) -> None:
    base = tiny_model(shape)
    model = with_lora(copy.deepcopy(base))
    engine = build_engine(kind, base, end_ids=())
    assert largest_difference(model, engine) > 0.01  # the adapter matters
    engine.load(AdapterOverBase(model_weights(base), SETTINGS.layout(base)).merged(adapter_weights(model)), 0)
    assert largest_difference(model, engine) < 1e-4


@pytest.mark.parametrize("shape", ["llama", "qwen2", "gpt2"])
@both_kinds
def test_they_agree_after_each_of_ten_steps_with_pushes_in_between(shape: str, kind: Kind) -> None:
    model = tiny_model(shape)
    base = copies(model_weights(model))
    add_lora(model, SETTINGS, seed=0)
    engine = build_engine(kind, model, end_ids=())
    over_base = AdapterOverBase(base, SETTINGS.layout(model))
    start, digest = bits(generated(engine, some_requests(seeds=1), SAMPLING)), weights_digest(base)
    optimizer = Optimizer(model.named_parameters(), OptimizerSettings(learning_rate=0.02), 10)
    request = Prompted((1, 2, 3), (5, 6))
    for _ in range(10):
        completion = generated(engine, [request], SAMPLING)[0][0]
        optimizer.zero_grad()
        applied_log_probs(model, request, completion).sum().neg().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        engine.load(over_base.merged(copies(adapter_weights(model))), 0)
        assert largest_difference(model, engine, [request]) < 1e-4
    fresh = build_engine(kind, tiny_model(shape), end_ids=())
    fresh.load(AdapterOverBase(base_weights(model), adapter_layout(model)).merged(adapter_weights(model)), 0)
    once, pushed = (bits(generated(one, some_requests(seeds=1), SAMPLING)) for one in (fresh, engine))
    assert once == pushed != start  # ten pushes are worth the last one
    assert weights_digest(base) == weights_digest(base_weights(model)) == digest


@both_kinds
def test_a_maker_elsewhere_needs_no_object_of_the_trainer(kind: Kind) -> None:
    model = with_lora(tiny_model("gpt2"))
    adapter, settings = pickle.loads(pickle.dumps((copies(adapter_weights(model)), SETTINGS)))
    base = tiny_model("gpt2")
    engine = build_engine(kind, base, end_ids=())
    engine.load(AdapterOverBase(model_weights(base), settings.layout(base)).merged(adapter), 0)
    assert largest_difference(model, engine) < 1e-4


@both_kinds
def test_an_adapter_that_does_not_fit_leaves_the_engine_as_it_was(kind: Kind) -> None:
    model = with_lora(tiny_model())
    engine = build_engine(kind, model, end_ids=())
    over_base = AdapterOverBase(base_weights(model), adapter_layout(model))
    engine.load(over_base.merged(adapter_weights(model)), 0)
    before = bits(generated(engine, some_requests(), SAMPLING))
    adapter = adapter_weights(model)
    adapter.popitem()
    with pytest.raises(AdapterError, match="missing"):
        engine.load(over_base.merged(adapter), 0)
    assert bits(generated(engine, some_requests(), SAMPLING)) == before
