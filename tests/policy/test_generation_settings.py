"""A model whose generation settings do not validate is found at the start and can be saved; nothing else changes."""

import json

import pytest
import torch
from tests.small import MODEL_WITH_END as CONFIG
from transformers import AutoModelForCausalLM, GenerationConfig

from proa.errors import ProaError
from proa.policy.generation_settings import GenerationSettingsError, make_savable
from proa.policy.models import export_model, load_model, save_model
from proa.recipes import grpo, reward_model, sft
from proa.tasks.builtin.characters import tokenizer

ENDS = {"eos_token_id": [1, 2], "pad_token_id": 0}


@pytest.fixture
def folder(tmp_path):
    """Writes a model's folder with these generation settings."""
    torch.set_num_threads(1)

    def write(settings):
        place = tmp_path / "start"
        load_model(CONFIG).save_pretrained(place)
        tokenizer().save_pretrained(place)
        if settings is None:
            (place / "generation_config.json").unlink(missing_ok=True)
        else:
            text = settings if isinstance(settings, str) else json.dumps(settings)
            (place / "generation_config.json").write_text(text)
        return place

    return write


CASES = [
    ({"temperature": 0.7}, {"temperature"}),
    ({"temperature": 0.6, "top_p": 0.9, "top_k": 40}, {"temperature", "top_p", "top_k"}),
    ({"do_sample": False, "top_p": 0.9}, {"top_p"}),
    ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, set()),
    ({"length_penalty": 2.0}, {"length_penalty"}),
    ({"num_beams": 2, "length_penalty": 2.0}, set()),
    ({"pad_token_id": -1}, {"pad_token_id"}),
    ({"output_scores": True}, {"output_scores"}),
    ({}, set()),
]


def test_what_transformers_would_refuse_to_save_is_left_out_and_said_and_the_rest_stays(folder, tmp_path, caplog):
    for number, (given, left_out) in enumerate(CASES):
        caplog.clear()
        model = load_model(folder({**ENDS, **given}))
        said = [record.message for record in caplog.records if record.name == "proa.policy"]
        assert len(said) == bool(left_out), (given, said)
        assert all(f"{name}=" in said[0] for name in left_out)
        out = tmp_path / f"saved-{number}"
        save_model(model, None, out)
        saved = json.loads((out / "generation_config.json").read_text())
        for name, value in {**ENDS, **given}.items():
            assert name in left_out or saved.get(name) == value, (given, saved)
        assert not left_out & {name for name, value in saved.items() if value == given.get(name)}


def test_a_model_without_a_file_of_generation_settings_is_saved_too(folder, tmp_path):
    save_model(load_model(folder(None)), None, tmp_path / "out")
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_settings_of_which_nothing_can_be_made_are_refused_at_the_start(folder, tmp_path):
    refused = [
        ("{broken", "generation_config.json cannot be read.*Mend it, or remove it"),
        ([1, 2], "generation_config.json holds no settings: it must be a JSON object"),
        ({"max_new_tokens": -5}, "`max_new_tokens` must be greater than 0"),
        ({"cache_implementation": "foo"}, "Invalid `cache_implementation`"),
    ]
    settings = {"task": "sort_digits", "total_steps": 1, "train_batch_size": 2, "output_dir": tmp_path / "runs"}
    for content, words in refused:
        with pytest.raises(ProaError, match=words):
            sft(**settings, model=str(folder(content)), name="run")
        assert not (tmp_path / "runs" / "run").exists()


def test_a_model_made_in_python_is_exported_too(tmp_path, caplog):
    model = load_model(CONFIG)
    model.generation_config = GenerationConfig(temperature=0.5, eos_token_id=1)
    export_model(model, None, tmp_path / "out")
    assert "left out temperature=0.5" in caplog.text
    make_savable(model)
    assert caplog.text.count("left out") == 1  # nothing is left to say


PAIRS = [{"prompt": f"{n}>", "chosen": "1", "rejected": "2"} for n in range(4)]
RUNS = {
    "sft": (sft, {}),
    "lora": (grpo, {"lora": {"rank": 2, "alpha": 4.0}, "warm_start": {"steps": 1, "batch_size": 2}}),
    "reward_model": (reward_model, {"task": PAIRS}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_from_such_a_model_saves_its_checkpoints(name, folder, tmp_path):
    """Of a LoRA run the base is saved, and of a run from an object the model that was given."""
    recipe, more = RUNS[name]
    given = {
        "model": str(folder({**ENDS, "temperature": 0.7})), "task": "sort_digits", "total_steps": 1,
        "train_batch_size": 4, "sampling": {"group_size": 2, "max_new_tokens": 2}, "reward": {"workers": 0},
        "output_dir": tmp_path / "runs", "name": "run",
    }  # fmt: skip
    if recipe is not grpo:
        del given["sampling"], given["reward"]
    recipe(**{**given, **more})
    assert (tmp_path / "runs" / "run" / "model").is_dir()


def test_what_no_default_mends_is_told_in_words():
    class Stubborn(GenerationConfig):
        def validate(self, *args, strict=False, **kwargs):
            if strict:
                raise ValueError("never")

    model = load_model(CONFIG)
    model.generation_config = Stubborn()
    with pytest.raises(
        GenerationSettingsError, match="cannot be saved, so that no checkpoint could be: never. Mend its"
    ):
        make_savable(model)
