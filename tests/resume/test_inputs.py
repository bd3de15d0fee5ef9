"""A checkpoint is bound to what its run works on: data, tokenizer, rewards, models, and its configuration."""

import contextlib
import functools
import importlib
import json
import linecache
import os
import shutil
import sys
from datetime import datetime
from decimal import Decimal

import pytest
import torch
from tests.small import MODEL

from proa import Callback
from proa.cli.main import main
from proa.config import load_run_config
from proa.policy.models import load_model, outline_model, save_model
from proa.policy.reward_model import build_reward_model, save_reward_model
from proa.recipes import dpo, grpo, reward_model, sft
from proa.record.checkpoints import CheckpointError
from proa.resume.configuration import config_changes
from proa.resume.inputs import MOST_DIGESTS, ChangedInputsError, Inputs, Rows, model_architecture
from proa.resume.resuming import find_checkpoint
from proa.rewards.identity import identity
from proa.run.replay import replay
from proa.tasks import template_date
from proa.tasks.builtin.characters import tokenizer as characters

COMMON = {"name": "run", "total_steps": 3, "train_batch_size": 4, "checkpoint": {"save_every": 1, "keep": None}}
GRPO = {"sampling": {"group_size": 2, "max_new_tokens": 3}, "reward": {"workers": 0}, "wait_timeout": 60.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a user works: a model with its tokenizer, data, a reward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    save_model(load_model(MODEL), characters(), tmp_path / "model")
    write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{n}>", "answer": str(n)} for n in range(8)])
    pairs = [{"prompt": f"{n}>", "chosen": str(n), "rejected": str(n + 1)} for n in range(8)]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    write_reward(tmp_path, "return len(completion) / 3")
    yield tmp_path
    sys.modules.pop("judge_of_test", None)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_reward(folder, line, comment="", scale="1.0"):
    code = f"SCALE = {scale}\ndef helper(completion):\n    {comment}\n    {line}\n\n"
    code += "def judge(prompts, completions, **columns):\n    return [SCALE * helper(text) for text in completions]\n"
    (folder / "judge_of_test.py").write_text(code)
    sys.modules.pop("judge_of_test", None)
    importlib.invalidate_caches()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)


def started(recipe, folder, **settings):
    """A run that was cut off after its second step."""
    state = recipe(**COMMON | settings, output_dir=folder, callbacks=[StopsAfter(2)])
    assert state.global_step == 2
    header = json.loads((folder / "run" / "run.json").read_text())
    (folder / "run" / "run.json").write_text(json.dumps(header | {"status": "running"}))
    return lambda **more: recipe(**COMMON | settings, output_dir=folder, resume="step_1", **more)


class StopsAfter(Callback):
    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, state, step_idx, batch, metrics):
        if state.global_step == self.steps:
            state.stop_training("enough")


