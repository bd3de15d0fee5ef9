"""`auto` in a configuration: decided once, by model and device, and kept by a run that is resumed."""

import json

import pytest
import torch
from tests.small import MODEL_WITH_END

from proa import RunConfig, recipes
from proa.policy.models import load_model, outline_model
from proa.run import automatic
from proa.run.automatic import LARGEST_BUDGET, MemoryNeeds, fit_memory, memory_needs, resolve_automatic
from proa.run.given import Given
from proa.run.maker_side import size_engine

QWEN = {
    "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
GIB = 2**30


def config(tmp_path, *, model=None, **changes):
    section = {"config": model or MODEL_WITH_END, "device": "auto", "dtype": "auto"}
    content = {
        "name": "run", "total_steps": 1, "train_batch_size": 8, "task": "sort_digits", "output_dir": str(tmp_path),
    }  # fmt: skip
    return RunConfig(**content | {"model": section} | changes)


@pytest.fixture
def gpu(monkeypatch):
    """A machine that says that it has a GPU of so much memory."""

    def install(memory):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(automatic, "_device_memory", lambda _: memory)
        monkeypatch.setattr(automatic, "_can_compile", lambda: True)

    return install


def decided(config):
    model, optimizer = config.model, config.optimizer
    return (
        model.device, model.dtype, model.gradient_checkpointing, model.compile, optimizer.token_budget,
        optimizer.share_prompts,
    )  # fmt: skip


def test_on_a_machine_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert decided(resolve_automatic(config(tmp_path), Given())) == ("cpu", "float32", False, False, 2048, False)


def test_on_a_large_gpu_nothing_is_computed_twice(tmp_path, gpu):
    gpu(139 * GIB)
    found = decided(resolve_automatic(config(tmp_path, model=QWEN), Given()))
    assert found == ("cuda", "bfloat16", False, True, LARGEST_BUDGET, True)


def test_on_a_smaller_gpu_activations_are_computed_twice(tmp_path, gpu):
    gpu(40 * GIB)
    found = resolve_automatic(config(tmp_path, model=QWEN), Given())
    assert found.model.gradient_checkpointing is True
    gpu(20 * GIB)
    smaller = resolve_automatic(config(tmp_path, model=QWEN), Given())
    assert smaller.optimizer.token_budget <= found.optimizer.token_budget <= LARGEST_BUDGET


def test_an_adapter_of_a_model_that_is_too_large_to_train_fits(tmp_path, gpu):
    gpu(24 * GIB)
    large = {**QWEN, "num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32}
    needs = memory_needs(
        resolve_automatic(config(tmp_path, model=large), Given()), outline_model(large)
    )  # fmt: skip
    with_adapter = memory_needs(
        resolve_automatic(config(tmp_path, model=large, lora={"rank": 8}), Given()), outline_model(large)
    )
    assert with_adapter.weights * 2 < needs.weights


def test_what_is_said_stays(tmp_path, gpu):
    gpu(139 * GIB)
    model = {"config": MODEL_WITH_END, "device": "cpu", "dtype": "float32", "compile": True, "attention": "eager"}
    said = RunConfig(
        total_steps=1, train_batch_size=8, task="sort_digits", output_dir=tmp_path, model=model,
        optimizer={"token_budget": 77, "share_prompts": True},
    )  # fmt: skip
    assert decided(resolve_automatic(said, Given())) == ("cpu", "float32", False, True, 77, True)


def test_a_model_that_is_given_decides(tmp_path, gpu):
    gpu(139 * GIB)
    model = load_model(MODEL_WITH_END, dtype="float64")
    found = resolve_automatic(config(tmp_path), Given(model=model))
    assert (found.model.device, found.model.dtype) == ("cpu", "float64")


@pytest.mark.parametrize(
    ("ray", "device"),
    [
        ({}, "cpu"),
        ({"trainer": {"num_gpus": 1}}, "cpu"),
        ({"trainer": {"num_gpus": 1}, "maker": {"num_gpus": 1}}, "cuda"),
    ],
)
def test_on_ray_actors_say_whether_they_want_a_gpu(ray, device, tmp_path, gpu):
    gpu(139 * GIB)
    assert resolve_automatic(config(tmp_path, runtime="ray", ray=ray), Given()).model.device == device


def test_memory_that_is_unknown_or_too_small_still_gives_a_budget():
    assert fit_memory(MemoryNeeds(10, 10, 1), 0) == (True, 1024)


def test_a_run_writes_down_what_was_decided_and_keeps_it_when_it_is_resumed(tmp_path, gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = {
        "model": {"config": MODEL_WITH_END, "device": "auto", "dtype": "auto"}, "task": "sort_digits", "total_steps": 1,
        "train_batch_size": 4, "sampling.group_size": 2, "sampling.max_new_tokens": 2, "output_dir": str(tmp_path),
        "name": "run", "reward.workers": 0,
    }  # fmt: skip
    recipes.grpo(**settings)
    written = json.loads((tmp_path / "run/config.json").read_text())
    assert (written["model"]["device"], written["model"]["dtype"]) == ("cpu", "float32")
    assert "auto" not in {*map(str, written["model"].values())} - {written["model"]["attention"]}
    assert written["optimizer"]["token_budget"] == 2048
    gpu(139 * GIB)
    again = resolve_automatic(config(tmp_path), Given(), resumed=True)
    assert (again.model.device, again.model.dtype, again.optimizer.token_budget) == ("cpu", "float32", 2048)


def test_an_engine_on_a_gpu_has_no_more_rows_and_cache_than_the_run_can_use(tmp_path):
    run = config(tmp_path, train_batch_size=64, max_staleness=1, sampling={"group_size": 8, "max_new_tokens": 256})
    sized = size_engine(run, longest_prompt=128)
    assert (sized.slots, sized.cache_tokens) == (128, (128 + 16) * 384)
    large = config(tmp_path, train_batch_size=1024, sampling={"group_size": 8, "max_new_tokens": 250})
    assert size_engine(large, longest_prompt=100).slots == 256
    said = config(tmp_path, train_batch_size=64, engine={"slots": 8, "cache_tokens": 999})
    assert (size_engine(said, 5).slots, size_engine(said, 5).cache_tokens) == (8, 999)


SIZES = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "eos_token_id": 2}
OTHERS = {
    "gemma2": {**SIZES, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
    "ctrl": {"vocab_size": 23, "n_embd": 16, "dff": 16, "n_layer": 2, "n_head": 2},
    "mamba": {**SIZES, "state_size": 4},
    "rwkv": {**SIZES, "attention_hidden_size": 16},
}


@pytest.mark.parametrize("model_type", OTHERS)
def test_auto_refuses_no_model_that_works_without(model_type, tmp_path, gpu):
    gpu(139 * GIB)
    found = resolve_automatic(config(tmp_path, model={"model_type": model_type, **OTHERS[model_type]}), Given())
    assert (found.model.compile, found.optimizer.share_prompts) == (False, False)
    assert isinstance(found.optimizer.token_budget, int)


def test_a_critic_with_weights_of_its_own_is_counted(tmp_path, gpu):
    gpu(139 * GIB)
    ppo = {"model": QWEN, "algorithm": "ppo"}
    shared, separate = (
        memory_needs(resolve_automatic(config(tmp_path, **ppo, critic=kind), Given()), outline_model(QWEN)).weights
        for kind in ("shared", "separate")
    )
    assert separate > 1.5 * shared


def test_the_cache_of_an_engine_on_a_gpu_is_at_most_a_quarter_of_its_memory(tmp_path):
    run = config(tmp_path, train_batch_size=256, sampling={"group_size": 8, "max_new_tokens": 8192})
    assert size_engine(run, longest_prompt=128, most_tokens=100_000).cache_tokens == 100_000
    assert size_engine(run, longest_prompt=128, most_tokens=100).cache_tokens == 8320  # one sequence always fits


@pytest.mark.parametrize(
    ("memory", "staleness", "engine", "sleeps"),
    [(139, 0, {}, False), (24, 0, {}, True), (24, 1, {}, False), (24, 0, {"device": "cpu"}, False),
     (139, 0, {"sleep": True}, True)],
)  # fmt: skip
def test_an_engine_sleeps_where_it_takes_turns_with_a_trainer_that_needs_its_memory(
    memory, staleness, engine, sleeps, tmp_path, gpu
):
    gpu(memory * GIB)
    asked = config(tmp_path, model=QWEN, max_staleness=staleness, engine=engine)
    assert resolve_automatic(asked, Given()).engine.sleep is sleeps


def test_without_a_gpu_an_engine_does_not_sleep(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_automatic(config(tmp_path, max_staleness=0), Given()).engine.sleep is False


def test_a_run_whose_engine_sleeps_has_the_same_weights(tmp_path):
    digests = set()
    for sleep in (False, True):
        name = f"sleep_{sleep}"
        recipes.grpo(
            model={"config": MODEL_WITH_END}, task="sort_digits", total_steps=3, train_batch_size=8, max_staleness=0,
            sampling={"group_size": 4, "max_new_tokens": 6}, reward={"workers": 0}, engine={"sleep": sleep},
            output_dir=tmp_path, name=name,
        )  # fmt: skip
        digests.add(json.loads((tmp_path / name / "run.json").read_text())["weights_digest"])
    assert len(digests) == 1
