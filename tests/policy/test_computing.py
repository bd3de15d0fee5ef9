"""Checkpointed and compiled layers: the same numbers, less memory."""

import copy
import os

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import OPTConfig, OPTForCausalLM

from proa.errors import SettingError
from proa.model_trials import is_compiled, uncompiled
from proa.policy.computing import ComputeSettings, check_compiler, keep_triton_cache, set_up_computing
from proa.policy.decoder_pass import find_decoder, takes_segments
from proa.policy.log_probs import action_statistics
from proa.policy.lora import LoraSettings, add_lora
from proa.policy.measuring import measuring
from proa.policy.models import load_model

ROWS = [(3, 4), (5, 1), (1, 5), (2, 2)]


def gradients(model, batch):
    model.zero_grad()
    action_statistics(model, *batch).log_probs_BA.sum().backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "segments"])
def test_checkpointing_changes_no_bit_of_a_gradient(shape, attention, tiny, padded):
    model, batch = tiny(shape, dtype="float32"), padded(ROWS)
    set_up_computing(model, ComputeSettings(attention=attention))
    kept = gradients(model, batch)
    set_up_computing(model, ComputeSettings(attention=attention, gradient_checkpointing=True))
    again = gradients(model, batch)
    assert kept.keys() == again.keys()
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_checkpointing_changes_no_bit_of_an_adapter(tiny, padded):
    model, batch = tiny("llama", dtype="float32"), padded(ROWS)
    add_lora(model, LoraSettings(rank=2), seed=0)
    kept = gradients(model, batch)
    set_up_computing(model, ComputeSettings(gradient_checkpointing=True))
    again = gradients(model, batch)
    assert kept
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def saved_numbers(model, batch):
    """How many numbers a forward pass keeps for the backward pass, parameters not counted."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    sizes = []

    def note(tensor):
        if tensor.data_ptr() not in own:
            sizes.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        action_statistics(model, *batch)
    return sum(sizes)


def test_checkpointing_keeps_a_layer_s_input_alone(configuration, padded):
    batch = padded([(8, 24)] * 8)
    kept = {}
    for layers in (2, 6):
        for checkpointed in (False, True):
            model = load_model(configuration("llama", num_hidden_layers=layers), seed=0)
            set_up_computing(model, ComputeSettings(gradient_checkpointing=checkpointed))
            kept[layers, checkpointed] = saved_numbers(model, batch)
    tokens, width = 8 * 31, 16
    of_a_layer = (kept[6, True] - kept[2, True]) / 4
    assert of_a_layer <= 2 * tokens * width  # its input, and at most a second tensor of that size
    assert (kept[6, False] - kept[2, False]) / 4 > 5 * of_a_layer


def test_a_model_that_is_checkpointed_generates_as_before(tiny):
    model = tiny("llama", dtype="float32")
    prompt, settings = torch.tensor([[3, 4, 5]]), {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None}
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    set_up_computing(model, ComputeSettings(gradient_checkpointing=True))
    assert torch.equal(model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings), expected)


def test_dropout_of_a_model_that_was_given_stays_off(padded):
    """A layer of OPT asks its own flag whether to drop something."""
    config = OPTConfig(
        vocab_size=23, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2, dropout=0.5,
        max_position_embeddings=64, word_embed_proj_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model, batch = OPTForCausalLM(config).eval(), padded(ROWS)
    kept = gradients(model, batch)
    set_up_computing(model, ComputeSettings(gradient_checkpointing=True))
    again = gradients(model, batch)
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_asking_a_model_is_not_slowed_down(tiny, padded):
    model, batch = tiny("llama", dtype="float32"), padded(ROWS)
    plain = action_statistics(model, *batch).log_probs_BA
    set_up_computing(model, ComputeSettings(gradient_checkpointing=True))
    with measuring(model):
        assert torch.equal(action_statistics(model, *batch).log_probs_BA, plain)


@pytest.fixture
def graphs(monkeypatch):
    """Layers are compiled without a compiler: what is traced is noted, and computed as it is."""
    noted = []

    def note(graph, inputs):
        noted.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compile_layer = torch.nn.Module.compile
    monkeypatch.setattr("proa.policy.computing.check_compiler", lambda _: None)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **kwargs: compile_layer(self, backend=note, **kwargs))
    monkeypatch.setattr("proa.policy.head._compiled", lambda function: function)
    yield noted
    torch._dynamo.reset()


IGNORED = pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's tracer looks at what is not a leaf


@IGNORED
def test_compiled_layers_give_the_same(tiny, padded, graphs):
    model, batch = tiny("llama", dtype="float32"), padded(ROWS)
    expected = gradients(model, batch)
    set_up_computing(model, ComputeSettings(compile=True, attention="segments", gradient_checkpointing=True))
    assert is_compiled(model)
    compiled = gradients(model, batch)
    assert graphs
    for name, gradient in expected.items():  # two ways of attention, in float32, through two layers of width 16
        torch.testing.assert_close(compiled[name], gradient, rtol=4e-3, atol=4e-3 * float(gradient.abs().max()))
    assert not is_compiled(copy.deepcopy(model))


@IGNORED
def test_what_is_only_tried_is_not_compiled_for(tiny, padded, graphs):
    model, batch = tiny("llama", dtype="float32"), padded(ROWS)
    plain = action_statistics(model, *batch).log_probs_BA
    set_up_computing(model, ComputeSettings(compile=True))
    with uncompiled(model):
        assert torch.equal(action_statistics(model, *batch).log_probs_BA, plain)
    assert not graphs
    action_statistics(model, *batch)
    assert graphs


@IGNORED
@pytest.mark.parametrize("adapted", [False, True])
def test_one_layer_is_compiled_for_all_of_them_and_once_for_each_shape(configuration, padded, graphs, adapted):
    counts = []
    for layers in (1, 4):
        graphs.clear()
        torch._dynamo.reset()
        model = load_model(configuration("llama", num_hidden_layers=layers), seed=0)
        if adapted:
            add_lora(model, LoraSettings(rank=2), seed=0)
        set_up_computing(model, ComputeSettings(compile=True, attention="sdpa"))
        gradients(model, padded(ROWS))
        gradients(model, padded(ROWS, seed=1))
        counts.append(len(graphs))
    assert counts[0] == counts[1] > 0


def test_a_name_that_is_none_is_answered(tiny):
    with pytest.raises(SettingError, match=r"model.attention 'sdpaa' cannot be used"):
        set_up_computing(tiny("llama"), ComputeSettings(attention="sdpaa"))


def test_an_attention_that_is_named_is_used_with_padding(tiny):
    model = tiny("llama", dtype="float32")
    set_up_computing(model, ComputeSettings(attention="eager"))
    assert model.config._attn_implementation == "eager"
    assert not takes_segments(find_decoder(model), 16)
    set_up_computing(model, ComputeSettings(attention="segments"))
    assert takes_segments(find_decoder(model), 16)


class TestTritonsCache:
    """Torch's compiler moves it only when it compiles: a second run would compile the engine's kernels once more."""

    def test_stays_where_triton_has_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TRITON_HOME", str(tmp_path))
        monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
        monkeypatch.setattr("os.environ", os.environ.copy())
        keep_triton_cache()
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / ".triton" / "cache")

    def test_stays_where_the_user_has_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TRITON_HOME", str(tmp_path))
        monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
        keep_triton_cache()
        assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"

    def test_is_torchs_where_home_cannot_be_written(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TRITON_HOME", str(tmp_path / "file"))
        monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
        keep_triton_cache()
        assert "TRITON_CACHE_DIR" not in os.environ

    def test_is_torchs_where_there_is_no_home(self, monkeypatch):
        def no_home():
            raise RuntimeError("Could not determine home directory.")

        for name in ("TRITON_HOME", "TRITON_CACHE_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("proa.policy.computing.Path.home", no_home)
        keep_triton_cache()
        assert "TRITON_CACHE_DIR" not in os.environ

    def test_is_settled_before_the_compiler_is_tried(self, monkeypatch):
        order = []
        monkeypatch.setattr("proa.policy.computing.keep_triton_cache", lambda: order.append("cache"))
        monkeypatch.setattr(torch, "compile", lambda function: order.append("compile") or function)
        check_compiler.__wrapped__("cpu")
        assert order == ["cache", "compile"]
