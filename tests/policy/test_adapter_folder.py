"""Adapter folders: PEFT reads them, training goes on from them, and none is put over a base that it is not for."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from proa.policy import models
from proa.policy.adapter_folder import load_adapter, merge_adapter_folder, point_to_base, save_adapter
from proa.policy.adapter_layout import AdapterError
from proa.policy.lora import LoraSettings, adapter_weights, add_lora, base_weights, has_lora
from proa.policy.lora_policy import as_policy
from proa.policy.models import ModelError, load_model, model_weights, save_model, weights_digest
from proa.tasks.builtin.characters import tokenizer as characters

SHAPES = ["llama", "qwen2", "gpt2"]
every_shape = pytest.mark.parametrize("shape", SHAPES)
SMALL = LoraSettings(rank=3, alpha=6.0)
TOKENS = torch.tensor([[3, 7, 11, 5, 2, 9]])


@torch.no_grad()
def logits(model):
    return model(TOKENS, attention_mask=torch.ones_like(TOKENS)).logits


@torch.no_grad()
def with_lora(model, settings=SMALL):
    add_lora(model, settings, seed=1)
    generator = torch.Generator().manual_seed(2)
    for tensor in adapter_weights(model).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * 0.5)
    return model


@pytest.fixture
def saved(tiny, tmp_path):
    """A model with an adapter, the folder of its base and, beside that, the folder of its adapter."""

    def build(shape="llama", settings=SMALL, *, dtype="float32", tokenizer=None):
        base = tiny(shape, dtype=dtype)
        save_model(base, None, tmp_path / "base")
        model = with_lora(base, settings)
        save_adapter(model, tokenizer, tmp_path / "adapter", base_path="../base")
        return model, tmp_path / "base", tmp_path / "adapter"

    return build


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def digest(weights):
    return weights_digest(weights)


# PEFT and we


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("llama", SMALL),
        ("qwen2", SMALL),
        ("gpt2", SMALL),
        (
            "llama",
            LoraSettings(rank=2, alpha=3.5, rslora=True, target_modules=("q_proj", "model.layers.1.mlp.up_proj")),
        ),
    ],
    ids=[*SHAPES, "few layers, rslora"],
)
def test_peft_loads_the_folder_and_computes_the_same(shape, settings, saved):
    from peft import PeftModel

    model, base, folder = saved(shape, settings)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    assert torch.equal(logits(theirs), logits(model))
    config = theirs.peft_config["default"]
    assert (config.r, config.lora_alpha, config.use_rslora) == (settings.rank, settings.alpha, settings.rslora)


def test_a_folder_that_peft_wrote_is_read(tiny, tmp_path):
    from peft import LoraConfig, get_peft_model

    save_model(tiny(dtype="float32"), None, tmp_path / "base")
    with torch.random.fork_rng():
        config = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.1, init_lora_weights=False, task_type="CAUSAL_LM")
        theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), config).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    change_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="../base")
    torch.testing.assert_close(logits(load_model(tmp_path / "adapter")), logits(theirs), rtol=0, atol=1e-4)
    model = load_model(tmp_path / "base")
    load_adapter(model, tmp_path / "adapter")
    assert torch.equal(logits(model), logits(theirs))


def test_the_same_adapter_gives_the_same_files(saved, tmp_path):
    model, _, folder = saved()
    save_adapter(model, None, tmp_path / "again", base_path="../base")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors", "proa_adapter.json"]
    assert all((folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)
    targets = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    assert targets == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_the_digest_of_the_base_is_noted(saved):
    _, base, folder = saved("qwen2")
    note = json.loads((folder / "proa_adapter.json").read_text())
    assert note == {"base_digest": digest(model_weights(load_model(base))), "base_dtype": "float32"}


def test_an_adapter_is_not_saved_over_a_file_nor_by_a_model_without_one(tiny, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(AdapterError, match="cannot save an adapter in .*taken: it is a file"):
        save_adapter(with_lora(tiny()), None, tmp_path / "taken", base_path=None)
    with pytest.raises(AdapterError, match="this model has no adapter"):
        save_adapter(tiny(), None, tmp_path / "new", base_path=None)
    assert not (tmp_path / "new").exists()


# Training goes on


@every_shape
@pytest.mark.parametrize("begun", [False, True], ids=["plain model", "model with an adapter"])
def test_a_loaded_adapter_is_the_saved_one_bit_for_bit_and_can_be_trained(shape, begun, saved):
    model, base, folder = saved(shape)
    again = load_model(base)
    if begun:
        add_lora(again, SMALL, seed=7)
    load_adapter(again, folder)
    assert digest(adapter_weights(again)) == digest(adapter_weights(model))
    assert torch.equal(logits(again), logits(model))
    trainable = {name for name, parameter in again.named_parameters() if parameter.requires_grad}
    assert trainable == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    again(TOKENS, labels=TOKENS, attention_mask=torch.ones_like(TOKENS)).loss.backward()
    assert all(p.grad is not None for p in again.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LoraSettings(rank=4, alpha=8.0), "has rank 3, and the model's has 4"),
        (LoraSettings(rank=3, alpha=3.0), "is scaled by 2, and the model's by 1: give lora.alpha"),
        (LoraSettings(rank=3, alpha=6.0, rslora=True), "is scaled by 2, and the model's by 3.4"),
        (
            LoraSettings(rank=3, alpha=6.0, target_modules=("q_proj",)),
            "target_modules differ: only the adapter in .* has model.layers.0.mlp.down_proj",
        ),
    ],
)
def test_an_adapter_of_another_kind_than_the_models_is_refused(settings, words, saved):
    _, base, folder = saved()
    model = with_lora(load_model(base), settings)
    before = digest(adapter_weights(model))
    with pytest.raises(AdapterError, match=words):
        load_adapter(model, folder)
    assert digest(adapter_weights(model)) == before


def test_a_model_with_more_adapted_layers_than_the_folder_is_refused(saved):
    _, base, folder = saved(settings=LoraSettings(rank=3, alpha=6.0, target_modules=("q_proj",)))
    with pytest.raises(AdapterError, match="only the adapter of the model has model.layers.0.mlp.down_proj"):
        load_adapter(with_lora(load_model(base)), folder)


# Another base


def test_an_adapter_for_another_base_of_the_same_shape_is_refused_by_its_digest(saved, tiny):
    _, _, folder = saved()
    other = tiny(dtype="float32", seed=1)
    with pytest.raises(
        AdapterError, match="adapter is an adapter for another base: these weights are not those noted$"
    ):
        load_adapter(other, folder)
    assert not has_lora(other)


def test_a_single_bit_makes_another_base(saved):
    _, base, folder = saved()
    again = load_model(base)
    model_weights(again)["model.norm.weight"].view(torch.uint8)[0] ^= 1
    with pytest.raises(AdapterError, match="for another base"):
        load_adapter(again, folder)


@pytest.mark.parametrize("noted", [True, False], ids=["digest noted", "nothing noted"])
@pytest.mark.parametrize(
    ("shape", "change", "words"),
    [
        ("llama", {"num_hidden_layers": 1}, "this model has no linear layer model.layers.1."),
        ("llama", {"intermediate_size": 32}, r"gate_proj.lora_B.weight is \(24, 3\) and should be \(32, 3\)"),
        ("gpt2", {}, "this model has no linear layer model.layers.0."),
    ],
    ids=["fewer layers", "wider", "another kind"],
)
def test_an_adapter_for_a_base_of_another_shape_is_refused(noted, shape, change, words, saved, tiny):
    _, _, folder = saved()
    if not noted:
        (folder / "proa_adapter.json").unlink()
    other = tiny(shape, dtype="float32", **change)
    with pytest.raises(AdapterError, match=f"adapter is an adapter for another base: .*{words}"):
        load_adapter(other, folder)
    assert not has_lora(other)


def test_without_a_note_a_base_of_the_same_shape_is_believed(saved, tiny):
    model, _, folder = saved()
    (folder / "proa_adapter.json").unlink()
    other = tiny(dtype="float32", seed=1)
    load_adapter(other, folder)
    assert digest(adapter_weights(other)) == digest(adapter_weights(model))


def test_the_same_base_in_a_wider_dtype_is_the_same_base_and_a_rounded_one_is_told_apart(saved):
    _, base, folder = saved()
    wider = load_model(base, dtype="float64")
    load_adapter(wider, folder)
    assert has_lora(wider)
    with pytest.raises(AdapterError, match="or it must be loaded in float32 as it was then, not in bfloat16"):
        load_adapter(load_model(base, dtype="bfloat16"), folder)


# A plain model out of an adapter folder


@every_shape
@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_folder_loads_as_a_plain_model_with_the_adapter_merged_in(shape, rslora, saved, monkeypatch):
    model, _, folder = saved(shape, LoraSettings(rank=3, alpha=1.0, rslora=rslora))
    monkeypatch.setitem(sys.modules, "peft", None)  # nobody needs it for that
    plain = load_model(folder)
    assert not has_lora(plain)
    assert digest(model_weights(plain)) == digest(as_policy(model).whole())
    torch.testing.assert_close(logits(plain).log_softmax(-1), logits(model).log_softmax(-1), rtol=0, atol=1e-4)
    assert all(parameter.requires_grad for parameter in plain.parameters())


def test_the_base_may_be_named_by_its_whole_path(saved):
    model, base, folder = saved()
    change_json(folder / "adapter_config.json", base_model_name_or_path=str(base))
    assert digest(model_weights(load_model(folder))) == digest(as_policy(model).whole())


def test_a_merged_model_is_rounded_once_to_the_dtype_asked_for(saved):
    model, base, folder = saved()
    half = load_model(folder, dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    expected = {name: weight.bfloat16() for name, weight in as_policy(model).whole().items()}
    assert digest(model_weights(half)) == digest(expected)
    assert digest(model_weights(load_model(base))) == digest(base_weights(model))


def test_an_adapter_over_bfloat16_keeps_what_it_learnt_when_float32_is_asked_for(saved):
    model, _, folder = saved(dtype="bfloat16")
    wide = model_weights(load_model(folder, dtype="float32"))
    name = "model.layers.0.mlp.up_proj"
    adapter = adapter_weights(model)
    product = 2.0 * adapter[f"{name}.lora_B.weight"] @ adapter[f"{name}.lora_A.weight"]
    expected = base_weights(model)[f"{name}.weight"].float() + product
    torch.testing.assert_close(wide[f"{name}.weight"], expected, rtol=0, atol=1e-5)


def test_the_global_generator_is_left_alone_even_by_a_loader_that_draws_from_it(saved, tmp_path, monkeypatch):
    _, _, folder = saved()
    loaded = models._from_folder

    def drawing(*arguments):
        torch.rand(1)
        return loaded(*arguments)

    monkeypatch.setattr(models, "_from_folder", drawing)
    before = torch.get_rng_state()
    load_model(folder)
    merge_adapter_folder(folder, tmp_path / "merged")
    assert torch.equal(torch.get_rng_state(), before)


def config(**changes):
    return lambda folder: change_json(folder / "adapter_config.json", **changes)


def note(**changes):
    return lambda folder: change_json(folder / "proa_adapter.json", **changes)


forget_base = config(base_model_name_or_path=None)


def add_tensor(folder, name):
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | {name: torch.zeros(2, 2)}, path)


def lose_tensor(folder):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop("base_model.model.model.layers.0.mlp.up_proj.lora_B.weight")
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (forget_base, "adapter_config.json does not say of which base"),
        (config(base_model_name_or_path="Qwen/3"), "names the base 'Qwen/3', and .*adapter/Qwen/3 is not a folder"),
        (config(base_model_name_or_path="."), "is not a model folder: it has no config.json"),
        (config(peft_type="LOHA"), "an adapter of the kind 'LOHA'; Proa reads LoRA"),
        (config(use_dora=True), "more than a plain LoRA adapter: its use_dora is True"),
        (config(modules_to_save=["lm_head"]), "its modules_to_save is"),
        (config(rank_pattern={"q_proj": 1}), "its rank_pattern is"),
        (config(bias="all"), "its bias is 'all'"),
        (config(not_yet_invented={"a": 1}), "its not_yet_invented is"),
        (config(init_lora_weights="pissa"), "'pissa', which changes the base itself"),
        (config(r=0), "r and lora_alpha must be above 0, not 0 and 6"),
        (config(lora_alpha=None), "must be above 0, not 3 and None"),
        (config(r=4), r"lora_A.weight is \(3, 16\) and should be \(4, 16\)"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "adapter_config.json is not JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "adapter_config.json is not a JSON object"),
        (lambda f: (f / "proa_adapter.json").write_text("{"), "proa_adapter.json is not JSON"),
        (note(base_dtype="float12"), "notes a base in 'float12'"),
        (note(base_digest="0"), "an adapter for another base"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "adapter_model.safetensors does not load"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"no weights"), "model.safetensors does not load"),
        (lambda f: add_tensor(f, "base_model.model.lm_head.weight"), "a tensor base_model.model.lm_head.weight, which"),
        (lambda f: add_tensor(f, "model.lm_head.lora_A.weight"), "a tensor model.lm_head.lora_A.weight, which"),
        (lambda f: add_tensor(f, "base_model.model.x.lora_B.weight"), "unexpected: x.lora_B.weight"),
        (lose_tensor, "missing: model.layers.0.mlp.up_proj.lora_B.weight"),
        (lambda f: (f / "config.json").write_text("{}"), "is both a model's and an adapter's folder"),
    ],
)  # fmt: skip
def test_an_adapter_folder_that_cannot_be_trusted_is_refused(spoil, words, saved):
    _, _, folder = saved()
    spoil(folder)
    with pytest.raises(ModelError, match=words):
        load_model(folder)


def test_a_base_that_was_changed_after_the_adapter_was_saved_is_refused(saved, tiny):
    _, base, folder = saved()
    save_model(tiny(dtype="float32", seed=1), None, base)
    with pytest.raises(ModelError, match="an adapter for another base"):
        load_model(folder)


def test_a_folder_without_an_adapter_is_no_adapter_folder(saved):
    model, base, _ = saved()
    with pytest.raises(AdapterError, match="base is not an adapter folder: it has no adapter_config.json"):
        load_adapter(model, base)


# The merged export


@every_shape
def test_the_merged_export_is_a_plain_hugging_face_folder(shape, saved, tmp_path, monkeypatch):
    model, _, folder = saved(shape, tokenizer=characters())
    monkeypatch.setitem(sys.modules, "peft", None)
    merge_adapter_folder(folder, tmp_path / "merged")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert digest(model_weights(theirs)) == digest(as_policy(model).whole())
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == characters().get_vocab()
    assert not (tmp_path / "merged" / "adapter_config.json").exists()


def test_the_merged_export_has_the_bases_tokenizer_where_the_adapter_brings_none(saved, tmp_path):
    _, base, folder = saved()
    characters().save_pretrained(base)
    merge_adapter_folder(folder, tmp_path / "merged")
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == characters().get_vocab()


def test_the_merged_export_has_the_dtype_of_the_base(saved, tmp_path):
    _, _, folder = saved(dtype="bfloat16")
    merge_adapter_folder(folder, tmp_path / "merged")
    assert {t.dtype for t in load_file(tmp_path / "merged" / "model.safetensors").values()} == {torch.bfloat16}


def test_the_base_may_have_moved_but_not_changed(saved, tiny, tmp_path):
    model, base, folder = saved()
    forget_base(folder)
    merge_adapter_folder(folder, tmp_path / "merged", base_folder=base.rename(tmp_path / "moved"))
    assert digest(model_weights(load_model(tmp_path / "merged"))) == digest(as_policy(model).whole())
    save_model(tiny(dtype="float32", seed=1), None, tmp_path / "other")
    with pytest.raises(AdapterError, match="for another base"):
        merge_adapter_folder(folder, tmp_path / "wrong", base_folder=tmp_path / "other")
    assert not (tmp_path / "wrong").exists()


def test_neither_the_adapter_nor_its_base_is_overwritten(saved):
    _, base, folder = saved()
    for taken in (base, folder, Path(folder, "..", "base")):
        with pytest.raises(AdapterError, match="merge into another folder than"):
            merge_adapter_folder(folder, taken)


def test_a_copy_of_links_is_pointed_to_its_base_without_touching_what_it_links_to(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    for folder in (first, copy):
        folder.mkdir()
    written = json.dumps({"base_model_name_or_path": "../../base", "r": 2})
    (first / "adapter_config.json").write_text(written)
    os.link(first / "adapter_config.json", copy / "adapter_config.json")
    point_to_base(copy, "../base")
    assert json.loads((copy / "adapter_config.json").read_text()) == {"base_model_name_or_path": "../base", "r": 2}
    assert (first / "adapter_config.json").read_text() == written
