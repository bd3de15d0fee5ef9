"""On a CUDA device too the result does not depend on the number of makers, the size of a lease, or the run."""

import json

import pytest
import torch

from proa.recipes import grpo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]
MODEL = {
    "config": {
        "model_type": "qwen3", "vocab_size": 16, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 64,
    },
    "device": "cuda",
}  # fmt: skip
SETTINGS = {
    "total_steps": 20, "train_batch_size": 64, "sampling": {"group_size": 8, "max_new_tokens": 12}, "max_staleness": 1,
    "task": {"source": "sort_digits", "count": 256}, "reward": {"workers": 0}, "optimizer": {"learning_rate": 1e-3},
}  # fmt: skip


def digest(folder, name, dtype, **changes):
    grpo(**{**SETTINGS, "model": {**MODEL, "dtype": dtype}, "output_dir": folder, "name": name, **changes})
    told = json.loads((folder / name / "run.json").read_text())
    assert told["steps_run"] == SETTINGS["total_steps"]
    return told["weights_digest"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16.0}], ids=["whole", "lora"])
def test_one_and_three_makers_and_other_leases_give_one_digest(tmp_path, dtype, lora):
    one = digest(tmp_path, "one", dtype, makers=1, lora=lora)
    assert digest(tmp_path, "three", dtype, makers=3, lora=lora) == one
    assert digest(tmp_path, "leases", dtype, makers=2, lease_prompts=1, lora=lora) == one
