"""Models: the same for the same seed, saved and loaded without a bit lost, and refused in clear words."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from proa.policy.models import ModelError, load_model, model_weights, outline_model, save_model, weights_digest


def digest(model):
    return weights_digest(model_weights(model))


def test_a_new_model_has_the_same_weights_in_every_dtype_up_to_rounding(configuration):
    exact = load_model(configuration(), seed=3)
    half = load_model(configuration(), seed=3, dtype="bfloat16")
    assert half.dtype == half.config.dtype == torch.bfloat16
    for name, weight in model_weights(exact).items():
        assert torch.equal(model_weights(half)[name], weight.to(torch.bfloat16))
    turns = dict(half.named_buffers())["model.rotary_emb.inv_freq"]
    assert torch.equal(turns, dict(exact.named_buffers())["model.rotary_emb.inv_freq"])  # positions are not rounded


def test_a_model_is_the_same_for_the_same_seed_and_another_for_another(configuration):
    models = [load_model(configuration(), seed=seed) for seed in (3, 3, 4)]
    assert digest(models[0]) == digest(models[1]) != digest(models[2])


def test_models_made_in_several_threads_do_not_mix_their_random_numbers_nor_dtypes(configuration):
    def made(which):
        model = load_model(configuration(num_hidden_layers=8), seed=which, dtype=("float32", "float64")[which % 2])
        return model.dtype, digest(model)

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(made, range(8)))
    assert together == [made(which) for which in range(8)]


def test_the_callers_random_numbers_do_not_decide_over_the_weights_nor_change(configuration):
    torch.manual_seed(5)
    first, before = digest(load_model(configuration())), torch.get_rng_state()
    torch.rand(1)
    assert digest(load_model(configuration())) == first
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_loading_a_folder_leaves_the_global_generator_untouched(configuration, tmp_path):
    save_model(load_model(configuration()), None, tmp_path)
    before = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_configuration_given_is_not_changed(configuration):
    given = configuration("gpt2", attn_pdrop=0.5)
    before = dict(given)
    load_model(given)
    assert given == before


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_weights_have_the_dtype_asked_for_and_rotary_frequencies_stay_float32(dtype, configuration):
    model = load_model(configuration(), dtype=dtype)
    assert {str(weight.dtype) for weight in model_weights(model).values()} == {f"torch.{dtype}"}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


@pytest.mark.parametrize("from_folder", [False, True])
def test_nothing_in_a_model_is_random(from_folder, configuration, tmp_path):
    source = configuration("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    if from_folder:
        save_model(load_model(source), None, tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(saved | {"attn_pdrop": 0.5, "embd_pdrop": 0.5}))
        source = tmp_path
    model = load_model(source)
    assert not model.training
    tokens = torch.arange(8)[None]
    still = model(tokens).logits
    assert torch.equal(model.train()(tokens).logits, still)


# Weights and their digest


@pytest.mark.parametrize("shape", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_named_as_in_the_saved_folder_and_tied_ones_come_once(shape, tied, configuration, tmp_path):
    from safetensors.torch import load_file

    model = load_model(configuration(shape, tie_word_embeddings=tied))
    save_model(model, None, tmp_path)
    weights, saved = model_weights(model), load_file(tmp_path / "model.safetensors")
    assert weights.keys() == saved.keys()
    assert ("lm_head.weight" in weights) != tied
    assert weights_digest(weights) == weights_digest(saved)


def test_weights_are_the_models_own(configuration):
    model = load_model(configuration())
    weights = model_weights(model)
    weights["model.norm.weight"].fill_(7.0)
    assert model.model.norm.weight.tolist() == [7.0] * 16
    assert not weights["model.norm.weight"].requires_grad


def test_the_digest_does_not_depend_on_the_order_nor_on_strides():
    a, b = torch.randn(3, 4), torch.randn(2)
    assert weights_digest({"a": a, "b": b}) == weights_digest({"b": b, "a": a.T.contiguous().T})


def test_any_single_bit_changes_the_digest():
    tensor = torch.randn(3)
    digests = {weights_digest({"a": tensor})}
    for bit in range(3 * 32):
        flipped = tensor.clone()
        flipped.view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        digests.add(weights_digest({"a": flipped}))
    assert len(digests) == 1 + 3 * 32


def test_name_shape_and_dtype_change_the_digest_although_the_bytes_are_the_same():
    zeros = torch.zeros(4)
    same_bytes = [{"b": zeros}, {"a": zeros.view(2, 2)}, {"a": zeros.int()}, {"a": zeros[:2], "aa": zeros[2:]}, {}]
    assert len({weights_digest(weights) for weights in [{"a": zeros}, *same_bytes]}) == 6


def test_scalars_empty_tensors_and_bfloat16_have_digests():
    weights = {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "half": torch.ones(2, dtype=torch.bfloat16)}
    assert weights_digest(weights) != weights_digest({**weights, "scalar": torch.tensor(1.25)})


# Saving and loading


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "gpt2"])
def test_the_saved_folder_is_plain_hugging_face_and_loads_bit_for_bit(shape, configuration, tmp_path):
    model = load_model(configuration(shape), seed=9)
    save_model(model, None, tmp_path / "new" / "folder")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "folder", local_files_only=True)
    assert digest(theirs) == digest(load_model(tmp_path / "new" / "folder")) == digest(model)
    assert (tmp_path / "new" / "folder" / "model.safetensors").is_file()


def test_the_tokenizer_is_saved_beside_the_model(configuration, tmp_path):
    class Tokenizer:
        def save_pretrained(self, save_directory):
            Path(save_directory, "tokenizer.json").write_text("{}")

    save_model(load_model(configuration()), Tokenizer(), tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()


def test_a_model_is_not_saved_over_a_file(configuration, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ModelError, match="cannot save a model in .*taken: it is a file"):
        save_model(load_model(configuration()), None, tmp_path / "taken")


# Words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "lama"}, "no causal language model of model_type 'lama'; did you mean 'llama'"),
        ({"model_type": "vit"}, "no causal language model of model_type 'vit'"),
        ({"model_type": None}, "has no model_type; write for example"),
        ({"hiden_size": 16}, "a llama configuration has no key 'hiden_size'; did you mean 'hidden_size'"),
        ({"zebra": 16}, "a llama configuration has no key 'zebra'; leave it out"),
        ({"hidden_size": "big"}, "no llama model has this configuration: .*hidden_size"),
        ({"hidden_size": 15}, "no llama model has this configuration: .*multiple of the number of attention heads"),
    ],
)
def test_a_bad_configuration_is_refused_in_clear_words(change, words, configuration):
    with pytest.raises(ModelError, match=r"(?s)" + words):
        load_model(configuration(**change))


def test_a_suggestion_may_be_another_name_that_transformers_takes(configuration):
    with pytest.raises(ModelError, match="a gpt2 configuration has no key 'hiden_size'; did you mean 'hidden_size'"):
        load_model(configuration("gpt2", hiden_size=16))


def test_other_names_that_transformers_takes_are_no_unknown_keys(configuration):
    model = load_model(configuration("gpt2", n_layer=1, hidden_size=16))
    assert model.config.n_embd == 16
    assert load_model(configuration(rope_theta=5e5, torch_dtype="float64", attn_implementation="eager")).dtype


def test_a_dtype_that_does_not_exist_is_refused(configuration):
    with pytest.raises(ModelError, match="no dtype 'float23'; one of float32, .*; did you mean 'float32'"):
        load_model(configuration(), dtype="float23")


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no model folder .*nowhere: give the path of a Hugging Face folder"):
        load_model(tmp_path / "nowhere")


def test_a_folder_without_configuration_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"is not a model folder: it has no config\.json"):
        load_model(tmp_path)


def rewrite_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"no weights"),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text("{}"),
        lambda folder: rewrite_config(folder, model_type="lama"),
        lambda folder: rewrite_config(folder, vocab_size=99),
        lambda folder: rewrite_config(folder, hidden_size="big"),
    ],
    ids=["no weights", "torn weights", "torn configuration", "no type", "unknown type", "other size", "bad value"],
)
def test_a_folder_that_does_not_load_is_refused(spoil, configuration, tmp_path):
    save_model(load_model(configuration()), None, tmp_path)
    spoil(tmp_path)
    with pytest.raises(ModelError, match="does not load as a causal language model: .*"):
        load_model(tmp_path)


def test_a_folder_that_lacks_some_weights_is_refused_instead_of_drawn_at_random(configuration, tmp_path):
    load_model(configuration()).model.save_pretrained(tmp_path)  # the body without the head
    with pytest.raises(ModelError, match="lacks 1 of the model's weights, lm_head.weight the first"):
        load_model(tmp_path)


MOE = {
    "model_type": "qwen3_moe", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 2, "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


def test_keys_that_only_the_models_code_reads_are_taken_and_have_their_effect():
    model = load_model({**MOE, "head_dim": 6, "torch_dtype": "bfloat16", "eos_token_id": 2})
    assert model.model.layers[0].self_attn.q_proj.out_features == 2 * 6
    model = load_model({**GEMMA3, "sliding_window_pattern": 2, "cache_implementation": "hybrid"})
    assert model.config.layer_types == ["sliding_attention", "full_attention"] * 2


def test_all_unknown_keys_are_named_at_once():
    with pytest.raises(ModelError, match="a qwen3_moe configuration has no keys 'ep_size', 'zebra'; leave them out"):
        load_model({**MOE, "ep_size": 1, "zebra": 2})


def test_an_unknown_key_of_a_part_is_named_with_its_part():
    inner = {key: value for key, value in GEMMA3.items() if key != "model_type"}
    match = r"no key 'text_config\.hiden_size'; did you mean 'hidden_size'"
    with pytest.raises(ModelError, match=match):
        load_model({"model_type": "gemma3", "text_config": {**inner, "hiden_size": 16}})


def test_a_configuration_that_transformers_fails_on_is_refused_in_words():
    with pytest.raises(ModelError, match="no dbrx model has this configuration: AttributeError: .*rope_theta"):
        load_model({"model_type": "dbrx", "d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": 23})


def test_dropout_of_layers_that_have_their_own_configuration_is_removed():
    attention = {"attn_pdrop": 1}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": 23, "max_seq_len": 16}
    assert load_model({"model_type": "mpt", **sizes, "attn_config": attention}).config.attn_config.attn_pdrop == 0


def test_evaluation_does_not_rescale_the_weights_of_rwkv_in_place():
    sizes = {"vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 8, "context_length": 16}
    model = load_model({"model_type": "rwkv", **sizes}, seed=1)
    before = weights_digest(model_weights(model))
    with torch.no_grad():
        model(input_ids=torch.tensor([[3, 4, 5]]))
    assert weights_digest(model_weights(model)) == before


# The outline of a model: what can be checked without its weights.


def shapes(model):
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


@pytest.mark.parametrize("shape", ["llama", "gpt2", "qwen2"])
def test_an_outline_has_the_models_names_and_shapes_and_no_weights(shape, configuration, tmp_path):
    model = load_model(configuration(shape))
    save_model(model, None, tmp_path)
    for outline in (outline_model(configuration(shape)), outline_model(tmp_path)):
        assert shapes(outline) == shapes(model)
        assert {parameter.device.type for parameter in outline.parameters()} == {"meta"}
        assert outline.config.to_dict().keys() >= model.config.to_dict().keys() - {"_name_or_path", "dtype"}
        assert outline.generation_config.eos_token_id == model.generation_config.eos_token_id


def test_an_outline_refuses_what_the_model_would(configuration, tmp_path):
    with pytest.raises(ModelError, match="no model folder"):
        outline_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="did you mean 'hidden_size'"):
        outline_model({**configuration("llama"), "hiden_size": 8})
    with pytest.raises(ModelError, match="no dtype 'bflota16'.*did you mean 'bfloat16'"):
        outline_model(configuration("llama"), dtype="bflota16")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="which is pickled"):
        outline_model(tmp_path)


def test_an_outline_has_the_dtype_of_the_model(configuration, tmp_path):
    save_model(load_model(configuration("llama")), None, tmp_path)
    for source in (configuration("llama"), tmp_path):
        assert outline_model(source, dtype="bfloat16").dtype == load_model(source, dtype="bfloat16").dtype
