"""Supervised recipes, PPO and LoRA from a configuration: what they leave behind, and words for likely mistakes."""

import json

import pytest
import torch
from tests.small import MODEL_WITH_END as CONFIG
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from proa import CallbackManager, MakerCallback
from proa.cli.main import main
from proa.errors import ProaError
from proa.policy.models import load_model, model_weights, weights_digest
from proa.recipes import dpo, grpo, ppo, reward_model, sft
from proa.tasks.builtin.characters import tokenizer

LORA = {"rank": 2, "alpha": 4.0}
PAIRS = [
    {"prompt": f"{n}>", "chosen": str(9 - n % 3) * 3, "rejected": str(n % 3) * 3} for n in range(1, 10)
]  # fmt: skip
ROWS = [{"prompt": f"{n}>", "answer": str(n) * 3} for n in range(10)]
SHORT = {"group_size": 1, "max_new_tokens": 4}
PAIR = {"group_size": 2, "max_new_tokens": 4}
RECIPES = {"sft": (sft, ROWS), "dpo": (dpo, PAIRS), "reward_model": (reward_model, PAIRS)}


def shortest(completions, **_):
    return [1.0 / (1 + len(completion)) for completion in completions]


IN_PLACE = {"functions": [shortest], "workers": 0}
"""Scored by the makers themselves: a process for it takes longer to start than these runs take."""


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
        "name": "run", "optimizer": {"learning_rate": 1e-2}, **more,
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
    assert weights_digest(model_weights(loaded)) == header(tmp_path)["weights_digest"]


@pytest.mark.parametrize("name", [*RECIPES, "grpo", "ppo"])
def test_the_events_reach_a_plain_function_and_stopping_early_works(name, tmp_path, folder):
    recipe, data = RECIPES.get(name, ({"grpo": grpo, "ppo": ppo}.get(name), ROWS))
    rl = {"reward": IN_PLACE, "sampling": PAIR} if name in ("grpo", "ppo") else {}
    eval_of_rl = {"metric": f"{__name__}:shortest"} if rl else {}
    manager, heard = CallbackManager(), []
    nine = (
        "train_start", "train_end", "epoch_start", "epoch_end", "step_start", "step_end", "eval_start", "eval_end",
        "checkpoint_saved",
    )  # fmt: skip
    for event in nine:
        manager.on(event)(lambda state, event=event: heard.append((event, state.global_step)))
    manager.on("step_end")(lambda state: state.stop_training("enough") if state.global_step == 2 else None)
    evals = [{"name": "kept_back", "source": as_file(tmp_path, data), **eval_of_rl}]
    state = recipe(task=data, callbacks=manager, eval=evals, **rl, **settings(tmp_path, folder))
    assert state.stop_reason == "enough"
    assert {event for event, _ in heard} == set(nine)
    assert heard[0][0] == "train_start"
    assert heard[-1] == ("train_end", 2)
    assert header(tmp_path)["stop_reason"] == "enough"


@pytest.mark.parametrize("name", [*RECIPES, "grpo", "ppo"])
def test_the_tenth_too_when_something_fails(name, tmp_path, folder):
    recipe, data = RECIPES.get(name, ({"grpo": grpo, "ppo": ppo}.get(name), ROWS))
    rl = {"reward": IN_PLACE, "sampling": PAIR} if name in ("grpo", "ppo") else {}
    manager, heard = CallbackManager(), []
    manager.on("error")(lambda state: heard.append(state.metrics["error"]))

    @manager.on("step_end")
    def fail(state):
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        recipe(task=data, callbacks=manager, **rl, **settings(tmp_path, folder))
    assert "out of luck" in str(heard[0])
    assert header(tmp_path)["status"] == "failed"


@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", "ppo"])
def test_with_lora_the_result_is_an_adapter_over_an_untouched_base_and_exports_merged(name, tmp_path, folder, capsys):
    from peft import PeftModel

    recipe, data = RECIPES.get(name, ({"grpo": grpo, "ppo": ppo}.get(name), ROWS))
    rl = {"reward": IN_PLACE, "sampling": PAIR} if name in ("grpo", "ppo") else {}
    before = weights_digest(model_weights(load_model(folder)))
    recipe(task=data, lora=LORA, **rl, **settings(tmp_path, folder))
    made = tmp_path / "runs" / "run" / "model"
    assert (made / "adapter_model.safetensors").is_file()
    assert weights_digest(model_weights(load_model(folder))) == before
    assert main(["export", str(tmp_path / "runs" / "run"), str(tmp_path / "merged")]) == 0
    assert "merged into" in capsys.readouterr().out
    tokens = torch.tensor([[5, 6, 7, 3]])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), made).eval()
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(merged(tokens).logits, adapted(tokens).logits)
    assert not torch.allclose(merged(tokens).logits, plain(tokens).logits, atol=1e-4)


