"""A model's folder names only files that lie in it; what it names elsewhere is refused before anything is read."""

import json
import shutil

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from proa.policy.models import ModelError, check_tokenizer_files, load_model
from proa.policy.reward_model import load_reward_model
from proa.policy.saved_adapter import AdapterError, read_adapter

TINY = LlamaConfig(
    vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=1,
    pad_token_id=0,
)  # fmt: skip
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    LlamaForCausalLM(TINY).save_pretrained(folder, max_shard_size="1KB")
    assert (folder / INDEX).is_file()
    return folder


@pytest.fixture
def folder(sharded, tmp_path):
    shutil.copytree(sharded, tmp_path / "model")
    return tmp_path / "model"


def change(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_text()) | keys) if path.is_file() else json.dumps(keys))


def rename_first_shard(folder, name):
    """Have the index name another file instead of the first shard."""
    index = json.loads((folder / INDEX).read_text())
    first = next(iter(index["weight_map"].values()))
    index["weight_map"] = {key: name if file == first else file for key, file in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(index))
    return first


def test_an_index_that_names_files_outside_its_folder_is_refused(folder, tmp_path):
    first = rename_first_shard(folder, "placeholder")
    shutil.copy(folder / first, tmp_path / "outside.safetensors")  # whoever followed it would find the weights
    (folder / "inside").mkdir()
    shutil.copy(folder / first, folder / "inside" / first)
    before = "placeholder"
    for name in (
        "../outside.safetensors",
        str(tmp_path / "outside.safetensors"),
        f"inside/../{first}",
        f"inside/{first}",
    ):
        text = (folder / INDEX).read_text().replace(json.dumps(before), json.dumps(name))
        (folder / INDEX).write_text(text)
        before = name
        with pytest.raises(ModelError, match=r"index\.json names .*, which is not the name of a file in it"):
            load_model(folder)


def test_weights_that_are_links_out_of_the_folder_are_refused(folder, tmp_path):
    shard = next(iter(sorted(folder.glob("*.safetensors"))))
    shutil.move(shard, tmp_path / "outside.safetensors")
    shard.symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(ModelError, match=r"is a link to .*outside\.safetensors, which lies outside it"):
        load_model(folder)


def test_links_of_the_hubs_cache_and_links_within_the_folder_are_followed(sharded, tmp_path):
    hub = tmp_path / "hub" / "models--tiny"
    snapshot = hub / "snapshots" / "abc"
    (hub / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(sharded.iterdir())):
        shutil.copy(path, hub / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert load_model(snapshot).config.hidden_size == 8
    (tmp_path / "main").symlink_to(snapshot)
    assert load_model(tmp_path / "main").config.hidden_size == 8


def test_every_other_file_that_a_folders_json_names_must_lie_in_it(folder):
    for name, keys in {
        "config.json": {"transformers_weights": "../outside.safetensors"},
        "tokenizer_config.json": {"fast_tokenizer_files": ["../tokenizer.4.0.0.json"]},
    }.items():
        before = (folder / name).read_text() if (folder / name).is_file() else "{}"
        change(folder / name, **keys)
        with pytest.raises(ModelError, match="names '../.*', which is not the name of a file in it"):
            load_model(folder)
        (folder / name).write_text(before)
    change(folder / "config.json", configuration_files=["../config.4.0.0.json"])
    with pytest.raises(ModelError, match=r"config\.json names '\.\./config"):
        check_tokenizer_files(folder)


def test_a_reward_models_index_is_checked_too(tmp_path):
    LlamaForSequenceClassification(TINY).save_pretrained(tmp_path, max_shard_size="1KB")
    rename_first_shard(tmp_path, "/etc/passwd.safetensors")
    with pytest.raises(ModelError, match="names '/etc/passwd.safetensors'"):
        load_reward_model(tmp_path)


def test_json_that_is_nested_too_deep_or_of_another_kind_is_a_sentence(folder, tmp_path):
    deep = '{"a":' + "[" * 200_000 + "]" * 200_000 + "}"
    for text in (deep, '{"vocab_size": ' + "9" * 5000 + "}", "[]", "null", "", "\0"):
        (folder / "config.json").write_text(text)
        with pytest.raises(ModelError, match="does not load as a causal language model"):
            load_model(folder)
        adapter = tmp_path / "adapter"
        adapter.mkdir(exist_ok=True)
        (adapter / "adapter_config.json").write_text(text)
        with pytest.raises(AdapterError, match="is not (a )?JSON"):
            read_adapter(adapter)


def test_an_adapters_weights_and_texts_are_its_own(tmp_path):
    (tmp_path / "adapter").mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "outside.safetensors").touch()
    (tmp_path / "adapter" / "adapter_model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(AdapterError, match="is a link to .*, which lies outside it"):
        read_adapter(tmp_path / "adapter")
