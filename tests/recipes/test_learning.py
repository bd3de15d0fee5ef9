"""Supervised recipes, PPO and LoRA from a configuration: what they leave behind, and words for likely mistakes."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from proa import CallbackManager, MakerCallback
from proa.cli.main import main
from proa.config import ConfigError
from proa.errors import ProaError
from proa.policy.models import load_model, weights_digest, weights_of
from proa.recipes import dpo, grpo, ppo, reward_model, sft
from proa.tasks.builtin.characters import tokenizer

CONFIG = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24, "eos_token_id": 1,
}  # fmt: skip
LORA = {"rank": 2, "alpha": 4.0}
PAIRS = [
    {"prompt": f"{n}>", "chosen": str(9 - n % 3) * 3, "rejected": str(n % 3) * 3} for n in range(1, 10)
]  # fmt: skip
ROWS = [{"prompt": f"{n}>", "answer": str(n) * 3} for n in range(10)]
RECIPES = {"sft": (sft, ROWS), "dpo": (dpo, PAIRS), "reward_model": (reward_model, PAIRS)}


@pytest.fixture
def folder(tmp_path):
    """A model that others start from."""
    torch.set_num_threads(1)
    model = load_model(CONFIG, seed=1)
    model.save_pretrained(tmp_path / "start")
    tokenizer().save_pretrained(tmp_path / "start")
    return tmp_path / "start"


def settings(tmp_path, folder, **more):
    return {
        "model": str(folder), "output_dir": tmp_path / "runs", "total_steps": 3, "train_batch_size": 4,
        "optimizer": {"learning_rate": 1e-2}, **more,
    }  # fmt: skip


def header(tmp_path, name="run"):
    return json.loads((tmp_path / "runs" / name / "run.json").read_text())


def as_file(tmp_path, rows, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_supervised_run_leaves_its_record_and_weights_that_load(name, tmp_path, folder):
    recipe, data = RECIPES[name]
    held_out = {"name": "kept_back", "source": as_file(tmp_path, data), "run_every": 2}
    state = recipe(task=data, eval=[held_out], train_epochs=2, **settings(tmp_path, folder))
    assert state.global_step == 6
    assert header(tmp_path)["status"] == "completed"
    assert {"eval_loss", "loss"} & set(header(tmp_path)["evals"]["kept_back"])
    rows = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(6))
    loads = AutoModelForSequenceClassification if name == "reward_model" else AutoModelForCausalLM
    loaded = loads.from_pretrained(tmp_path / "runs" / "run" / "model")
    assert weights_digest(weights_of(loaded)) == header(tmp_path)["weights_digest"]


@pytest.mark.parametrize("name", [*RECIPES, "grpo", "ppo"])
def test_the_ten_events_reach_a_plain_function_and_stopping_early_works(name, tmp_path, folder):
    recipe, data = RECIPES.get(name, ({"grpo": grpo, "ppo": ppo}.get(name), ROWS))
    rl = {"reward": shortest, "sampling": {"group_size": 2, "max_new_tokens": 4}} if name in ("grpo", "ppo") else {}
    eval_of_rl = {"metric": f"{__name__}:shortest"} if rl else {}
    manager, heard = CallbackManager(), []
    ten = ("train_start", "train_end", "epoch_start", "epoch_end", "step_start", "step_end", "eval_start", "eval_end")
    for event in ten:
        manager.on(event)(lambda state, event=event: heard.append((event, state.global_step)))
    manager.on("step_end")(lambda state: state.stop_training("enough") if state.global_step == 2 else None)
    evals = [{"name": "kept_back", "source": as_file(tmp_path, data), **eval_of_rl}]
    state = recipe(task=data, callbacks=manager, eval=evals, **rl, **settings(tmp_path, folder))
    assert state.stop_reason == "enough"
    assert {event for event, _ in heard} == set(ten)
    assert heard[0][0] == "train_start"
    assert heard[-1] == ("train_end", 2)
    assert header(tmp_path)["stop_reason"] == "enough"


@pytest.mark.parametrize("name", [*RECIPES, "grpo", "ppo"])
def test_an_error_reaches_a_plain_function_too(name, tmp_path, folder):
    recipe, data = RECIPES.get(name, ({"grpo": grpo, "ppo": ppo}.get(name), ROWS))
    rl = {"reward": shortest, "sampling": {"group_size": 2, "max_new_tokens": 4}} if name in ("grpo", "ppo") else {}
    manager, heard = CallbackManager(), []
    manager.on("error")(lambda state: heard.append(state.metrics["error"]))

    @manager.on("step_end")
    def fail(state):
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        recipe(task=data, callbacks=manager, **rl, **settings(tmp_path, folder))
    assert "out of luck" in str(heard[0])
    assert header(tmp_path)["status"] == "failed"


def shortest(completions, **_):
    return [1.0 / (1 + len(completion)) for completion in completions]


@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", "ppo"])
def test_with_lora_the_result_is_an_adapter_over_an_untouched_base_and_exports_merged(name, tmp_path, folder, capsys):
    from peft import PeftModel

    recipe, data = RECIPES.get(name, ({"grpo": grpo, "ppo": ppo}.get(name), ROWS))
    rl = {"reward": shortest, "sampling": {"group_size": 2, "max_new_tokens": 4}} if name in ("grpo", "ppo") else {}
    before = weights_digest(weights_of(load_model(folder)))
    recipe(task=data, lora=LORA, **rl, **settings(tmp_path, folder))
    made = tmp_path / "runs" / "run" / "model"
    assert (made / "adapter_model.safetensors").is_file()
    assert weights_digest(weights_of(load_model(folder))) == before
    assert main(["export", str(tmp_path / "runs" / "run"), str(tmp_path / "merged")]) == 0
    assert "merged into" in capsys.readouterr().out
    tokens = torch.tensor([[5, 6, 7, 3]])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), made).eval()
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(merged(tokens).logits, adapted(tokens).logits)
    assert not torch.allclose(merged(tokens).logits, plain(tokens).logits, atol=1e-4)


def test_a_run_starts_from_an_adapter_folder_and_goes_on_with_an_adapter(tmp_path, folder):
    sft(name="first", task=ROWS, lora=LORA, **settings(tmp_path, folder))
    first = str(tmp_path / "runs" / "first" / "model")
    sft(name="over", task=ROWS, **settings(tmp_path, first))  # merged, then trained whole
    sft(name="on", task=ROWS, lora={**LORA, "path": first}, **settings(tmp_path, folder))
    assert header(tmp_path, "over")["status"] == header(tmp_path, "on")["status"] == "completed"


def test_a_base_that_was_in_no_folder_is_kept_with_the_run(tmp_path):
    changes = settings(tmp_path, "", model={"config": CONFIG}, tokenizer=tokenizer())
    sft(task=ROWS, lora=LORA, **changes)
    (tmp_path / "runs").rename(tmp_path / "elsewhere")  # the folder may move
    assert load_model(tmp_path / "elsewhere" / "run" / "model").config.hidden_size == 16


def test_a_reward_model_with_lora_is_saved_whole(tmp_path, folder):
    reward_model(task=PAIRS, lora=LORA, **settings(tmp_path, folder))
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "runs" / "run" / "model")
    assert not any("lora" in name for name, _ in saved.named_parameters())


def test_makers_score_with_a_reward_model_beside_functions(tmp_path, folder):
    reward_model(name="judge", task=PAIRS, **settings(tmp_path, folder))
    judge = {"path": str(tmp_path / "runs" / "judge" / "model"), "weight": 0.5}
    ppo(
        task=ROWS, reward={"functions": [shortest], "weights": [2.0], "model": judge, "workers": 0},
        critic={"kind": "separate", "path": judge["path"]}, sampling={"group_size": 1, "max_new_tokens": 4},
        **settings(tmp_path, folder),
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        total = 2.0 * row["reward.shortest"] + 0.5 * row["reward.reward_model"]
        assert row["reward"] == pytest.approx(total, rel=1e-5)


def test_a_reward_model_with_another_tokenizer_is_refused(tmp_path, folder):
    reward_model(name="judge", task=PAIRS, **settings(tmp_path, folder))
    judge = tmp_path / "runs" / "judge" / "model"
    words = json.loads((judge / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (judge / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ProaError, match="another tokenizer than the policy"):
        ppo(
            task=ROWS,
            reward={"model": {"path": str(judge)}},
            sampling={"group_size": 1, "max_new_tokens": 4},
            **settings(tmp_path, folder),
        )


def test_an_adapter_for_another_base_is_refused(tmp_path, folder):
    sft(name="first", task=ROWS, lora=LORA, **settings(tmp_path, folder))
    other = load_model(CONFIG, seed=2)
    other.save_pretrained(tmp_path / "other")
    tokenizer().save_pretrained(tmp_path / "other")
    adapter = {**LORA, "path": str(tmp_path / "runs" / "first" / "model")}
    with pytest.raises(ProaError, match="another base"):
        sft(name="second", task=ROWS, lora=adapter, **settings(tmp_path, tmp_path / "other"))
    assert main(["export", adapter["path"], str(tmp_path / "out"), "--base", str(tmp_path / "other")]) == 1


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        (dpo, {"task": [*PAIRS, {"prompt": "1>", "chosen": "2", "rejected": "2"}]}, "chosen and rejected are the same"),
        (dpo, {"task": [{"prompt": "1" * 30 + ">", "chosen": "2", "rejected": "3"}] * 8}, "24"),
        (sft, {"task": [{"prompt": "1" * 30 + ">", "answer": "3"}] * 8}, "24"),
        (sft, {"algorithm": {"params": {"packng": True}}}, "did you mean 'packing'"),
        (sft, {"makers": 2}, "makers has no meaning for algorithm sft"),
        (sft, {"callbacks": [MakerCallback()]}, "sft has no makers"),
        (grpo, {"critic": "separate", "reward": shortest}, "critic has no meaning for algorithm grpo"),
        (ppo, {"critic": {"kind": "shared", "learning_rate": 1.0}, "reward": shortest}, "critic.kind: separate"),
        (grpo, {"sampling": {"group_size": 1}, "reward": shortest}, "at least 2"),
        (sft, {"lora": {"target_modules": ["q_prj"]}}, "did you mean 'q_proj'"),
        (reward_model, {"task": PAIRS, "eval": [{"name": "e", "source": "x.jsonl", "kind": "generate"}]},
         "generates nothing"),
        (dpo, {"task": PAIRS, "algorithm": {"params": {"loss": "sigmod"}}}, "did you mean 'sigmoid'"),
        (ppo, {"reward": {"model": {"path": "nowhere"}}, "sampling": {"group_size": 1, "max_new_tokens": 4}}, "nowhere"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_the_users_words(tmp_path, folder, recipe, changes, words):
    with pytest.raises((ProaError, ConfigError, ValueError), match=words):
        recipe(**{"task": ROWS, **settings(tmp_path, folder), **changes})


def test_a_supervised_file_runs_from_the_command_line(tmp_path, folder, capsys):
    file = tmp_path / "dpo.yaml"
    file.write_text(f"""\
name: from_file
output_dir: {tmp_path / "runs"}
algorithm: {{name: dpo, params: {{beta: 0.2}}}}
model: {folder}
task: {as_file(tmp_path, PAIRS)}
total_steps: 2
train_batch_size: 4
""")
    assert main(["train", str(file), "--optimizer.learning_rate", "1e-3"]) == 0
    out = capsys.readouterr().out
    assert "loss over the run" in out
    assert "the final weights in" in out


def test_objects_can_be_given_in_place_of_names(tmp_path, folder):
    model = load_model(CONFIG, seed=1)
    state = grpo(
        model=model, tokenizer=tokenizer(), task=ROWS, reward=[shortest], output_dir=tmp_path / "runs", total_steps=2,
        train_batch_size=4, sampling={"group_size": 2, "max_new_tokens": 4},
    )  # fmt: skip
    assert state.global_step == 2
    recorded = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert "given in Python" in recorded["model"]["path"]
    assert recorded["reward"]["functions"] == ["shortest (given in Python)"]
