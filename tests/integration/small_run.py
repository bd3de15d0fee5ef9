"""The run that these tests make, small enough to be over in a second, and what its folder says."""

import json

from proa.recipes import grpo

SMALL = {
    "total_steps": 4, "train_batch_size": 8, "sampling": {"group_size": 2, "max_new_tokens": 7},
    "model": {"config": {
        "model_type": "llama", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
    }},
    "task": {"source": "sort_digits", "count": 64}, "reward": {"workers": 0}, "optimizer": {"learning_rate": 3e-3},
    "wait_timeout": 60.0,
}  # fmt: skip


def header(tmp_path, name="run"):
    return json.loads((tmp_path / name / "run.json").read_text())


def digest(tmp_path, name, recipe=grpo, **changes):
    """Of the weights after a run."""
    recipe(**{**SMALL, "output_dir": tmp_path, "name": name, **changes})
    return header(tmp_path, name)["weights_digest"]
