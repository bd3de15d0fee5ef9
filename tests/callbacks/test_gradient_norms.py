"""Norms of gradients by layer, every so many steps."""

import json

import pytest
from tests.small import DETACHED

from proa.callbacks import GradientNorms, build_callback
from proa.callbacks.gradient_norms import group_names
from proa.errors import CallbackConfigError
from proa.recipes import ppo


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.11.self_attn.q_proj.weight", "layers.11"),
        ("transformer.h.3.attn.c_attn.bias", "h.3"),
        ("model.layers.0.mlp.experts.5.w1.weight", "layers.0"),
        ("model.layers.2.self_attn.q_proj.lora_A.default.weight", "layers.2"),
        ("model.norm.weight", "norm"),
        ("lm_head.weight", "lm_head"),
        ("value_head.weight", "value_head"),
        ("critic.model.layers.1.mlp.up_proj.weight", "critic.layers.1"),
        ("critic.head.weight", "critic.head"),
        ("weight", "weight"),
    ],
)
def test_parameters_are_grouped_by_decoder_layer_and_others_by_module(name, group):
    assert group_names([name]) == {name: group}


def test_every_says_how_often():
    assert build_callback({"kind": "gradient_norms", "params": {"every": 3}}).every == 3
    with pytest.raises(CallbackConfigError, match="every=0"):
        GradientNorms(every=0)


def test_norms_are_logged_every_so_many_steps_and_add_up_to_the_whole_norm(tmp_path):
    settings = {**DETACHED, "output_dir": tmp_path, "name": "run", "total_steps": 2, "critic": {"kind": "separate"}}
    ppo(**settings, callbacks=[GradientNorms(every=2)])
    first, second = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert not any(name.startswith("grad_norm.") for name in first)
    norms = {name.removeprefix("grad_norm."): norm for name, norm in second.items() if name.startswith("grad_norm.")}
    assert {"embed_tokens", "layers.0", "norm", "lm_head", "critic.layers.0", "critic.head"} <= norms.keys()
    for whole, is_critic in ((second["grad_norm"], False), (second["critic_grad_norm"], True)):
        squares = sum(norm**2 for name, norm in norms.items() if name.startswith("critic.") is is_critic)
        assert squares**0.5 == pytest.approx(whole, rel=1e-5)
