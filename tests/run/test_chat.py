"""Runs on chat prompts: what is set for the task holds in training, in evals and in the folder that is saved."""

import json

import pytest
from tests.small import DETACHED, MODEL_WITH_END
from transformers import AutoTokenizer

from proa.config import ConfigError, load_run_config
from proa.recipes import grpo
from proa.tasks.builtin.characters import tokenizer

CHAT = (
    "{% for m in messages %}{{ m.content }}+{% endfor %}{% if thinking %}9{% endif %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
ROWS = [{"prompt": f"{number}"} for number in range(10, 18)]
TASK = {"chat_template": CHAT, "chat_template_kwargs": {"thinking": True}, "system_prompt": "7"}


def sees_text(prompts, completions, prompt_ids):
    assert all(isinstance(text, str) for text in [*prompts, *completions])
    return [float(tokenizer().decode(ids) == f"7+{prompt}+9>") for ids, prompt in zip(prompt_ids, prompts, strict=True)]


def test_prompts_of_training_and_of_evals_are_templated_and_rewards_see_what_the_task_has(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings = DETACHED | {
        "model": {"config": MODEL_WITH_END},
        "total_steps": 1,
        "output_dir": tmp_path,
        "name": "small",
    }
    settings |= {"task": {"source": str(file), **TASK}, "eval": [{"name": "held", "source": ROWS, "count": 4}]}
    grpo(**settings | {"reward": {"functions": sees_text, "workers": 0}}, tokenizer=tokenizer())
    rows = [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows if "loss" in row] == [1.0]
    assert json.loads((tmp_path / "small" / "run.json").read_text())["evals"]["held"]["sees_text"] == 1.0
    saved = AutoTokenizer.from_pretrained(tmp_path / "small" / "model")
    assert saved.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False) == "1+9"


def test_a_system_prompt_is_refused_where_it_would_not_be_learned_with():
    common = {"total_steps": 1, "train_batch_size": 8, "model": {"config": MODEL_WITH_END}}
    task = {"source": "sort_digits", "system_prompt": "7"}
    with pytest.raises(ConfigError, match=r"task.system_prompt does not apply to algorithm sft"):
        load_run_config(None, algorithm="sft", task=task, **common)
    with pytest.raises(ConfigError, match=r"warm_start learns prompts as the data has them"):
        load_run_config(None, task=task, warm_start={"steps": 1}, sampling={"group_size": 2}, **common)
