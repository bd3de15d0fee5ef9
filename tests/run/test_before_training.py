"""What is found wrong before a run has begun to train: it is said, and no folder is left to be in the way."""

import pytest
from tests.small import DETACHED

from proa.errors import ProaError, SettingError
from proa.recipes import grpo

GPT_NEO = {
    "model_type": "gpt_neo", "vocab_size": 16, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 8,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 24,
}  # fmt: skip


def test_a_model_that_the_engine_does_not_know_leaves_no_folder(tmp_path):
    for _ in range(2):
        with pytest.raises(SettingError, match="does not know models of type 'gpt_neo'"):
            grpo(**DETACHED | {"model": {"config": GPT_NEO}}, name="run", output_dir=tmp_path)
    assert not (tmp_path / "run").exists()


def test_an_engine_that_cannot_be_built_leaves_no_folder(tmp_path):
    def no_engine(description):
        raise SettingError("the engine does not know these weights")

    for _ in range(2):
        with pytest.raises(SettingError, match="does not know these weights"):
            grpo(**DETACHED, name="run", output_dir=tmp_path, engine=no_engine)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["columns", "split"])
def test_columns_and_splits_of_a_built_in_task_are_refused(key, tmp_path):
    named = {"columns": {"prompt": "question"}, "split": "train"}
    task = {"source": "sort_digits", key: named[key]}
    with pytest.raises(ProaError, match=rf"task\.{key} is for data of your own: leave it out"):
        grpo(**DETACHED | {"task": task}, name="run", output_dir=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_setting_that_is_wrong_after_training_began_leaves_the_record(tmp_path):
    def refuse(state, step_idx, batch, metrics):
        raise SettingError("found too late")

    with pytest.raises(SettingError, match="found too late"):
        grpo(**DETACHED, name="run", output_dir=tmp_path, callbacks=on_step_end(refuse))
    assert (tmp_path / "run" / "run.json").exists()


def on_step_end(function):
    from proa import CallbackManager

    manager = CallbackManager()
    manager.on("step_end")(function)
    return manager
