"""Runs whose layers are computed in other ways: the same weights, or the same up to rounding."""

import json

import pytest
from safetensors.torch import load_file
from tests.small import MODEL_WITH_END

from proa import recipes
from proa.errors import SettingError

SETTINGS = {
    "task": "sort_digits", "total_steps": 2, "train_batch_size": 8, "optimizer.learning_rate": 1e-3,
    "reward.workers": 0, "sampling.group_size": 4, "sampling.max_new_tokens": 6,
}  # fmt: skip
SUPERVISED = {"task": "sort_digits", "total_steps": 2, "train_batch_size": 8, "optimizer.learning_rate": 1e-3}


def weights(folder, recipe, settings, **model):
    getattr(recipes, recipe)(
        model={"config": MODEL_WITH_END, **model}, output_dir=str(folder.parent), name=folder.name, **settings
    )
    header = json.loads((folder / "run.json").read_text())
    assert header["status"] == "completed"
    return header.get("weights_digest"), folder / "model"


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("grpo", SETTINGS),
        pytest.param("grpo", SETTINGS | {"lora": {"rank": 2}}, marks=pytest.mark.prove),
        pytest.param("ppo", SETTINGS, marks=pytest.mark.prove),
        pytest.param("sft", SUPERVISED, marks=pytest.mark.prove),
        ("sft", SUPERVISED | {"algorithm.params.packing": True}),
    ],
)
def test_checkpointing_changes_no_bit_of_a_run(recipe, settings, tmp_path):
    kept, _ = weights(tmp_path / "kept", recipe, settings)
    twice, _ = weights(tmp_path / "twice", recipe, settings, gradient_checkpointing=True)
    assert kept == twice


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.prove),
        {"optimizer.share_prompts": True},
        pytest.param({"optimizer.token_budget": 40}, marks=pytest.mark.prove),
    ],
)
def test_rows_end_to_end_train_as_padded_ones_do(changes, tmp_path):
    settings = SETTINGS | {"optimizer.learning_rate": 1e-4}
    padded, folder = weights(tmp_path / "padded", "grpo", settings)
    laid, other = weights(tmp_path / "laid", "grpo", settings | changes, attention="segments")
    assert padded != laid  # sums are taken in another order
    first, second = (load_file(one / "model.safetensors") for one in (folder, other))
    for name, weight in first.items():
        # two steps of AdamW move a weight by 2e-4 at the most, wherever rounding sends a gradient near 0
        assert float((weight - second[name]).abs().max()) <= 4e-4, name
    moved = [float((first[name] - second[name]).abs().mean()) for name in first]
    assert max(moved) < 2e-5  # most weights go where they went


def test_a_model_without_layers_to_checkpoint_is_refused_in_words(tmp_path):
    ctrl = {
        "model_type": "ctrl",
        "vocab_size": 16,
        "n_embd": 16,
        "dff": 16,
        "n_layer": 2,
        "n_head": 2,
        "eos_token_id": 1,
    }
    with pytest.raises(SettingError, match=r"leave out model\.gradient_checkpointing"):
        recipes.sft(
            model={"config": ctrl, "gradient_checkpointing": True}, output_dir=str(tmp_path), name="run", **SUPERVISED
        )
    assert not (tmp_path / "run").exists()