def test_a_run_starts_from_an_adapter_folder_and_goes_on_with_an_adapter(tmp_path, folder):
    sft(task=ROWS, lora=LORA, **settings(tmp_path, folder, name="first"))
    first = str(tmp_path / "runs" / "first" / "model")
    sft(task=ROWS, **settings(tmp_path, first, name="over"))  # merged, then trained whole
    sft(task=ROWS, lora={"path": first}, **settings(tmp_path, folder, name="on"))
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
    reward_model(task=PAIRS, **settings(tmp_path, folder, name="judge"))
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
    reward_model(task=PAIRS, **settings(tmp_path, folder, name="judge"))
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
    sft(task=ROWS, lora=LORA, **settings(tmp_path, folder, name="first"))
    other = load_model(CONFIG, seed=2)
    other.save_pretrained(tmp_path / "other")
    tokenizer().save_pretrained(tmp_path / "other")
    adapter = {"path": str(tmp_path / "runs" / "first" / "model")}
    with pytest.raises(ProaError, match="another base"):
        sft(task=ROWS, lora=adapter, **settings(tmp_path, tmp_path / "other", name="second"))
    assert main(["export", adapter["path"], str(tmp_path / "out"), "--base", str(tmp_path / "other")]) == 2


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        (dpo, {"task": [{"prompt": "1>", "chosen": "2", "rejected": "2"}] * 8}, "chosen and rejected are the same"),
        (dpo, {"task": [{"prompt": "1" * 30 + ">", "chosen": "2", "rejected": "3"}] * 8}, "24"),
        (sft, {"task": [{"prompt": "1" * 30 + ">", "answer": "3"}] * 8}, "24"),
        (sft, {"algorithm": {"params": {"packng": True}}}, "did you mean 'packing'"),
        (sft, {"makers": 2}, "makers does not apply to algorithm sft"),
        (sft, {"callbacks": [MakerCallback()]}, "sft has no makers"),
        (grpo, {"critic": "separate", "reward": shortest, "sampling": PAIR}, "critic does not apply to algorithm"),
        (ppo, {"critic": {"kind": "shared", "learning_rate": 1.0}, "reward": shortest}, "critic.kind: separate"),
        (grpo, {"sampling": {"group_size": 1}, "reward": shortest}, "at least 2"),
        (sft, {"lora": {"target_modules": ["q_prj"]}}, "did you mean 'q_proj'"),
        (reward_model, {"task": PAIRS, "eval": [{"name": "e", "source": "x.jsonl", "kind": "generate"}]},
         "generates nothing"),
        (dpo, {"task": PAIRS, "algorithm": {"params": {"loss": "sigmod"}}}, "did you mean 'sigmoid'"),
        (ppo, {"reward": {"model": "nowhere"}, "sampling": SHORT}, "no reward model in nowhere"),
        (ppo, {"algorithm": "grpo", "reward": shortest}, "the recipe ppo was given a configuration for algorithm grpo"),
        (dpo, {"task": PAIRS, "algorithm": {"params": {"beta": "1e-1"}}}, "beta must be a number.*in YAML"),
        (sft, {"algorithm": {"params": {"max_length": "20"}}}, "max_length must be a whole number"),
        (sft, {"optimizer": {"share_prompts": True}}, "share_prompts does not apply to algorithm sft"),
        (sft, {"lora": {"path": "x", "rank": 3}}, "leave out rank"),
        (sft, {"model": "nowhere"}, "no model folder nowhere"),
        (sft, {"model.tokenizer": "nowhere"}, "no tokenizer folder nowhere"),
        (sft, {"model.device": "cuda:7"}, "torch finds .* CUDA device"),
        (sft, {"model.device": "gpu"}, "write cpu, cuda or cuda:0"),
        (sft, {"eval": [{"name": "e"}]}, "has no data of its own"),
        (sft, {"eval": [{"name": "e", "source": "x.jsonl", "metric": "a:b"}]}, "metric is for evals that generate"),
        (grpo, {"reward": shortest, "sampling": PAIR, "eval": [{"name": "e", "kind": "loss"}]},
         "kind loss is for supervised"),
        (grpo, {"reward": shortest, "sampling": PAIR, "eval": [{"name": "e"}] * 2}, "two evals"),
        (grpo, {"reward": shortest, "sampling": {"group_size": 2, "max_new_tokens": 23}}, "row 0.*leaves beside"),
        (grpo, {"task": [{"prompt": "1>", "a": 1}, {"prompt": "2>"}], "reward": shortest, "sampling": PAIR},
         "'a' is in some rows"),
        (ppo, {"reward": {"model": "x", "weights": [1.0]}}, "reward.model.weight"),
        (grpo, {"algorithm": {"params": {"clip_low": "3e-1"}}, "reward": shortest, "sampling": PAIR},
         "clip_low must be a number"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_the_users_words(tmp_path, folder, recipe, changes, words):
    with pytest.raises(ProaError, match=words):
        recipe(**{"task": ROWS, **settings(tmp_path, folder), **changes})
    assert not (tmp_path / "runs" / "run").exists()  # so the corrected run can have the folder


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
    assert "model: " in out


def test_objects_can_be_given_in_place_of_names(tmp_path, folder):
    model = load_model(CONFIG, seed=1)
    state = grpo(
        model=model, tokenizer=tokenizer(), task=ROWS, reward=[shortest], name="run",
        output_dir=tmp_path / "runs", total_steps=2,
        train_batch_size=4, sampling={"group_size": 2, "max_new_tokens": 4}, **{"reward.workers": 0},
    )  # fmt: skip
    assert state.global_step == 2
    recorded = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert "given in Python" in recorded["model"]["path"]
    assert recorded["reward"]["functions"] == ["shortest (given in Python)"]


def test_a_model_from_a_configuration_is_saved_with_the_tokenizers_end(tmp_path):
    without = {key: value for key, value in CONFIG.items() if key != "eos_token_id"}
    sft(task=ROWS, **settings(tmp_path, "", model={"config": without}, tokenizer=tokenizer()))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "runs" / "run" / "model")
    assert saved.generation_config.eos_token_id == saved.config.eos_token_id == tokenizer().eos_token_id


