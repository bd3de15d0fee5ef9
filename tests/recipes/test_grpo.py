"""The whole job from a configuration: what it leaves behind, and clear words for likely mistakes."""

import json
import subprocess
import sys

import pytest
from tests.small import MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer

from proa import Callback, MakerCallback, TrainerCallback, TrainingBatch
from proa.cli.main import main
from proa.policy.models import model_weights, weights_digest
from proa.recipes import grpo

SMALL = """\
name: small
total_steps: 3
train_batch_size: 16
makers: 2
sampling: {group_size: 4, max_new_tokens: 7}
model:
  config: SMALL_MODEL
task: {source: sort_digits, count: 64}
reward: {workers: 0}
optimizer: {learning_rate: 3e-3}
eval:
  - {name: sort_digits, count: 16, run_every: 2}
""".replace("SMALL_MODEL", json.dumps(MODEL))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run_json(tmp_path, name="small"):
    return json.loads((tmp_path / "runs" / name / "run.json").read_text())


def test_a_run_leaves_its_record_and_weights_that_load(file, tmp_path):
    state = grpo(file, output_dir=tmp_path / "runs")
    folder = tmp_path / "runs" / "small"
    header = run_json(tmp_path)
    assert state.global_step == 3
    assert (header["status"], header["steps_run"], header["policy_version"]) == ("completed", 3, 3)
    assert header["ledger"]["leased"] == header["ledger"]["trained"] == 48
    assert set(header["evals"]["sort_digits"]) == {"exact", "completion_tokens"}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [0, 1, 2]
    assert [row["step"] for row in rows if "sort_digits.exact" in row] == [-1, 1, 2]
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert weights_digest(model_weights(model)) == header["weights_digest"]
    assert AutoTokenizer.from_pretrained(folder / "model")("594833>")["input_ids"][-1] == 3
    assert json.loads((folder / "config.json").read_text())["makers"] == 2
    predictions = sorted((folder / "evals" / "sort_digits").iterdir())
    assert [file.name for file in predictions] == ["step_0.jsonl", "step_2.jsonl", "step_3.jsonl"]
    assert len(predictions[0].read_text().splitlines()) == 16


def test_the_digest_is_the_same_for_any_number_of_makers_and_another_for_another_seed(file, tmp_path):
    digests = {}
    for name, changes in {"m1": {"makers": 1}, "m3": {"makers": 3}, "s1": {"seed": 1}}.items():
        grpo(file, output_dir=tmp_path / "runs", name=name, **changes)
        digests[name] = run_json(tmp_path, name)["weights_digest"]
    assert digests["m1"] == digests["m3"] != digests["s1"]