def all_files(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


# Data.

EDITS = {
    "halved": (lambda lines: lines[:4], "the data had 8 rows and has 4"),
    "an answer": (lambda lines: [*lines[:5], lines[5].replace('"5"', '"6"'), *lines[6:]], "row 5 changed"),
    "a prompt": (lambda lines: [lines[0].replace("0>", "9>"), *lines[1:]], "row 0 changed (what the"),
    "another order": (lambda lines: lines[::-1], "row 0 changed"),
}


@pytest.mark.parametrize(
    ("recipe", "data", "settings"),
    [(sft, "rows.jsonl", {}), (grpo, "rows.jsonl", {**GRPO, "reward.functions": ["judge_of_test:judge"]})],
    ids=["sft", "grpo"],
)
def test_edited_data_is_refused_with_the_first_row_that_differs_and_nothing_is_touched(place, recipe, data, settings):
    resume = started(recipe, place, model="model", task=data, **settings)
    lines = (place / data).read_text().splitlines(keepends=True)
    before = all_files(place / "run")
    for name, (edit, words) in EDITS.items():
        (place / data).write_text("".join(edit(lines)))
        with pytest.raises(ChangedInputsError) as caught:
            resume()
        assert words in str(caught.value), name
        assert "Put back what was there" in str(caught.value)
    assert all_files(place / "run") == before
    (place / data).write_text("".join(lines))
    assert resume().global_step == 3


def test_edited_pairs_are_refused(place):
    resume = started(dpo, place, model="model", task="pairs.jsonl")
    text = (place / "pairs.jsonl").read_text()
    (place / "pairs.jsonl").write_text(text.replace('"rejected": "4"', '"rejected": "7"'))
    with pytest.raises(ChangedInputsError, match="row 3 changed"):
        resume()


def test_data_that_is_edited_after_the_start_is_not_taken_for_what_was_trained_on(place):
    rows = place / "rows.jsonl"

    class Edits(Callback):
        def on_train_start(self, state):
            rows.write_text(rows.read_text().replace('"0"', '"1"'))

    state = sft(**COMMON, model="model", task="rows.jsonl", output_dir=place, callbacks=[Edits(), StopsAfter(1)])
    assert state.global_step == 1
    with pytest.raises(ChangedInputsError, match="row 0 changed"):
        sft(**COMMON, model="model", task="rows.jsonl", output_dir=place, resume="step_1")


def test_other_inputs_can_be_allowed_and_are_then_what_the_run_is_bound_to(place, caplog):
    resume = started(sft, place, model="model", task="rows.jsonl")
    (place / "rows.jsonl").write_text((place / "rows.jsonl").read_text().replace('"0"', '"1"'))
    assert resume(allow_changes=True).global_step == 3
    assert "row 0 changed" in caplog.text
    assert "this was allowed" in caplog.text
    found = find_checkpoint(place / "run", "step_3").bound_to[1]
    assert found.differences(found) == []
    sft(**COMMON, model="model", task="rows.jsonl", output_dir=place, resume="step_2")  # written with what is there now


def test_a_replay_on_other_data_says_so(place):
    sft(**COMMON, model="model", task="rows.jsonl", output_dir=place)
    (place / "rows.jsonl").write_text((place / "rows.jsonl").read_text().replace('"0"', '"1"'))
    outcome = replay(place / "run")
    assert outcome.same is False
    assert outcome.as_dict()["difference_expected"]
    assert outcome.other_inputs[0].startswith("row 0 changed")


def test_many_rows_have_few_digests(tmp_path):
    count = 10 * MOST_DIGESTS + 3
    before = Rows.of(range(count), [None] * count, count)
    now = Rows.of([-1 if n == 5000 else n for n in range(count)], [None] * count, count)
    assert len(before.tokens) <= MOST_DIGESTS
    assert before.differences(now) == ["one of the rows 4994 to 5004 changed (what the model reads)"]


# Rewards.


def test_an_edited_reward_is_refused_and_an_edited_comment_is_not(place):
    reward = {**GRPO["reward"], "functions": ["judge_of_test:judge"]}
    resume = started(grpo, place, model="model", task="rows.jsonl", **GRPO | {"reward": reward})
    write_reward(place, "return len(completion) / 3", comment="# longer is better")
    assert resume().global_step == 3
    for line, scale in (("return -len(completion) / 3", "1.0"), ("return len(completion) / 3", "2.0")):
        write_reward(place, line, scale=scale)
        with pytest.raises(ChangedInputsError, match="the reward judge has changed"):
            resume()


def counted(completions, **_):
    counted.calls += 1
    return [1.0] * len(completions)


counted.calls = 0


class Judge:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, completions, **_):
        return [self.weight] * len(completions)


def test_a_reward_is_the_same_as_long_as_it_says_the_same():
    before = identity(counted)
    counted([])
    assert before == identity(counted) != ""
    assert identity(Judge(1.0)) == identity(Judge(1.0)) != identity(Judge(2.0))
    assert identity(lambda x: x + 1).startswith("bytecode")
    assert identity(lambda x: x + 1) != identity(lambda x: x + 2)
    assert identity(len) == ""  # nothing is known, and nobody is refused for it


# Tokenizer and models.


def test_another_tokenizer_architecture_or_reward_model_is_refused(place):
    save_reward_model(build_reward_model(load_model(MODEL), seed=1), characters(), place / "judge")
    settings = {**GRPO, "reward": {"workers": 0, "model": {"path": "judge"}}, "model": "model", "task": "rows.jsonl"}
    resume = started(grpo, place, **settings)
    shutil.copytree(place / "judge", place / "kept")
    shutil.rmtree(place / "judge")
    save_reward_model(build_reward_model(load_model(MODEL), seed=2), characters(), place / "judge")
    with pytest.raises(ChangedInputsError, match="the reward model has other weights"):
        resume()
    shutil.rmtree(place / "judge")
    (place / "kept").rename(place / "judge")

    config = json.loads((place / "model" / "config.json").read_text())
    other = config | {"rms_norm_eps": 0.5}
    (place / "model" / "config.json").write_text(json.dumps(other))
    with pytest.raises(ChangedInputsError, match="configuration: rms_norm_eps was 1e-06 and is 0.5"):
        resume()
    (place / "model" / "config.json").write_text(json.dumps(config))

    (place / "model" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ChangedInputsError, match="the tokenizer has changed"):
        resume()


