"""ColossalChat's page about `DetachedTrainer`, statement by statement. (On Ray: `tests/integration`.)"""

import inspect
import logging
import typing
from abc import ABC
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.ancestors.runs import OwnTrainer, numbered

import proa
from proa import BufferItem, DetachedPPOTrainer, DetachedReplayBuffer, DetachedTrainer, Experience, TrainerCallback
from proa.actors.waiting import WaitTimeoutError

# -- the class -----------------------------------------------------------------------------------------------------


def test_it_is_an_abstract_base_class():
    assert issubclass(DetachedTrainer, ABC)
    assert inspect.isabstract(DetachedTrainer)
    with pytest.raises(TypeError, match="abstract"):
        DetachedTrainer([])


MUST = {
    "training_step": {"_update_remote_makers": OwnTrainer._update_remote_makers},
    "_update_remote_makers": {"training_step": OwnTrainer.training_step},
}


@pytest.mark.parametrize("missing", MUST)
def test_a_subclass_without_this_method_cannot_be_made(missing):
    with pytest.raises(TypeError, match=missing):
        type("Mine", (DetachedTrainer,), MUST[missing])([])


def test_it_is_imported_from_one_place():
    assert {"DetachedTrainer", "DetachedReplayBuffer", "ExperienceMakerHolder", "BufferItem"} <= set(proa.__all__)


def test_an_algorithm_is_a_subclass():
    assert issubclass(DetachedPPOTrainer, DetachedTrainer)


# -- signatures ----------------------------------------------------------------------------------------------------