def test_callbacks_of_every_kind_are_called_where_they_live(file, tmp_path):
    heard = []

    class Driver(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            heard.append(("driver", step_idx))

    class Trainer(TrainerCallback):
        def on_batch_end(self, metrics, experience):
            heard.append(("trainer", len(experience)))

    class Maker(MakerCallback):
        def on_make_experience_end(self, experience):
            heard.append(("maker", len(experience)))

    grpo(file, output_dir=tmp_path / "runs", callbacks=[Driver(), Trainer(), Maker()])
    assert [entry for entry in heard if entry[0] == "driver"] == [("driver", 0), ("driver", 1), ("driver", 2)]
    assert heard.count(("trainer", 16)) == 3
    assert heard.count(("maker", 4)) == 12


def test_hooks_after_a_step_are_given_the_batch_that_was_trained(file, tmp_path):
    shown, trained = [], []

    class Driver(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            shown.append(batch)

    class Trainer(TrainerCallback):
        def on_batch_end(self, metrics, experience):
            trained.append(experience)

    grpo(file, output_dir=tmp_path / "runs", callbacks=[Driver(), Trainer()])
    assert len(shown) == len(trained) == 3
    for batch, experience in zip(shown, trained, strict=True):
        assert isinstance(batch, TrainingBatch)
        assert batch.data is experience
        assert experience.advantages is not None  # what the step computed is there


def test_a_failed_run_says_so_in_its_record(file, tmp_path):
    class Broken(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            raise ValueError("my bug")

    with pytest.raises(ValueError, match="my bug"):
        grpo(file, output_dir=tmp_path / "runs", callbacks=[Broken()])
    header = run_json(tmp_path)
    assert (header["status"], header["stop_reason"]) == ("failed", "ValueError: my bug")
    assert header["callback_errors"] == {"Broken": 1}
    where = "in callback Broken.on_step_end at 'step_end', 1 steps done"
    assert header["first_callback_errors"] == {"Broken": f"ValueError: my bug ({where})"}
    ledger = header["ledger"]
    assert ledger["leased"] == ledger["trained"] + sum(ledger["dropped"].values())


def test_an_early_stop_is_a_completed_run_with_its_reason(file, tmp_path):
    class Enough(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            state.stop_training("enough")

    grpo(file, output_dir=tmp_path / "runs", callbacks=[Enough()])
    header = run_json(tmp_path)
    assert (header["status"], header["stop_reason"], header["stopped_by"], header["steps_run"]) == (
        "completed", "enough", "Enough.on_step_end", 1,
    )  # fmt: skip


def test_the_command_line_runs_it_and_shows_the_result(file, tmp_path, capsys):
    assert main(["train", str(file), "--output-dir", str(tmp_path / "runs"), "--total_steps", "2"]) == 0
    shown = capsys.readouterr().out
    assert "step 1" in shown
    assert "sort_digits.exact" in shown
    assert "32 leased = 32 trained" in shown


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--total_stepz", "3"], 2, "did you mean 'total_steps'"),
        (["--sampling.group_size", "1"], 2, "group_size must be at least 2"),
        (["--model", "no/such/folder"], 2, "no/such/folder"),
        (["--task.source", "no_such_task"], 2, "no_such_task"),
        (["--algorithm.name", "grop"], 2, "did you mean 'grpo'"),
        (["--sampling.max_new_tokens", "24"], 2, "leaves no room for a prompt"),
        (["--sampling.max_new_tokens", "20"], 2, "7 tokens"),
    ],
)
def test_likely_mistakes_end_with_clear_words_and_the_right_code(file, tmp_path, capsys, flags, code, words):
    assert main(["train", str(file), "--output_dir", str(tmp_path / "runs"), *flags]) == code
    assert words in capsys.readouterr().err


def test_an_empty_dataset_is_refused(file, tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert main(["train", str(file), "--output_dir", str(tmp_path / "runs"), "--task.source", str(empty)]) == 2
    assert "empty" in capsys.readouterr().err


def test_a_used_run_folder_is_refused_and_left_alone(file, tmp_path, capsys):
    grpo(file, output_dir=tmp_path / "runs")
    before = (tmp_path / "runs" / "small" / "run.json").read_text()
    assert main(["train", str(file), "--output_dir", str(tmp_path / "runs")]) == 2
    assert "was already used by a run" in capsys.readouterr().err
    assert (tmp_path / "runs" / "small" / "run.json").read_text() == before


def test_help_for_train_is_instant():
    out = subprocess.run([sys.executable, "-m", "proa", "train", "--help"], capture_output=True, text=True, check=True)
    assert "proa train FILE [--overwrite] [--key value ...]" in out.stdout


def test_an_interrupt_is_recorded_as_such_and_comes_out(file, tmp_path):
    class Interrupt(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grpo(file, output_dir=tmp_path / "runs", callbacks=[Interrupt()])
    header = run_json(tmp_path)
    assert (header["status"], header["stop_reason"], header["steps_run"]) == ("cancelled", "interrupted", 1)


def test_functions_on_makers_moments_are_called_in_the_driver(file, tmp_path):
    from proa import CallbackManager

    manager, heard = CallbackManager(), []
    manager.on("maker.batch_end")(lambda state: heard.append(state.policy_version))
    grpo(file, output_dir=tmp_path / "runs", callbacks=manager)
    assert len(heard) == 12


def test_a_configuration_object_can_be_changed_by_keyword(file, tmp_path):
    from proa.config import load_run_config

    state = grpo(load_run_config(file), output_dir=tmp_path / "runs", total_steps=1)
    assert state.global_step == 1


def raising(prompts, completions, **columns):
    raise ValueError("the judge is ill")


def test_a_reward_that_always_fails_ends_the_run_with_what_it_said(file, tmp_path, capsys):
    flags = [
        "--output_dir",
        str(tmp_path / "runs"),
        "--reward.functions",
        f"[{__name__}:raising]",
        "--total_steps",
        "9",
    ]
    assert main(["train", str(file), *flags]) == 1
    shown = capsys.readouterr().err
    assert "nothing to train on" in shown
    assert "the judge is ill" in shown


def test_a_mistake_that_is_found_before_the_run_leaves_no_folder_behind(file, tmp_path):
    assert main(["train", str(file), "--output_dir", str(tmp_path / "runs"), "--model", "no/such/folder"]) == 2
    assert not (tmp_path / "runs").exists()
