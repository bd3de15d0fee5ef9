"""Callbacks that a configuration names live where those given from Python do: by the kind of callback they are."""

import sys
from types import SimpleNamespace

import pytest

from proa import Callback, CallbackManager, MakerCallback, TrainerCallback
from proa.config import load_run_config
from proa.errors import HookError
from proa.run.placing import place_callbacks


class OfTheDriver(Callback):
    pass


class OfTheTrainer(TrainerCallback):
    pass


class OfEveryTrainer(TrainerCallback):
    all_ranks = True


class OfTheMakers(MakerCallback):
    pass


OWN = (OfTheDriver, OfTheTrainer, OfEveryTrainer, OfTheMakers)


@pytest.fixture
def placed(monkeypatch):
    """Where callbacks end up that a configuration names by their paths."""
    module = SimpleNamespace(**{own.__name__: own for own in OWN})
    monkeypatch.setitem(sys.modules, "own_placed", module)

    def place(runtime):
        config = load_run_config(
            None, model="m", task="sort_digits", total_steps=1, train_batch_size=2, runtime=runtime,
            sampling={"group_size": 2}, callbacks=[{"kind": f"own_placed:{own.__name__}"} for own in OWN],
        )  # fmt: skip
        with place_callbacks(config, None) as listeners:
            return {
                "driver": [type(one) for one in listeners.manager.callbacks if type(one) in OWN],
                "trainer": [type(one) for one in listeners.trainer],
                "every_trainer": [type(one) for one in listeners.every_trainer],
                "makers": [type(one) for one in listeners.makers],
            }

    return place


class Refused(Callback):
    def on_step_end(self, state, step):
        """Does not take what it is given."""


def test_a_run_that_is_refused_leaves_the_users_manager_as_it_was():
    config = load_run_config(
        None, model="m", task="sort_digits", total_steps=1, train_batch_size=2, sampling={"group_size": 2}
    )  # fmt: skip
    own = OfTheDriver()
    manager = CallbackManager([own])
    with pytest.raises(HookError, match="on_step_end"):
        place_callbacks(config, [manager, OfTheDriver(), Refused()])
    assert manager.callbacks == [own]


def test_on_ray_trainer_callbacks_go_to_the_trainer(placed):
    assert placed("ray") == {
        "driver": [OfTheDriver], "trainer": [OfTheTrainer], "every_trainer": [OfEveryTrainer], "makers": [OfTheMakers],
    }  # fmt: skip


def test_in_one_process_they_are_with_the_driver(placed):
    found = placed("local")
    assert set(found["driver"]) == {OfTheDriver, OfTheTrainer, OfEveryTrainer}
    assert (found["trainer"], found["every_trainer"], found["makers"]) == ([], [], [OfTheMakers])
