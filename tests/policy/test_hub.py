"""Models and tokenizers by their names on the Hub, from a cache that the tests make: no network."""

import json

import pytest
from tests.small import MODEL_WITH_END

from proa.errors import ProaError
from proa.policy.hub import HubError, local_folder, pinned_name
from proa.policy.models import load_model, model_weights, save_model, weights_digest
from proa.policy.opening import load_tokenizer, open_policy
from proa.recipes import sft
from proa.tasks.builtin.characters import tokenizer

NAME = "mine/tiny-model"
COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the Hub with two revisions of a model, each file a link to its blob."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--mine--tiny-model"
    for folder in ("refs", "blobs"):
        (repository / folder).mkdir(parents=True)
    for seed, (reference, commit) in enumerate(COMMITS.items()):
        (repository / "refs" / reference).write_text(commit)
        snapshot, plain = repository / "snapshots" / commit, tmp_path / f"plain_{reference}"
        snapshot.mkdir(parents=True)
        save_model(load_model(MODEL_WITH_END, seed=seed), tokenizer(), plain)
        for file in plain.iterdir():
            blob = repository / "blobs" / f"{commit[:4]}{file.name}"
            blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(blob)
    return repository


def digest(source):
    return weights_digest(model_weights(load_model(source)))


def test_a_name_of_the_hub_is_the_model_in_the_cache(cache, tmp_path):
    assert digest(NAME) == digest(tmp_path / "plain_main")
    assert load_tokenizer(NAME, trust_remote_code=False).get_vocab() == tokenizer().get_vocab()
    assert open_policy(NAME).has_tokenizer


def test_a_revision_is_chosen_after_an_at_sign(cache, tmp_path):
    assert digest(f"{NAME}@v2") == digest(tmp_path / "plain_v2") != digest(NAME)
    assert digest(f"{NAME}@{COMMITS['v2']}") == digest(f"{NAME}@v2")


def test_a_local_folder_comes_first(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(load_model(MODEL_WITH_END, seed=9), tokenizer(), tmp_path / NAME)
    assert digest(NAME) == digest(tmp_path / NAME) != digest(tmp_path / "plain_main")
    assert pinned_name(NAME) == NAME


def test_what_is_not_there_is_reported_with_its_name(cache):
    for name in ("mine/other", f"{NAME}@v3"):
        with pytest.raises(
            HubError, match=f"there is no folder {name} here; the Hub is not asked, for HF_HUB_OFFLINE is set"
        ):
            load_model(name)
    assert issubclass(HubError, ProaError)


def test_only_weights_configurations_and_tokenizers_are_fetched_and_code_when_it_is_asked_for(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, allow_patterns, **__: asked.append(allow_patterns) or tmp_path
    )
    local_folder(NAME)
    local_folder(NAME, trust_remote_code=True)
    assert not any(pattern in ("*", "*.py", "*.bin", "*.pt") for pattern in asked[0])
    assert set(asked[1]) - set(asked[0]) == {"*.py"}


def test_a_run_keeps_the_commit_that_it_began_with(cache, tmp_path):
    settings = {
        "output_dir": str(tmp_path / "runs"), "name": "run", "model": NAME, "task": [{"prompt": "1>", "answer": "2"}],
        "total_steps": 2, "train_batch_size": 1,
    }  # fmt: skip
    sft(**settings)
    saved = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert saved["model"]["path"] == f"{NAME}@{COMMITS['main']}"
    (cache / "refs" / "main").write_text(COMMITS["v2"])  # somebody pushed
    assert sft(**settings, resume="auto").global_step == 2
    saved = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert saved["model"]["path"] == f"{NAME}@{COMMITS['main']}"


def test_an_adapter_over_a_model_of_the_hub_notes_where_its_base_lies(cache, tmp_path):
    sft(
        output_dir=str(tmp_path / "runs"), name="run", model=NAME, task=[{"prompt": "1>", "answer": "2"}],
        total_steps=1, train_batch_size=1, lora={"rank": 2},
    )  # fmt: skip
    folder = tmp_path / "runs" / "run" / "model"
    noted = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert noted == str(cache / "snapshots" / COMMITS["main"])
    assert digest(folder) != digest(NAME)  # the adapter is merged in
