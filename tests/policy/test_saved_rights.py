"""Models and adapters of a run are their owner's alone; an export is as the user's umask says."""

import os
import stat

import pytest

from proa.policy.adapter_folder import merge_adapter_folder, save_adapter
from proa.policy.lora import LoraSettings, add_lora
from proa.policy.models import export_model, save_model
from proa.policy.reward_model import build_reward_model, save_reward_model
from proa.tasks.builtin.characters import tokenizer


@pytest.fixture(autouse=True)
def everything_for_everyone():
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def modes(folder):
    """Of the folder, and of what lies in it."""
    return stat.S_IMODE(folder.stat().st_mode), {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def save_base(model, folder):
    save_model(model, tokenizer(), folder)


def save_reward(model, folder):
    save_reward_model(build_reward_model(model, seed=0), tokenizer(), folder)


def save_lora(model, folder):
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    save_adapter(model, tokenizer(), folder, base_path=None)


@pytest.mark.parametrize("save", [save_base, save_reward, save_lora])
def test_what_is_saved_is_its_owners_alone(save, tiny, tmp_path):
    save(tiny(dtype="float32"), tmp_path / "model")
    assert len(list((tmp_path / "model").iterdir())) >= 4
    assert modes(tmp_path / "model") == (0o700, {0o600})


def test_what_is_exported_is_as_the_umask_says(tiny, tmp_path):
    save_model(tiny(dtype="float32"), None, tmp_path / "base")
    model = tiny(dtype="float32")
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    save_adapter(model, tokenizer(), tmp_path / "adapter", base_path="../base")
    merge_adapter_folder(tmp_path / "adapter", tmp_path / "merged")
    export_model(tiny(dtype="float32"), tokenizer(), tmp_path / "exported")
    for folder in (tmp_path / "merged", tmp_path / "exported"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777
        assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o666


def test_a_model_that_is_refused_leaves_no_folder(tiny, tmp_path):
    model = tiny(dtype="float32")
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    with pytest.raises(ValueError, match="has an adapter"):
        save_model(model, None, tmp_path / "model")
    assert not (tmp_path / "model").exists()