def test_a_recipe_gives_its_name_to_a_file_that_names_no_algorithm(tmp_path, folder):
    file = tmp_path / "plain.yaml"
    file.write_text(f"""\
name: run
output_dir: {tmp_path / "runs"}
model: {folder}
task: {as_file(tmp_path, ROWS)}
total_steps: 1
train_batch_size: 4
sampling: {{group_size: 2, max_new_tokens: 4}}
""")
    ppo(file, reward=shortest, **{"algorithm.params": {"lam": 0.5}, "reward.workers": 0})
    recorded = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert (recorded["algorithm"]["name"], recorded["algorithm"]["params"]) == ("ppo", {"lam": 0.5})


def test_a_manager_serves_one_run_after_the_other(tmp_path, folder):
    manager = CallbackManager()
    for name in ("one", "two"):
        sft(task=ROWS, callbacks=manager, **settings(tmp_path, folder, name=name))
        assert manager.callbacks == []
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines if "loss" in line] == [0, 1, 2]


@pytest.mark.parametrize(
    "more", [{"algorithm": {"params": {"kl_coefficient": 0.1}}}, {"algorithm": {"old": "trainer"}}]
)
def test_a_run_in_float64_has_a_reference_and_a_first_pass_too(tmp_path, folder, more):
    state = grpo(
        task=ROWS, reward=IN_PLACE, sampling={"group_size": 2, "max_new_tokens": 4},
        **settings(tmp_path, folder, model={"path": str(folder), "dtype": "float64"}, **more),
    )  # fmt: skip
    assert state.global_step == 3


def test_a_function_that_does_not_apply_leaves_the_word_to_the_reward_model(tmp_path, folder):
    reward_model(task=PAIRS, **settings(tmp_path, folder, name="judge"))
    ppo(
        task=ROWS, reward={"functions": [silent], "model": str(tmp_path / "runs" / "judge" / "model"), "workers": 0},
        sampling=SHORT, **settings(tmp_path, folder),
    )  # fmt: skip
    assert header(tmp_path)["ledger"]["trained"] == 12


def silent(completions, **_):
    return [None] * len(completions)


def test_a_reward_model_with_a_short_context_is_refused(tmp_path, folder):
    reward_model(task=PAIRS, **settings(tmp_path, folder, name="judge"))
    judge = tmp_path / "runs" / "judge" / "model"
    words = json.loads((judge / "config.json").read_text())
    (judge / "config.json").write_text(json.dumps({**words, "max_position_embeddings": 5}))
    with pytest.raises(ProaError, match="reads 5 tokens, and a prompt with its completion may have 6"):
        ppo(task=ROWS, reward={"model": str(judge)}, sampling=SHORT, **settings(tmp_path, folder))


def test_no_baseline_is_taken_where_none_is_asked_for(tmp_path, folder):
    held_out = {"name": "kept_back", "source": as_file(tmp_path, ROWS), "baseline": False}
    sft(task=ROWS, eval=[held_out], **settings(tmp_path, folder))
    lines = (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if "kept_back" in line] == [2]
