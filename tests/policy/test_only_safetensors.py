"""Weights come from safetensors alone: whatever else a folder holds or names, nothing is unpickled."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from proa.policy.adapter_folder import load_adapter, save_adapter
from proa.policy.adapter_layout import AdapterError
from proa.policy.lora import LoraSettings, add_lora
from proa.policy.models import ModelError, load_model, model_weights, save_model, weights_digest
from proa.policy.reward_model import build_reward_model, load_reward_model, save_reward_model
from proa.tasks.builtin.characters import tokenizer


class Bomb:
    """Shows that it was unpickled."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


@pytest.fixture(autouse=True)
def nothing_is_unpickled(monkeypatch):
    opened = []
    real = torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **options: (opened.append(args), real(*args, **options))[1])
    monkeypatch.setattr(Bomb, "went_off", False)
    yield
    assert not opened
    assert not Bomb.went_off


@pytest.fixture
def folder(tiny, tmp_path):
    save_model(tiny(dtype="float32"), None, tmp_path / "model")
    return tmp_path / "model"


def pickle_weights(folder, name="pytorch_model.bin", bomb=True):
    torch.save(load_file(folder / "model.safetensors") | ({"bomb": Bomb()} if bomb else {}), folder / name)


def change(path, **entries):
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | entries))


def only_pickled(folder, name="pytorch_model.bin", bomb=True):
    pickle_weights(folder, name, bomb)
    (folder / "model.safetensors").unlink()


def in_shards(folder):
    only_pickled(folder, "pytorch_model-00001-of-00001.bin")
    shard = {"model.embed_tokens.weight": "pytorch_model-00001-of-00001.bin"}
    change(folder / "pytorch_model.bin.index.json", weight_map=shard, metadata={})


def shard_of_an_index(folder):
    names = load_file(folder / "model.safetensors")
    only_pickled(folder, "shard.bin", bomb=False)
    change(folder / "model.safetensors.index.json", weight_map=dict.fromkeys(names, "shard.bin"), metadata={})


def named_by_the_configuration(folder):
    pickle_weights(folder, "adapter_model.bin", bomb=False)
    change(folder / "config.json", transformers_weights="adapter_model.bin")


CASES = {
    "pytorch_model.bin": only_pickled,
    "pytorch_model.bin, plain tensors": lambda folder: only_pickled(folder, bomb=False),
    "pytorch_model-00001-of-00001.bin": in_shards,
    "consolidated.00.pth": lambda folder: only_pickled(folder, "consolidated.00.pth"),
    "shard.bin": shard_of_an_index,
    "adapter_model.bin": named_by_the_configuration,
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_whose_weights_are_pickled_is_refused_with_the_file_and_the_remedy(case, folder):
    CASES[case](folder)
    name = case.partition(",")[0]
    with pytest.raises(ModelError) as refused:
        load_model(folder)
    assert f"has its weights in {name}, which is pickled" in str(refused.value)
    assert "reads safetensors alone" in str(refused.value)
    remedy = f"transformers.AutoModelForCausalLM.from_pretrained('{folder}').save_pretrained(ANOTHER_FOLDER)"
    assert remedy in str(refused.value)


@pytest.mark.parametrize("case", CASES)
def test_a_reward_model_whose_weights_are_pickled_is_refused_too(case, tiny, tmp_path):
    save_reward_model(build_reward_model(tiny(), seed=0), tokenizer(), tmp_path / "model")
    CASES[case](tmp_path / "model")
    with pytest.raises(ModelError, match="which is pickled: .*AutoModelForSequenceClassification"):
        load_reward_model(tmp_path / "model")


def test_weights_of_another_name_are_no_excuse_for_a_pickle(folder, tiny, tmp_path):
    only_pickled(folder, bomb=False)
    (folder / "other.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"no file named model\.safetensors"):
        load_model(folder)
    save_reward_model(build_reward_model(tiny(), seed=0), tokenizer(), tmp_path / "reward")
    only_pickled(tmp_path / "reward", bomb=False)
    (tmp_path / "reward" / "other.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"no file named model\.safetensors"):
        load_reward_model(tmp_path / "reward")


def test_a_pickle_beside_safetensors_is_never_opened(folder):
    whole = weights_digest(model_weights(load_model(folder)))
    pickle_weights(folder)
    torch.save(Bomb(), folder / "training_args.bin")
    assert weights_digest(model_weights(load_model(folder))) == whole


def test_shards_of_safetensors_still_load(folder, tiny):
    whole = load_model(folder)
    shutil.rmtree(folder)
    whole.save_pretrained(folder, max_shard_size="4KB")
    assert (folder / "model.safetensors.index.json").is_file()
    assert weights_digest(model_weights(load_model(folder))) == weights_digest(model_weights(whole))


# -- adapters


@pytest.fixture
def adapter(folder, tmp_path):
    """An adapter folder whose weights are pickled, and its base."""
    model = load_model(folder)
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    save_adapter(model, None, tmp_path / "adapter", base_path="../model")
    torch.save(
        load_file(tmp_path / "adapter" / "adapter_model.safetensors"), tmp_path / "adapter" / "adapter_model.bin"
    )
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    return tmp_path / "adapter"


def test_an_adapter_whose_weights_are_pickled_is_refused(adapter, folder):
    words = (
        r"has its weights in adapter_model\.bin, which is pickled: .*PeftModel\.from_pretrained\(BASE, '.*adapter'\)"
    )
    with pytest.raises(ModelError, match=words):
        load_model(adapter)
    with pytest.raises(AdapterError, match=words):
        load_adapter(load_model(folder), adapter)


def test_a_model_with_an_adapter_in_its_own_folder_is_refused_wherever_it_stands(adapter, folder, tiny, tmp_path):
    both = r"is both a model's and an adapter's folder"
    save_reward_model(build_reward_model(tiny(), seed=0), tokenizer(), tmp_path / "reward")
    for base in (folder, tmp_path / "reward"):
        for name in ("adapter_config.json", "adapter_model.bin"):
            shutil.copy(adapter / name, base / name)
    with pytest.raises(ModelError, match=both):
        load_model(folder)
    with pytest.raises(ModelError, match=both):
        load_reward_model(tmp_path / "reward")
    change(adapter / "adapter_config.json", base_model_name_or_path="../model")
    (adapter / "adapter_model.bin").unlink()
    model = tiny(dtype="float32")
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    save_adapter(model, None, adapter, base_path="../model")
    with pytest.raises(ModelError, match=rf"model {both}"):
        load_model(adapter)
