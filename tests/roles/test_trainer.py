"""`DetachedTrainer`: the documented loop on experience that others push."""

import inspect
import threading

import pytest
import torch

from proa import TrainerCallback
from proa.actors.waiting import WaitTimeoutError
from proa.data.experience import BufferItem, Experience
from proa.errors import HookError
from proa.roles.trainer import DetachedTrainer
from proa.testing import Recorder, assert_lifecycle


class MyTrainer(DetachedTrainer):
    """Remembers which items it was given, and how often it pushed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []
        self.pushes = []

    def training_step(self, experience: Experience):
        self.seen.append(experience.sequences[:, 0].tolist())
        return {"loss": 0.0}

    def _update_remote_makers(self, fully_update=False, **kwargs):
        self.pushes.append((self.state.global_step, fully_update))


def items(*numbers):
    return [BufferItem(torch.tensor([n, n]), torch.zeros(1)) for n in numbers]


def fed(batches, **settings):
    trainer = MyTrainer(["maker_0"], train_batch_size=2, **settings)
    trainer.buffer_extend(items(*range(2 * batches)))
    return trainer


def test_the_constructor_is_the_documented_one():
    parameters = inspect.signature(DetachedTrainer.__init__).parameters
    documented = [
        ("train_batch_size", 8), ("buffer_limit", 0), ("dataloader_pin_memory", True), ("callbacks", ()),
        ("debug", False),
    ]  # fmt: skip
    names = list(parameters)[1:7]
    assert names == ["experience_maker_holder_name_list", *(name for name, _ in documented)]
    assert [(name, parameters[name].default) for name, _ in documented] == documented
    fit = list(inspect.signature(DetachedTrainer.fit).parameters)[1:]
    # Where Ray has made an actor of a subclass in this process, it has added a parameter of its own.
    assert [name for name in fit if not name.startswith("_ray")] == ["total_steps", "update_steps", "train_epochs"]


def test_the_order_is_the_documented_one_and_no_step_is_dropped():
    recorder = Recorder()
    trainer = fed(3, callbacks=[recorder])
    trainer.fit(total_steps=3, update_steps=2, train_epochs=2)
    assert recorder.events == [
        "train_start",
        "episode_start",
        "epoch_start", "step_start", "step_end", "step_start", "step_end", "epoch_end",
        "epoch_start", "step_start", "step_end", "step_start", "step_end", "epoch_end",
        "update_start", "update_end", "episode_end",
        "episode_start",
        "epoch_start", "step_start", "step_end", "epoch_end",
        "epoch_start", "step_start", "step_end", "epoch_end",
        "update_start", "update_end", "episode_end",
        "train_end",
    ]  # fmt: skip
    assert trainer.pushes == [(4, False), (6, False)]
    assert trainer.state.policy_version == 2


def test_later_epochs_take_the_same_batches_in_an_order_of_the_seed():
    orders = set()
    for seed in range(8):
        trainer = fed(4, seed=seed)
        trainer.fit(4, 4, train_epochs=2)
        assert sorted(trainer.seen[:4]) == sorted(trainer.seen[4:])
        orders.add(tuple(map(tuple, trainer.seen[4:])))
        again = fed(4, seed=seed)
        again.fit(4, 4, train_epochs=2)
        assert again.seen == trainer.seen
    assert len(orders) > 1


def test_it_keeps_the_lifecycle_whatever_happens():
    assert_lifecycle(lambda callbacks: fed(4, callbacks=callbacks).fit(4, 2, 2))


def test_producers_in_several_threads_feed_it_and_it_waits_for_them():
    recorder = Recorder()
    trainer = MyTrainer(["maker_0"], train_batch_size=4, buffer_limit=1, callbacks=[recorder], wait_timeout=120)

    def produce(first):
        for number in range(first, first + 20):
            trainer.buffer_extend(items(number))

    producers = [threading.Thread(target=produce, args=(100 * k,)) for k in range(2)]
    for producer in producers:
        producer.start()
    trainer.fit(total_steps=10, update_steps=5)
    for producer in producers:
        producer.join(120)
    assert sorted(n for batch in trainer.seen for n in batch) == [*range(20), *range(100, 120)]
    assert trainer.source.ledger.as_dict()["trained"] == 40
    assert trainer.source.ledger.closes


def test_waiting_fires_its_moments_and_has_a_deadline():
    recorder = Recorder()
    trainer = fed(1, callbacks=[recorder], wait_timeout=0.05)
    with pytest.raises(WaitTimeoutError, match="the trainer has waited .* for a batch of 2"):
        trainer.fit(2, 1)
    assert recorder.events[-6:] == ["wait_start", "wait_end", "epoch_end", "episode_end", "error", "train_end"]


def test_syncing_pushes_everything_and_fires_nothing():
    recorder = Recorder()
    trainer = MyTrainer([], callbacks=[recorder])
    trainer.sync_models_to_remote_makers()
    assert trainer.pushes == [(0, True)]
    assert recorder.events == []


def test_a_stop_in_the_middle_of_an_episode_pushes_nothing():
    trainer = fed(4)
    trainer.manager.on("step_end")(lambda state: state.stop_training("enough"))
    trainer.fit(4, 2)
    assert (trainer.state.global_step, trainer.pushes, trainer.state.policy_version) == (1, [], 0)


def test_the_buffer_can_be_asked_and_appended_to():
    trainer = MyTrainer([], train_batch_size=2)
    trainer.buffer_append(Experience(torch.zeros(5, 3), torch.zeros(5, 1)))
    assert trainer.buffer_get_length() == 2
    assert len(trainer._buffer_sample()) == 2


def test_methods_carry_the_concurrency_groups_that_keep_appends_from_queueing_behind_fit():
    groups = {
        name: getattr(DetachedTrainer, name).__ray_concurrency_group__
        for name in ("fit", "buffer_get_length", "buffer_append", "buffer_extend", "_buffer_sample")
    }
    assert groups == {
        "fit": "compute", "buffer_get_length": "buffer_length", "buffer_append": "buffer_append",
        "buffer_extend": "buffer_append", "_buffer_sample": "buffer_sample",
    }  # fmt: skip


def test_a_maker_callback_is_refused():
    from proa import MakerCallback

    with pytest.raises(HookError, match="given to a trainer"):
        MyTrainer([], callbacks=[MakerCallback()])


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_counts_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="give 1 or more"):
        MyTrainer([]).fit(*wrong)


class CountsThreads(MyTrainer):
    def training_step(self, experience):
        self.seen.append(torch.get_num_threads())
        return {"loss": 0.0}


class SetsThreads(TrainerCallback):
    def __init__(self, hook):
        self.hook = hook

    def on_fit_start(self):
        self._set("on_fit_start")

    def on_batch_end(self, metrics, experience):
        self._set("on_batch_end")

    def _set(self, hook):
        if hook == self.hook:
            torch.set_num_threads(3)


def test_a_callback_that_sets_torchs_threads_in_the_middle_changes_no_step_and_is_told(caplog):
    before = torch.get_num_threads()
    trainer = CountsThreads(["maker_0"], train_batch_size=2, callbacks=[SetsThreads("on_batch_end")])
    trainer.buffer_extend(items(*range(4)))
    trainer.fit(total_steps=2, update_steps=2)
    torch.set_num_threads(before)
    assert trainer.seen == [before, before]
    assert "a callback or an evaluator called torch.set_num_threads" in caplog.text


def test_what_a_callback_sets_before_the_first_step_is_meant(caplog):
    before = torch.get_num_threads()
    trainer = CountsThreads(["maker_0"], train_batch_size=2, callbacks=[SetsThreads("on_fit_start")])
    trainer.buffer_extend(items(*range(4)))
    trainer.fit(total_steps=2, update_steps=2)
    torch.set_num_threads(before)
    assert trainer.seen == [3, 3]
    assert "torch.set_num_threads" not in caplog.text
