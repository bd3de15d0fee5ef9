"""LoRA: an adapter that begins as nothing, is all that is trained, and gives the base back when it is off."""

import copy
import math
import pickle
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from proa.errors import ProaError
from proa.learning.optimizer import Optimizer, OptimizerSettings
from proa.policy.adapter_layout import AdapterError, AdapterOverBase, linear_layers
from proa.policy.log_probs import action_statistics
from proa.policy.lora import (
    LoraSettings,
    adapter_layout,
    adapter_off,
    adapter_weights,
    add_lora,
    base_weights,
    has_lora,
    lora_settings,
)
from proa.policy.lora_policy import as_policy
from proa.policy.models import ModelError, load_model, model_weights, save_model, weights_digest

SHAPES = ["llama", "qwen2", "gpt2"]
every_shape = pytest.mark.parametrize("shape", SHAPES)
LINEAR = {
    "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    "qwen2": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    "gpt2": {"c_attn", "c_proj", "c_fc"},
}
SMALL = LoraSettings(rank=3, alpha=6.0)
TOKENS = torch.tensor([[3, 7, 11, 5, 2, 9]])


@torch.no_grad()
def logits(model):
    return model(TOKENS, attention_mask=torch.ones_like(TOKENS)).logits


@torch.no_grad()
def fill(model, seed=0, scale=0.5):
    """An adapter that has learnt something."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in adapter_weights(model).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * scale)


def with_lora(model, settings=SMALL, *, filled=True):
    add_lora(model, settings, seed=1)
    if filled:
        fill(model)
    return model


def log_probs(model, batch):
    sequences, mask, actions = batch
    return action_statistics(model, sequences, mask, actions).log_probs_BA


# Settings


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rank": 0}, "lora.rank must be a whole number, at least 1, not 0"),
        ({"rank": 2.0}, "lora.rank must be a whole number"),
        ({"rank": True}, "lora.rank must be a whole number"),
        ({"alpha": 0}, "lora.alpha must be a number above 0, not 0"),
        ({"alpha": math.inf}, "lora.alpha must be a number above 0"),
        ({"alpha": "32"}, "lora.alpha must be a number above 0, not '32'"),
        ({"rslora": "yes"}, "lora.rslora must be true or false"),
        ({"target_modules": "q_proj"}, r"'all-linear' or a list of names, as \['q_proj'\], not 'q_proj'"),
        ({"target_modules": ()}, "'all-linear' or a list of names"),
        ({"target_modules": ("q_proj", "")}, "'all-linear' or a list of names"),
    ],
)
def test_wrong_settings_are_refused_in_clear_words(wrong, words):
    with pytest.raises(AdapterError, match=words):
        LoraSettings(**wrong)


def test_settings_from_a_file_may_name_modules_in_a_list():
    assert LoraSettings(target_modules=["q_proj"]) == LoraSettings(target_modules=("q_proj",))


def test_the_adapter_is_scaled_by_alpha_over_the_rank_or_its_root():
    assert LoraSettings(rank=16, alpha=8.0).scaling == 0.5
    assert LoraSettings(rank=16, alpha=8.0, rslora=True).scaling == 2.0


# Which layers


@every_shape
def test_all_linear_layers_but_the_head_get_an_adapter(shape, tiny):
    layout = SMALL.layout(tiny(shape, tie_word_embeddings=False))
    names = [layer.name for layer in layout.layers]
    assert {name.rpartition(".")[2] for name in names} == LINEAR[shape]
    assert len(names) == 2 * {"llama": 7, "qwen2": 7, "gpt2": 4}[shape]  # GPT-2 has two c_proj in a block


def test_a_reward_models_head_gets_none(configuration):
    keys = configuration("llama")
    config = AutoConfig.for_model(keys.pop("model_type"), **keys, num_labels=1)
    with torch.random.fork_rng():
        model = AutoModelForSequenceClassification.from_config(config)
    add_lora(model, SMALL, seed=0)
    assert {name.split(".")[0] for name in adapter_weights(model)} == {"model"}
    assert {name.rpartition(".")[2] for name in linear_layers(model)} == LINEAR["llama"] | {"score"}


@pytest.mark.parametrize(
    ("targets", "count"),
    [(("q_proj",), 2), (("self_attn.q_proj", "up_proj"), 4), (("model.layers.1.mlp.up_proj",), 1), (("lm_head",), 1)],
)
def test_layers_are_named_by_the_ends_of_their_names(targets, count, tiny):
    model = tiny()
    settings = LoraSettings(rank=2, target_modules=targets)
    add_lora(model, settings, seed=0)
    adapted = [layer.name for layer in adapter_layout(model).layers]
    assert len(adapted) == count
    assert all(name.endswith(targets) for name in adapted)
    assert settings.layout(model) == adapter_layout(model)


@pytest.mark.parametrize(
    ("shape", "target", "words"),
    [
        ("llama", "q_porj", "LlamaForCausalLM has no linear layer 'q_porj'; did you mean 'q_proj'"),
        ("gpt2", "query", "GPT2LMHeadModel has no linear layer 'query'; it has c_attn, c_fc, c_proj, lm_head"),
        ("llama", "proj", "no linear layer 'proj'"),
        ("llama", "mlp", "no linear layer 'mlp'"),
        ("llama", "embed_tokens", "no linear layer 'embed_tokens'"),
        ("qwen2", "lm_head", "lm_head cannot have an adapter, for its weight is tied: .*embed_tokens and lm_head"),
    ],
)
def test_a_module_that_cannot_have_an_adapter_is_refused_and_the_model_left_alone(shape, target, words, tiny):
    model = tiny(shape)
    with pytest.raises(AdapterError, match=words):
        add_lora(model, LoraSettings(target_modules=("q_proj", target) if shape == "llama" else (target,)), seed=0)
    assert not has_lora(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


# Adding an adapter


@every_shape
def test_a_new_adapter_changes_nothing_but_its_size(shape, tiny):
    model = tiny(shape)
    kind, before = type(model), logits(model)
    add_lora(model, SMALL, seed=0)
    assert type(model) is kind
    assert has_lora(model)
    assert torch.equal(logits(model), before)
    assert adapter_layout(model) == SMALL.layout(tiny(shape))


@every_shape
def test_only_the_adapter_is_trained(shape, tiny):
    model = with_lora(tiny(shape))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(p.numel() for p in trainable) == sum(math.prod(s) for s in adapter_layout(model).shapes().values())
    own = {tensor.data_ptr() for tensor in adapter_weights(model).values()}
    assert {parameter.data_ptr() for parameter in trainable} == own


def test_a_is_drawn_from_the_seed_whatever_the_dtype_and_b_is_zero(configuration):
    def drawn(seed, dtype="float32"):
        model = load_model(configuration(), dtype=dtype)
        add_lora(model, SMALL, seed=seed)
        return adapter_weights(model)

    one, same, other, half = drawn(4), drawn(4), drawn(5), drawn(4, "bfloat16")
    assert weights_digest(one) == weights_digest(same) == weights_digest(half) != weights_digest(other)
    for name, tensor in one.items():
        if ".lora_B." in name:
            assert not tensor.any()
        else:
            bound = 1 / math.sqrt(tensor.shape[1])
            assert 0.5 * bound < tensor.abs().max() <= bound
    assert len({tensor.flatten()[0].item() for name, tensor in one.items() if ".lora_A." in name}) == 14


def test_the_global_generator_neither_decides_nor_changes(configuration):
    digests = set()
    for seed in (7, 8):
        model = load_model(configuration())
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        add_lora(model, SMALL, seed=0)
        assert torch.equal(torch.get_rng_state(), before)
        digests.add(weights_digest(adapter_weights(model)))
    assert len(digests) == 1


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.float32), ("float64", torch.float64)])
def test_the_adapter_is_float32_at_least_and_the_base_keeps_its_dtype(dtype, expected, configuration):
    model = load_model(configuration(), dtype=dtype)
    add_lora(model, SMALL, seed=0)
    assert {tensor.dtype for tensor in adapter_weights(model).values()} == {expected}
    assert {str(tensor.dtype) for tensor in base_weights(model).values()} == {f"torch.{dtype}"}


def test_over_a_base_in_less_an_adapter_is_multiplied_in_that_and_its_gradient_is_float32(configuration, bfloat16):
    model = load_model(configuration(), dtype=bfloat16)
    add_lora(model, SMALL, seed=0)
    seen = set()
    for name, module in model.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_hook(lambda _, inputs, output: seen.update({inputs[0].dtype, output.dtype}))
    model(torch.tensor([[3, 4, 5]])).logits.float().sum().backward()
    assert seen == {torch.bfloat16}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.grad.dtype for parameter in trained} == {torch.float32}


def test_a_second_adapter_is_refused(tiny):
    model = with_lora(tiny())
    before = weights_digest(adapter_weights(model))
    with pytest.raises(AdapterError, match="has an adapter already"):
        add_lora(model, SMALL, seed=0)
    assert weights_digest(adapter_weights(model)) == before


def test_without_peft_the_error_says_what_to_install(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    model = tiny()
    with pytest.raises(ProaError, match=r"LoRA needs the package peft: pip install 'proa\[lora\]'"):
        add_lora(model, SMALL, seed=0)
    assert not has_lora(model)


def test_what_needs_an_adapter_says_so(tiny):
    model = tiny()
    for function in (adapter_weights, adapter_layout, lora_settings, lambda model: adapter_off(model).__enter__()):
        with pytest.raises(AdapterError, match="this model has no adapter: add_lora gives it one"):
            function(model)


def test_the_settings_of_an_adapter_can_be_read_back(tiny):
    for shape in SHAPES:
        model = with_lora(tiny(shape), LoraSettings(rank=2, alpha=0.5, rslora=True))
        read = lora_settings(model)
        assert read == LoraSettings(rank=2, alpha=0.5, rslora=True, target_modules=tuple(sorted(LINEAR[shape])))
        assert read.layout(model) == adapter_layout(model)
    one = ("model.layers.0.self_attn.q_proj",)
    assert lora_settings(with_lora(tiny(), LoraSettings(target_modules=one))).target_modules == one


def test_a_model_with_an_adapter_is_not_saved_as_if_it_were_plain(tiny, tmp_path):
    with pytest.raises(ModelError, match="this model has an adapter: save_adapter saves it"):
        save_model(with_lora(tiny()), None, tmp_path / "model")
    assert not (tmp_path / "model").exists()


# Weights


@every_shape
def test_the_adapters_tensors_have_stable_names_and_are_the_models_own(shape, tiny):
    model = with_lora(tiny(shape), filled=False)
    weights = adapter_weights(model)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == adapter_layout(model).shapes()
    assert not any("default" in name or "base_layer" in name for name in weights)
    assert not any(tensor.requires_grad for tensor in weights.values())
    before = logits(model)
    fill(model)  # writes to what adapter_weights gives
    assert not torch.allclose(logits(model), before)


@every_shape
def test_the_base_has_its_plain_names_its_bits_and_its_order(shape, tiny):
    model = tiny(shape)
    plain = model_weights(model)
    assert list(base_weights(model)) == list(plain)
    pointers, digest = {name: tensor.data_ptr() for name, tensor in plain.items()}, weights_digest(plain)
    with_lora(model)
    base = base_weights(model)
    assert list(base) == list(plain)
    assert {name: tensor.data_ptr() for name, tensor in base.items()} == pointers
    assert weights_digest(base) == digest


def test_what_is_published_is_the_adapter_or_else_everything(tiny):
    model = tiny()
    assert list(as_policy(model).published()) == list(model_weights(model))
    assert as_policy(model).published_base() is None
    assert weights_digest(as_policy(model).whole()) == weights_digest(model_weights(model))
    with_lora(model)
    assert list(as_policy(model).published()) == list(adapter_weights(model))


# Training


@every_shape
def test_ten_steps_change_the_adapter_and_no_bit_of_the_base(shape, tiny, padded):
    model = with_lora(tiny(shape), filled=False)
    batch = padded([(3, 4), (2, 6)])
    base, adapter = weights_digest(base_weights(model)), weights_digest(adapter_weights(model))
    optimizer = Optimizer(model.named_parameters(), OptimizerSettings(learning_rate=0.01), 10)
    losses = []
    for _ in range(10):
        loss = -log_probs(model, batch).sum()
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 1
    assert weights_digest(base_weights(model)) == base
    assert weights_digest(adapter_weights(model)) != adapter


@every_shape
def test_gradients_are_those_that_the_chain_rule_gives_from_the_merged_model(shape, tiny, padded):
    plain = tiny(shape)
    model = with_lora(copy.deepcopy(plain), LoraSettings(rank=3, alpha=5.0, rslora=True))
    batch = padded([(3, 4), (2, 6)])
    log_probs(model, batch).sum().backward()
    for name, weight in model_weights(plain).items():
        weight.copy_(as_policy(model).whole()[name])
    log_probs(plain, batch).sum().backward()
    dense = dict(plain.named_parameters())
    gradients = {name.replace(".default.", "."): p.grad for name, p in model.named_parameters() if p.requires_grad}
    adapter, scaling = adapter_weights(model), 5.0 / math.sqrt(3)
    for layer in adapter_layout(model).layers:
        name_A, name_B = layer.names
        dense_OI = dense[layer.weight_name].grad.T if layer.transposed else dense[layer.weight_name].grad
        expected_B, expected_A = dense_OI @ adapter[name_A].T, adapter[name_B].T @ dense_OI
        torch.testing.assert_close(gradients[name_B], scaling * expected_B, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients[name_A], scaling * expected_A, rtol=1e-12, atol=1e-12)


# The base as the reference


@every_shape
def test_with_the_adapter_off_log_probs_are_the_bases_bit_for_bit(shape, tiny, padded):
    batch = padded([(3, 4), (2, 6)])
    model = tiny(shape, dtype="float32")
    base = log_probs(model, batch).detach()
    with_lora(model)
    trained = log_probs(model, batch).detach()
    assert not torch.allclose(trained, base)
    with torch.no_grad(), adapter_off(model):
        assert torch.equal(log_probs(model, batch), base)
    assert torch.equal(log_probs(model, batch), trained)


def test_the_adapter_comes_back_after_an_error_and_only_with_the_outermost_block(tiny):
    model = with_lora(tiny())
    trained = logits(model)
    with pytest.raises(RuntimeError, match="out of memory"), adapter_off(model):
        base = logits(model)
        raise RuntimeError("out of memory")
    assert torch.equal(logits(model), trained)
    with adapter_off(model):
        with adapter_off(model):
            assert torch.equal(logits(model), base)
        assert torch.equal(logits(model), base)
    assert torch.equal(logits(model), trained)


def test_what_was_trainable_is_so_again_and_what_was_frozen_too(tiny):
    model = with_lora(tiny())
    next(p for name, p in model.named_parameters() if "lora_A" in name).requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with adapter_off(model), adapter_off(model):
        pass
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before


def test_a_reference_pass_between_forward_and_backward_leaves_the_gradient_alone(tiny, padded):
    model = with_lora(tiny())
    batch = padded([(3, 4), (2, 6)])

    def gradients(look_at_reference):
        model.zero_grad(set_to_none=True)
        loss = log_probs(model, batch).sum()
        if look_at_reference:
            with torch.no_grad(), adapter_off(model):
                log_probs(model, batch)
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain, looked = gradients(False), gradients(True)
    assert len(plain) == 28
    assert weights_digest(plain) == weights_digest(looked)


# Merging


def merged_by_hand(weight, A, B, scaling, transposed):
    summed = weight.clone()
    for o in range(B.shape[0]):
        for i in range(A.shape[1]):
            place = (i, o) if transposed else (o, i)
            summed[place] += scaling * sum(B[o, r] * A[r, i] for r in range(A.shape[0]))
    return summed


@pytest.mark.parametrize(
    ("shape", "layer"), [("llama", "model.layers.0.mlp.up_proj"), ("gpt2", "transformer.h.1.attn.c_proj")]
)
def test_a_merged_weight_is_base_plus_scaled_product(shape, layer, tiny):
    model = with_lora(tiny(shape), LoraSettings(rank=2, alpha=3.0))
    base, adapter = base_weights(model), adapter_weights(model)
    A, B = (adapter[f"{layer}.lora_{factor}.weight"].numpy() for factor in "AB")
    expected = merged_by_hand(base[f"{layer}.weight"], A, B, 1.5, transposed=shape == "gpt2")
    merged = AdapterOverBase(base, adapter_layout(model)).merged(adapter)
    torch.testing.assert_close(merged[f"{layer}.weight"], expected, rtol=0, atol=1e-12)


@every_shape
@pytest.mark.parametrize("rslora", [False, True])
def test_a_plain_model_with_merged_weights_computes_what_the_adapter_does(shape, rslora, tiny):
    plain = tiny(shape)
    model = with_lora(copy.deepcopy(plain), LoraSettings(rank=3, alpha=5.0, rslora=rslora))
    merged = AdapterOverBase(base_weights(model), adapter_layout(model)).merged(adapter_weights(model))
    assert merged.keys() == model_weights(plain).keys()
    before = logits(plain)
    for name, weight in model_weights(plain).items():
        weight.copy_(merged[name])
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-12)
    assert not torch.allclose(before, logits(model))


def test_each_push_is_absolute_and_the_base_is_never_touched(tiny):
    model = with_lora(tiny(dtype="float32"))
    base = {name: weight.clone() for name, weight in base_weights(model).items()}
    digest = weights_digest(base)
    over_base = AdapterOverBase(base, adapter_layout(model))
    first = {name: tensor.clone() for name, tensor in adapter_weights(model).items()}
    wanted = weights_digest(over_base.merged(first))
    fill(model, seed=9)
    assert weights_digest(over_base.merged(adapter_weights(model))) != wanted
    assert weights_digest(over_base.merged(first)) == wanted
    assert weights_digest(base) == digest


def test_what_was_merged_is_not_the_bases_memory(tiny):
    model = with_lora(tiny())
    base = base_weights(model)
    merged = AdapterOverBase(base, adapter_layout(model)).merged(adapter_weights(model))
    for layer in adapter_layout(model).layers:
        assert merged[layer.weight_name].data_ptr() != base[layer.weight_name].data_ptr()


def test_a_base_in_bfloat16_is_summed_in_float32_and_rounded_once(configuration):
    model = with_lora(load_model(configuration(), dtype="bfloat16"))
    base, adapter, layout = base_weights(model), adapter_weights(model), adapter_layout(model)
    merged = AdapterOverBase(base, layout).merged(adapter)
    for layer in layout.layers:
        A, B = (adapter[name].double() for name in layer.names)
        exact = base[layer.weight_name].double() + layout.scaling * (B @ A)
        assert merged[layer.weight_name].dtype == torch.bfloat16
        errors = (merged[layer.weight_name].double() - exact).abs()
        assert (errors <= 2**-8 * exact.abs() + 1e-6).all()  # half of bfloat16's last place


def test_a_maker_elsewhere_needs_base_settings_and_adapter_alone(tiny):
    model = with_lora(tiny("gpt2"))
    travelled = pickle.loads(pickle.dumps((SMALL, adapter_layout(model))))
    maker = tiny("gpt2")
    adapter = {name: tensor.clone() for name, tensor in adapter_weights(model).items()}
    expected = weights_digest(as_policy(model).whole())
    for layout in (travelled[0].layout(maker), travelled[1]):
        assert weights_digest(AdapterOverBase(model_weights(maker), layout).merged(adapter)) == expected


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda a: a.pop("model.layers.1.mlp.up_proj.lora_B.weight"),
            "missing: model.layers.1.mlp.up_proj.lora_B.weight",
        ),
        (lambda a: a.update({"lm_head.lora_A.weight": torch.zeros(3, 16)}), "unexpected: lm_head.lora_A.weight"),
        (
            lambda a: a.update({"model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(2, 16)}),
            r"wrong: model.layers.0.mlp.up_proj.lora_A.weight is \(2, 16\) and should be \(3, 16\)",
        ),
        (
            lambda a: a.update({"model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(3, 16).long()}),
            r"wrong: .*lora_A.weight is \(3, 16\) of torch.int64 and should be",
        ),
        (lambda a: a.clear(), "missing: .* and 23 more"),
    ],
    ids=["missing", "unexpected", "misshapen", "integers", "nothing"],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused(spoil, words, tiny):
    model = with_lora(tiny())
    over_base = AdapterOverBase(base_weights(model), adapter_layout(model))
    adapter = adapter_weights(model)
    spoil(adapter)
    with pytest.raises(AdapterError, match=f"not an adapter of this model; nothing was changed. {words}"):
        over_base.merged(adapter)


def test_a_base_that_the_adapter_is_not_for_is_refused(tiny):
    model = with_lora(tiny())
    layout = adapter_layout(model)
    with pytest.raises(AdapterError, match=r"another base: .*gate_proj.weight is \(32, 16\) here and \(24, 16\) there"):
        AdapterOverBase(model_weights(tiny(intermediate_size=32)), layout)
    with pytest.raises(AdapterError, match="another base: this one has no model.layers.1.self_attn.q_proj.weight"):
        AdapterOverBase(model_weights(tiny(num_hidden_layers=1)), layout)