NESTED = {"model_type": "mpt", "d_model": 8, "n_heads": 2, "n_layers": 1, "vocab_size": 16, "max_seq_len": 24}


def test_a_model_of_parts_is_the_same_in_every_dtype_and_as_an_outline(tmp_path):
    save_model(load_model(NESTED, dtype="bfloat16"), None, tmp_path)
    models = [
        load_model(NESTED, dtype="bfloat16"),
        load_model(tmp_path),
        outline_model(NESTED),
        outline_model(tmp_path),
    ]
    first, *others = [Inputs(architecture=model_architecture(model)) for model in models]
    assert [first.differences(other) for other in others] == [[], [], []]


def test_parts_of_a_configuration_are_compared_key_by_key_also_with_what_an_earlier_version_saved():
    saved = Inputs(architecture={"attn_config": {"dtype": "bfloat16", "alibi": True, "clip_qkv": None}})
    now = Inputs(architecture={"attn_config": {"alibi": False, "clip_qkv": None, "new_in_transformers": 1}})
    assert saved.differences(now) == ["the model's configuration: attn_config.alibi was True and is False"]


def test_another_model_under_a_reward_models_adapter_is_refused(place):
    resume = started(reward_model, place, model="model", task="pairs.jsonl", lora={"rank": 2})
    shutil.rmtree(place / "model")
    save_model(load_model(MODEL, seed=5), characters(), place / "model")
    with pytest.raises(CheckpointError, match="the model is not the one that this run began with"):
        resume()


# The configuration.


def test_an_edited_configuration_is_wrong_use(place, capsys):
    started(sft, place, model="model", task="rows.jsonl")
    path = place / "run" / "config.json"
    config = json.loads(path.read_text())
    edits = {
        "seed was 0 and is 7": {"seed": 7},
        "optimizer.learning_rate was 1e-05 and is 0.1": {"optimizer": config["optimizer"] | {"learning_rate": 0.1}},
    }
    for words, edit in edits.items():
        path.write_text(json.dumps(config | edit))
        before = all_files(place / "run")
        assert main(["resume", str(place / "run"), "--checkpoint", "step_1"]) == 2
        assert words in capsys.readouterr().err
        assert all_files(place / "run") == before


def test_keys_that_a_newer_version_adds_were_at_their_defaults():
    config = load_run_config(**COMMON, model={"config": MODEL}, task="sort_digits", algorithm="sft")
    older = config.model_dump(mode="json")
    del older["record"], older["optimizer"]["warmup_steps"], older["sampling"]
    assert config_changes(older, config, older) == {}


def test_other_tokens_that_end_a_completion_are_refused(place):
    """A model's folder may name more of them than the tokenizer has."""
    reward = {**GRPO["reward"], "functions": ["judge_of_test:judge"]}
    resume = started(grpo, place, model="model", task="rows.jsonl", **GRPO | {"reward": reward})
    settings = place / "model" / "generation_config.json"
    content = json.loads(settings.read_text())
    settings.write_text(json.dumps(content | {"eos_token_id": [1, 5]}))
    with pytest.raises(ChangedInputsError, match=r"what ends a completion was \[.*\] and is \[1, .*5"):
        resume()
    settings.write_text(json.dumps(content))
    assert resume().global_step == 3


# Dates.

DATED = "{{ strftime_now('%d') }}{% for message in messages %}{{ message.content }}{% endfor %}>"


def test_a_template_that_writes_the_date_writes_that_of_the_runs_beginning(place, monkeypatch):
    (place / "model" / "chat_template.jinja").write_text(DATED)
    rows = [{"prompt": [{"role": "user", "content": str(n)}], "answer": str(n)} for n in range(8)]
    write_rows(place / "rows.jsonl", rows)
    reward = {**GRPO["reward"], "functions": ["judge_of_test:judge"]}
    settings = {"model": "model", "task": "rows.jsonl", **GRPO | {"reward": reward}}
    today = [datetime(2031, 5, 17)]
    monkeypatch.setattr("proa.run.start.datetime", type("Clock", (datetime,), {"now": lambda: today[0]}))
    resume = started(grpo, place, **settings)
    whole = grpo(**COMMON | settings | {"name": "whole"}, output_dir=place)
    today[0] = datetime(2031, 5, 18)
    assert resume().global_step == 3
    digests = [json.loads((place / name / "run.json").read_text())["weights_digest"] for name in ("run", "whole")]
    assert digests[0] == digests[1]
    assert whole.global_step == 3
    assert replay(place / "whole").same
    assert template_date.pinned() is None
    with pytest.raises(ChangedInputsError, match="row 0 changed"):  # as it would be without
        monkeypatch.setattr("proa.run.start.template_start", lambda folder: today[0])
        resume()


