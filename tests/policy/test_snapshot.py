"""A snapshot of a model stays what the model was, and shares what nobody trains."""

import torch

from proa.policy.lora import LoraSettings, add_lora, has_lora
from proa.policy.lora_policy import as_policy
from proa.policy.models import model_weights, weights_digest
from proa.policy.snapshot import snapshot_model

IDS = torch.tensor([[3, 5, 7, 9]])


def train(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)


def test_it_does_not_follow_the_training(tiny):
    model = tiny()
    digest, logits = weights_digest(model_weights(model)), model(IDS).logits
    snapshot = snapshot_model(model)
    train(model)
    assert weights_digest(model_weights(snapshot)) == digest != weights_digest(model_weights(model))
    assert torch.equal(snapshot(IDS).logits, logits)
    assert all(parameter.requires_grad for parameter in snapshot.parameters())


def test_tied_weights_stay_tied(tiny):
    model = tiny("qwen2")
    snapshot = snapshot_model(model)
    assert snapshot.get_input_embeddings().weight is snapshot.get_output_embeddings().weight
    assert snapshot.get_input_embeddings().weight is not model.get_input_embeddings().weight
    assert len(list(snapshot.parameters())) == len(list(model.parameters()))


def test_what_is_frozen_is_shared_and_what_is_trained_is_not(tiny):
    model = tiny()
    frozen = model.model.layers[0].requires_grad_(False)
    snapshot = snapshot_model(model)
    ours, theirs = dict(model.named_parameters()), dict(snapshot.named_parameters())
    shared = {name for name in ours if theirs[name].data_ptr() == ours[name].data_ptr()}
    assert shared == {f"model.layers.0.{name}" for name, _ in frozen.named_parameters()}


def test_of_an_adapter_it_copies_the_adapter_alone(tiny):
    model = tiny()
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    train(model)  # both halves: a fresh adapter does nothing
    digest, logits = weights_digest(as_policy(model).weights()), model(IDS).logits
    snapshot = snapshot_model(model)
    train(model)
    assert has_lora(snapshot)
    assert weights_digest(as_policy(snapshot).weights()) == digest
    assert torch.equal(snapshot(IDS).logits, logits)
    assert not torch.equal(model(IDS).logits, logits)
    ours, theirs = dict(model.named_parameters()), dict(snapshot.named_parameters())
    for name, parameter in ours.items():
        assert (theirs[name].data_ptr() == parameter.data_ptr()) is (not parameter.requires_grad)
