"""Models of other kinds through whole recipes: they train as each row alone would, or are refused before a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from proa.learning.optimizer import OptimizerSettings
from proa.policy.log_probs import UnsupportedModelError
from proa.policy.models import load_model, model_weights
from proa.recipes import grpo
from proa.supervised.dpo import fit_dpo
from proa.supervised.sft import fit_sft
from proa.tasks import Task, TaskRow
from proa.tasks.builtin.characters import tokenizer
from proa.tasks.preferences import PreferencePair

torch.set_num_threads(1)

RWKV = {
    "model_type": "rwkv", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "attention_hidden_size": 16, "context_length": 64, "eos_token_id": 1,
}  # fmt: skip
XLNET = {"model_type": "xlnet", "vocab_size": 16, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24}
GPT_NEO = {
    "model_type": "gpt_neo", "vocab_size": 16, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 8,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4, "max_position_embeddings": 64,
    },
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4, "image_token_id": 15, "boi_token_id": 14, "eoi_token_id": 13,
}  # fmt: skip
# Without clipping and with steps of one size for each weight, as Adam's first are, a gradient is seen as it is.
PLAIN = OptimizerSettings(learning_rate=1e-3, max_grad_norm=0)
PAIRS = [PreferencePair("2 1", "1 2", "2 1"), PreferencePair("3 2 1", "1 2 3", "3")]


ROWS = Task("ragged", [TaskRow("2 1", {"answer": "1 2"}), TaskRow("3 2 4 1", {"answer": "1"})])


def sft(model: Any, **more: Any) -> None:
    fit_sft(model, tokenizer(), ROWS, optimizer=PLAIN, **{"batch_size": 2, **more})


def dpo(model: Any, **more: Any) -> None:
    fit_dpo(model, tokenizer(), PAIRS, optimizer=PLAIN, **{"batch_size": 2, **more})


@pytest.mark.parametrize("fit", [sft, dpo])
def test_a_model_that_ignores_its_mask_learns_the_same_whatever_is_padded(fit: Callable[..., None]) -> None:
    """All rows of a batch together, with padding if there were any, and each of them alone."""
    together, apart = load_model(RWKV, dtype="float64", seed=1), load_model(RWKV, dtype="float64", seed=1)
    fit(together, steps=1, seed=3)
    fit(apart, steps=1, seed=3, token_budget=1)
    for name, weight in model_weights(together).items():
        # RWKV keeps its state in float32. Adam's first step is the learning rate times a gradient over its size, so
        # a gradient off by sqrt(16) * 2**-24 of its size moves a weight by that much of 1e-3, and one near 0 by all.
        off = (weight - model_weights(apart)[name]).abs()
        assert float((off > 1e-6).double().mean()) < 0.02, name


@pytest.mark.parametrize("fit", [sft, dpo])
def test_a_model_that_looks_ahead_is_refused_before_the_first_step(fit: Callable[..., None]) -> None:
    model = load_model(XLNET, seed=1)
    before = {name: weight.clone() for name, weight in model_weights(model).items()}
    with pytest.raises(UnsupportedModelError, match="XLNetLMHeadModel is not causal"):
        fit(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model_weights(model).items())


def run(model: dict[str, Any], folder: Path, **changes: Any) -> Any:
    small = {
        "total_steps": 1, "train_batch_size": 8, "makers": 1, "sampling": {"group_size": 4, "max_new_tokens": 7},
        "task": {"source": "sort_digits", "count": 8}, "reward": {"workers": 0},
    }  # fmt: skip
    return grpo(output_dir=folder, name="run", model={"config": model}, engine={"kind": "hf"}, **small, **changes)


def test_a_window_that_sharing_prompts_would_break_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="GPTNeoForCausalLM cannot share prompts"):
        run(GPT_NEO, tmp_path, optimizer={"share_prompts": True})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", [RWKV, GEMMA3], ids=["rwkv", "gemma3"])
def test_a_model_without_a_cache_or_with_eyes_goes_through_a_whole_run(model: dict[str, Any], tmp_path: Path) -> None:
    assert run(model, tmp_path).global_step == 1
