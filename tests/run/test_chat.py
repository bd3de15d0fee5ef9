"""Runs on chat prompts: what is set for the task holds in training, in evals and in the folder that is saved."""

import json

import pytest
from tests.small import DETACHED, MODEL_WITH_END
from transformers import AutoTokenizer

from proa.config import ConfigError, load_run_config
from proa.recipes import grpo
from proa.tasks import Task, TaskRow
from proa.tasks.builtin.characters import tokenizer
from proa.tasks.chat import warn_of_missing_turn, with_system_prompt, with_template

CHAT = (
    "{% for m in messages %}{{ m.content }}+{% endfor %}{% if thinking %}9{% endif %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
ROWS = [{"prompt": f"{number}"} for number in range(10, 18)]
TASK = {"chat_template": CHAT, "chat_template_kwargs": {"thinking": True}, "system_prompt": "7"}


def sees_text(prompts, completions, prompt_ids):
    assert all(isinstance(text, str) for text in [*prompts, *completions])
    return [float(tokenizer().decode(ids) == f"7+{prompt}+9>") for ids, prompt in zip(prompt_ids, prompts, strict=True)]


def write_rows(folder):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def test_prompts_of_training_and_of_evals_are_templated_and_rewards_see_what_the_task_has(tmp_path):
    file = write_rows(tmp_path)
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


def rollouts(folder):
    (file,) = (folder / "rollouts").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("runtime", ["local", pytest.param("ray", marks=pytest.mark.prove)])
def test_a_conversation_is_recorded_and_shown_as_the_model_saw_it(tmp_path, capsys, runtime):
    settings = DETACHED | {"model": {"config": MODEL_WITH_END}, "total_steps": 1, "output_dir": tmp_path, "name": "run"}
    task = {**TASK, "chat_template": CHAT.replace("{{ m.content }}+", "{{ m.content }}<unk>")}
    settings |= {"task": {"source": str(write_rows(tmp_path)), **task}, "runtime": runtime}
    grpo(**settings | {"reward": {"functions": sees_text, "workers": 0}}, tokenizer=tokenizer())
    kept = rollouts(tmp_path / "run")
    for row in kept:
        number = row["messages"][1]["content"]
        assert row["messages"] == [{"role": "system", "content": "7"}, {"role": "user", "content": number}]
        assert row["rendered"] == f"7<unk>{number}<unk>9>"  # special tokens are seen
        assert row["prompt"] == f"7{number}9>"
    number = kept[0]["messages"][1]["content"]
    shown = capsys.readouterr().out.splitlines()
    first = next(place for place, line in enumerate(shown) if line.startswith("a sample of step 1"))
    assert shown[first + 1 : first + 4] == [
        "  system     7", f"  user       {number}", f"  template   7<unk>{number}<unk>9>",
    ]  # fmt: skip
    assert shown[first + 4].startswith("  assistant  ")


def test_a_prompt_that_is_text_has_no_messages(tmp_path):
    settings = DETACHED | {"model": {"config": MODEL_WITH_END}, "total_steps": 1, "output_dir": tmp_path, "name": "run"}
    grpo(**settings, progress=False)
    assert not any("messages" in row or "rendered" in row for row in rollouts(tmp_path / "run"))


@pytest.mark.parametrize(("template", "said"), [(CHAT, False), (CHAT.replace(">", ""), True)])
def test_a_template_that_does_not_begin_the_assistants_turn_is_warned_of(template, said, caplog):
    task = with_system_prompt(Task("digits", [TaskRow("12")]), "7")
    warn_of_missing_turn(task, with_template(tokenizer(), template, {}))
    assert ("does not begin the assistant's turn" in caplog.text) is said


@pytest.mark.parametrize("prompt", ["12", [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]])
def test_text_and_turns_that_are_continued_need_no_beginning(prompt, caplog):
    warn_of_missing_turn(Task("digits", [TaskRow(prompt)]), with_template(tokenizer(), CHAT.replace(">", ""), {}))
    assert not caplog.text