def test_a_run_of_a_version_that_noted_nothing_goes_on_with_a_warning(place, caplog, monkeypatch):
    monkeypatch.setattr("proa.resume.resuming.Resumption.bound_to", None)
    resume = started(sft, place, model="model", task="rows.jsonl")
    assert resume().global_step == 3
    assert "of a version that did not note what a run works on" in caplog.text


# What only Python has.


def test_columns_of_any_kind_are_bound_by_what_they_hold():
    columns = [
        ({1: "a", "b": 2}, {1: "b", "b": 2}),
        ({(0, 1): "x"}, {(0, 2): "x"}),
        ([{None: 1, "a": {2: 3, "c": 4}}], [{None: 1, "a": {2: 3, "c": 5}}]),
        ({1, 2}, {1, 3}),
        (datetime(2026, 1, 2), datetime(2026, 1, 3)),
        (Decimal("1.5"), Decimal("1.6")),
    ]
    for before, after in columns:
        one, same, other = (Rows.of([(1,)], [{"column": value}], 1) for value in (before, before, after))
        assert one.differences(same) == [], before
        assert one.differences(other) == ["row 0 changed (its columns)"], before


def _times(factor):
    def judge(prompts, completions, **columns):
        return [factor * len(text) for text in completions]

    return judge


def _counting(factor):
    calls = 0

    def judge(prompts, completions, **columns):
        nonlocal calls
        calls += 1
        return [factor * len(text) for text in completions]

    return judge


class Times:
    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    def __call__(self, prompts, completions, **columns):
        self.calls += 1
        return [self.factor * len(text) for text in completions]

    def method(self, prompts, completions, **columns):
        return self(prompts, completions)


def test_what_a_reward_was_made_with_is_a_part_of_it_and_what_it_counts_is_not():
    makers = {
        "a function within a function": _times,
        "one that counts": _counting,
        "an object": Times,
        "a method": lambda factor: Times(factor).method,
        "a partial": lambda factor: functools.partial(_times(1), prompts=factor),
    }
    for name, make in makers.items():
        used = make(1.0)
        with contextlib.suppress(TypeError):
            used([], ["text"])
        assert identity(used) == identity(make(1.0)) != "", name
        assert identity(used) != identity(make(-1.0)), name


def test_a_run_whose_reward_is_an_object_goes_on_with_another_like_it(place):
    started(grpo, place, model="model", task="rows.jsonl", **GRPO | {"reward": inline(Times(1.0))})
    settings = {**COMMON, **GRPO, "model": "model", "task": "rows.jsonl", "output_dir": place, "resume": "step_1"}
    with pytest.raises(ChangedInputsError, match="the reward Times has changed"):
        grpo(**settings | {"reward": inline(Times(2.0))})
    assert grpo(**settings | {"reward": inline(Times(1.0))}).global_step == 3
    assert "0x" not in (place / "run" / "config.json").read_text()


def inline(function):
    return {"workers": 0, "functions": function}


def test_a_reward_is_another_when_a_module_a_base_or_a_constant_that_it_uses_is(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    helper = "def share(text):\n    return len(text) / {by}\n"
    helper += "class Base:\n    def score(self, text):\n        return {by}\n"
    function = "def judge(completions):\n    return [%s for one in completions]\n"
    judges = {
        "from helper_of_test import share\n" + function % "share(one)": "by",
        "import helper_of_test as h\n" + function % "h.share(one)": "by",
        "from helper_of_test import Base\nclass Judge(Base):\n    def __call__(self, completions):\n"
        "        return [self.score(one) for one in completions]\njudge = Judge()\n": "by",
        "WORDS = ['a', {word!r}]\n" + function % "one in WORDS": "word",
        "import re\nFOUND = re.compile({word!r})\n" + function % "bool(FOUND.match(one))": "word",
        "SCALE = {by}\ndef judge(completions, by=SCALE):\n    return [by] * len(completions)\n": "by",
    }
    for code, changed in judges.items():
        found = []
        for by, word in (("1", "b"), ("1", "b"), ("2", "b") if changed == "by" else ("1", "c")):
            for name, text in (("helper", helper), ("judge", code)):
                shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
                (tmp_path / f"{name}_of_test.py").write_text(text.format(by=by, word=word))
                sys.modules.pop(f"{name}_of_test", None)
            importlib.invalidate_caches()
            linecache.clearcache()
            found.append(identity(importlib.import_module("judge_of_test").judge))
        assert found[0] == found[1] != found[2], code
    sys.modules.pop("helper_of_test", None)
    sys.modules.pop("judge_of_test", None)
