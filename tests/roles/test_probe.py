"""A probe at every push: an engine that computes another policy than the trainer is found before it makes a sample."""

import json

import pytest
import torch
from tests.small import DETACHED

from proa.engines import NativeEngine, build_engine
from proa.policy.lora import LoraSettings, adapter_weights, add_lora
from proa.policy.lora_policy import as_policy
from proa.policy.models import load_model, model_weights
from proa.recipes import grpo
from proa.roles.probe import ALLOWED, SEQUENCES, TOKENS, Probe, ProbeError
from proa.runtime.supervisor import RunFailedError

CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
TEXT = [tuple(range(2, 12)), (5, 4, 3), tuple(range(40, 60)), (1,), (7, 7)]


def sharp_model(seed=0):
    """Random weights say nearly the same of every token; these do not."""
    model = load_model(CONFIG, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return model


def compare(policy, weights, kind="native"):
    """The gap between a policy and an engine that has these weights."""
    engine = build_engine(kind, policy.model, end_ids=())
    engine.load(weights, 1)
    probe = Probe.of(policy, TEXT)
    return probe.check(engine.score(probe.sequences), 1, engine.dtype)


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_an_honest_engine_passes_with_a_gap_of_rounding(kind):
    policy = as_policy(sharp_model())
    assert compare(policy, policy.whole(), kind) < 1e-5


def test_a_probe_is_short_and_leaves_out_what_has_nothing_to_score():
    probe = Probe.of(as_policy(sharp_model()), [(3,), *[tuple(range(2, 60))] * 9])
    assert [len(tokens) for tokens in probe.sequences] == [TOKENS] * SEQUENCES
    assert [len(row) for row in probe.log_probs] == [TOKENS - 1] * SEQUENCES
    nothing = Probe.of(as_policy(sharp_model()), [(3,)])
    assert nothing.check(build_engine("native", sharp_model(), end_ids=()).score(nothing.sequences), 0) == 0.0


def stale_head(weights):
    return {**weights, "lm_head.weight": model_weights(sharp_model(seed=1))["lm_head.weight"]}


def missing_layer(weights):
    gone = ("model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight")
    return {name: torch.zeros_like(tensor) if name in gone else tensor for name, tensor in weights.items()}


def wrong_scale(weights):
    return {name: tensor * 1.02 if name == "model.norm.weight" else tensor for name, tensor in weights.items()}


@pytest.mark.parametrize("fault", [stale_head, missing_layer, wrong_scale])
def test_it_catches(fault):
    policy = as_policy(sharp_model())
    with pytest.raises(ProbeError, match=r"with the weights of version 1 the engine gives 31 tokens .* They do not"):
        compare(policy, fault(model_weights(policy.model)))


def test_it_catches_a_swapped_adapter():
    policies = []
    for seed in range(2):
        model = sharp_model()
        add_lora(model, LoraSettings(rank=3, alpha=6.0), seed=1)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in adapter_weights(model).values():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
        policies.append(as_policy(model))
    own, other = policies
    assert compare(own, own.whole()) < 1e-4
    with pytest.raises(ProbeError):
        compare(own, other.whole())


def test_numbers_that_are_none_are_no_agreement():
    policy = as_policy(sharp_model())
    probe = Probe.of(policy, TEXT)
    damaged = [torch.full((len(tokens) - 1,), float("nan")) for tokens in probe.sequences]
    with pytest.raises(ProbeError, match="nan"):
        probe.check(damaged, 3)


def test_the_coarser_dtype_of_the_two_decides():
    policy = as_policy(sharp_model())
    probe = Probe.of(policy, TEXT)
    off = [torch.tensor(row) + 0.1 for row in probe.log_probs]
    assert probe.check(off, 1, torch.bfloat16) == pytest.approx(0.1)
    with pytest.raises(ProbeError, match=f"{ALLOWED[torch.float32]:g} is allowed"):
        probe.check(off, 1, torch.float32)


# -- in a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_the_gap_is_a_metric_of_every_push(tmp_path, kind):
    grpo(**{**DETACHED, "output_dir": tmp_path, "name": "run", "engine": {"kind": kind}})
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["maker.probe_gap"] for row in rows if "maker.probe_gap" in row]
    assert len(gaps) >= 2
    assert max(gaps) < 1e-5
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["engine"] == {"kind": kind, "independent": kind == "native"}


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_a_head_that_is_not_loaded_ends_the_run_with_both_numbers(tmp_path, monkeypatch, kind):
    from proa.engines.hf import HFEngine

    engine, stale = NativeEngine if kind == "native" else HFEngine, {}
    load = engine.load

    def forgets_the_head(self, weights, version):
        stale.setdefault("head", weights["lm_head.weight"].clone())
        load(self, {**weights, "lm_head.weight": stale["head"]}, version)

    monkeypatch.setattr(engine, "load", forgets_the_head)
    settings = {**DETACHED, "output_dir": tmp_path, "name": "run", "engine": {"kind": kind}}
    with pytest.raises(RunFailedError, match="They do not compute the same policy"):
        grpo(**settings, **{"optimizer.learning_rate": 0.1})
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["status"] == "failed"
    assert told["steps_run"] >= 1  # version 0 was right
    assert "apart, and 0.001 is allowed" in told["stop_reason"]