REQUIRED = inspect.Parameter.empty
PARAMETERS = {
    "experience_maker_holder_name_list": (REQUIRED, "Sequence[str]"),
    "train_batch_size": (8, "int"),
    "buffer_limit": (0, "int"),
    "dataloader_pin_memory": (True, "bool"),
    "callbacks": ((), "Callbacks"),
    "debug": (False, "bool"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_of_the_constructor(name):
    parameters = list(inspect.signature(DetachedTrainer).parameters.values())
    parameter = parameters[list(PARAMETERS).index(name)]
    default, kind = PARAMETERS[name]
    assert (parameter.name, parameter.default) == (name, default)
    assert parameter.annotation == kind
    assert all(later.kind is later.KEYWORD_ONLY for later in parameters[len(PARAMETERS) :])


METHODS = {
    "_update_remote_makers": ("fully_update=False, **kwargs", None),
    "training_step": ("experience", dict[str, Any]),
    "fit": ("total_steps, update_steps, train_epochs=1", None),
    "sync_models_to_remote_makers": ("**kwargs", None),
    "buffer_get_length": ("", int),
    "buffer_append": ("experience", None),
    "buffer_extend": ("items", None),
    "_buffer_sample": ("", Experience),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_signature_of(name):
    documented, returns = METHODS[name]
    method = getattr(DetachedTrainer, name)
    parameters = [
        parameter.replace(annotation=REQUIRED)
        for parameter in list(inspect.signature(method).parameters.values())[1:]
        if not parameter.name.startswith("_ray")  # which Ray adds where it has made an actor of a subclass
    ]
    assert ", ".join(map(str, parameters)) == documented
    hints = typing.get_type_hints(method)
    assert hints["return"] == (type(None) if returns is None else returns)
    types = {"experience": Experience, "items": Sequence[BufferItem], "fully_update": bool}
    assert all(hints[name] == types.get(name, int) for name in hints.keys() - {"return", "kwargs"})


def test_training_step_and_update_are_abstract():
    assert DetachedTrainer.__abstractmethods__ == {"training_step", "_update_remote_makers"}


# -- the buffer ----------------------------------------------------------------------------------------------------


def test_it_holds_a_detached_replay_buffer():
    trainer = OwnTrainer(["maker_0"], train_batch_size=2)
    assert isinstance(trainer.source.buffer, DetachedReplayBuffer)
    trainer.buffer_append(numbered(2))
    assert trainer.source.buffer.get_length() == 1


def test_append_takes_a_batch_of_experience():
    trainer = OwnTrainer([], train_batch_size=2)
    trainer.buffer_append(numbered(3))
    assert [item.sequences[0].item() for item in trainer.source.buffer.items] == [0, 1, 2]


def test_extend_takes_items():
    trainer = OwnTrainer([], train_batch_size=2)
    trainer.buffer_extend([BufferItem(torch.tensor([number, 0]), torch.zeros(1)) for number in (5, 6)])
    assert [item.sequences[0].item() for item in trainer.source.buffer.items] == [5, 6]


def test_a_sample_is_a_batch_in_order_of_arrival():
    trainer = OwnTrainer([], train_batch_size=2)
    trainer.buffer_append(numbered(4))
    assert isinstance(first := trainer._buffer_sample(), Experience)
    assert [first.sequences[:, 0].tolist(), trainer._buffer_sample().sequences[:, 0].tolist()] == [[0, 1], [2, 3]]


def test_its_length_is_in_batches(own_trainer):
    assert own_trainer.batches_before == 8000 // 8
    trainer = OwnTrainer([], train_batch_size=8)
    assert trainer.buffer_get_length() == 0
    trainer.buffer_append(numbered(23))
    assert type(trainer.buffer_get_length()) is int
    assert trainer.buffer_get_length() == 2


def test_a_limit_of_0_is_none(own_trainer):
    assert own_trainer.trainer.source.buffer.limit == 0
    assert own_trainer.batches_before == 1000  # nobody took any meanwhile


def test_a_limit_holds_back_who_sends_more():
    trainer = OwnTrainer([], train_batch_size=2, buffer_limit=2, wait_timeout=0.0)
    trainer.buffer_append(numbered(4))
    with pytest.raises(WaitTimeoutError, match="room in the replay buffer"):
        trainer.buffer_append(numbered(1))
    assert trainer.buffer_get_length() == 2


GROUPS = {
    "buffer_append": "buffer_append",
    "buffer_extend": "buffer_append",
    "buffer_get_length": "buffer_length",
    "_buffer_sample": "buffer_sample",
}


@pytest.mark.parametrize("method", GROUPS)
def test_the_concurrency_group_of(method):
    marked = getattr(DetachedTrainer, method)
    assert marked.__ray_concurrency_group__ == GROUPS[method]
    assert inspect.unwrap(marked).__ray_concurrency_group__ == GROUPS[method]  # which Ray looks at
    documented = {"buffer_length": 1, "buffer_append": 1, "buffer_sample": 1, "compute": 1}
    assert documented == DetachedTrainer.CONCURRENCY_GROUPS


# -- the loop ------------------------------------------------------------------------------------------------------


def test_fit_trains_so_many_fresh_batches_so_often_and_returns_nothing(own_trainer):
    assert own_trainer.returned is None
    assert len(own_trainer.trainer.trained) == 1000 * 2
    assert len({tuple(batch) for batch in own_trainer.trainer.trained}) == 1000
    assert own_trainer.trainer.buffer_get_length() == 0


def test_weights_are_pushed_after_every_update_steps_fresh_batches(own_trainer):
    assert own_trainer.trainer.pushes == [(200 * episode, False, {}) for episode in range(1, 11)]
    assert own_trainer.trainer.state.policy_version == 10


def test_the_first_epoch_of_an_episode_takes_fresh_batches_and_the_others_the_same_again(own_trainer):
    trained = own_trainer.trainer.trained
    for first in range(0, 2000, 200):
        fresh, again = trained[first : first + 100], trained[first + 100 : first + 200]
        start = first // 2 * 8
        assert fresh == [list(range(number, number + 8)) for number in range(start, start + 800, 8)]
        assert sorted(again) == fresh


def test_one_epoch_is_the_default():
    trainer = OwnTrainer([], train_batch_size=2)
    trainer.buffer_append(numbered(4))
    trainer.fit(2, 1)
    assert trainer.trained == [[0, 1], [2, 3]]


def test_hooks_fire_in_the_order_of_the_loop(own_trainer):
    epoch = ["on_epoch_start", *["on_batch_start", "on_batch_end"] * 100, "on_epoch_end"]
    update = ["on_update_start", "on_update_end"]
    episode = ["on_episode_start", *epoch, *epoch, *update, "on_episode_end"]
    assert own_trainer.hooks.names == ["on_fit_start", *episode * 10, "on_fit_end"]


def test_a_batch_has_exactly_as_many_samples_as_was_said(own_trainer, grpo_run):
    assert {len(batch) for batch in own_trainer.trainer.trained} == {8}
    assert {len(call.given["experience"]) for call in grpo_run.hooks.named("on_batch_end")} == {8}


def test_what_training_step_returns_are_the_metrics(own_trainer):
    metrics = [call.given["metrics"] for call in own_trainer.hooks.named("on_batch_end")]
    assert [one["loss"] for one in metrics] == [float(step) for step in range(1, 2001)]
    assert all(name == "loss" or name.startswith("trainer.") for one in metrics for name in one)
    assert own_trainer.events.named("step_end")[41].state.metrics["loss"] == 42.0


def test_syncing_pushes_all_with_what_it_was_given():
    trainer = OwnTrainer(["maker_0"])
    trainer.sync_models_to_remote_makers(only="lora")
    assert trainer.pushes == [(0, True, {"only": "lora"})]


def test_names_of_makers_are_for_whoever_pushes():
    assert OwnTrainer(["maker_0", "maker_1"]).maker_names == ["maker_0", "maker_1"]


def test_callbacks_are_a_list_of_instances():
    class Counts(TrainerCallback):
        batches = 0

        def on_batch_end(self, metrics, experience):
            self.batches += 1

    first, second = Counts(), Counts()
    trainer = OwnTrainer([], train_batch_size=2, callbacks=[first, second])
    trainer.buffer_append(numbered(4))
    trainer.fit(2, 1)
    assert (first.batches, second.batches) == (2, 2)


@pytest.mark.parametrize("pin", [True, False])
def test_batches_are_pinned_if_that_is_said_and_there_is_a_gpu(pin, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Experience, "pin_memory", lambda self: pinned.append(len(self)))
    trainer = OwnTrainer([], train_batch_size=2, dataloader_pin_memory=pin)
    trainer.buffer_append(numbered(4))
    trainer.fit(2, 1)
    assert pinned == ([2, 2] if pin else [])


@pytest.mark.parametrize("debug", [True, False])
def test_steps_and_pushes_are_logged_if_that_is_said(debug, caplog):
    trainer = OwnTrainer([], train_batch_size=2, debug=debug, name="trainer_0")
    trainer.buffer_append(numbered(2))
    with caplog.at_level(logging.INFO):
        trainer.fit(1, 1)
    said = [record.message for record in caplog.records if record.name == "proa.trainer"]
    assert [message.partition(" {")[0] for message in said] == (
        ["trainer_0: step 0:", "trainer_0: version 1 is published"] if debug else []
    )
