"""The state of callbacks' copies, back in the instance that they were copied from."""

import pickle
import threading
from dataclasses import dataclass, field

from proa import MakerCallback, TrainerCallback
from proa.lifecycle.copies import PackedState, return_states


class Counting(TrainerCallback):
    def __init__(self):
        self.count = 0
        self.rows = []
        self.only_here = "as it was"


def copied(callback):
    return pickle.loads(pickle.dumps(callback))


def test_the_instance_has_the_state_of_the_copy_of_its_own_actor_and_the_others_by_name():
    callback = Counting()
    first, second = copied(callback), copied(callback)
    first.count, second.count = 3, 5
    first.rows = second.rows = [1, 2]
    del first.only_here
    return_states(callback, {"trainer_0": PackedState.of(first), "trainer_1": PackedState.of(second)}, own="trainer_0")
    assert vars(callback) == {"count": 3, "rows": [1, 2], "actor_copies": callback.actor_copies}
    assert callback.actor_copies["trainer_0"] is callback
    assert type(callback.actor_copies["trainer_1"]) is Counting
    assert vars(callback.actor_copies["trainer_1"]) == {"count": 5, "rows": [1, 2], "only_here": "as it was"}


def test_attributes_that_are_one_object_stay_one():
    callback = Counting()
    callback.by_kind = {"all": callback.rows}
    return_states(callback, {"trainer_0": PackedState.of(copied(callback))}, own="trainer_0")
    callback.rows.append(1)
    assert callback.by_kind == {"all": [1]}


def test_what_cannot_be_pickled_is_left_out_with_one_warning_that_names_it(caplog):
    callback = Counting()
    callback.lock = "the driver's"
    states = {}
    for actor in ("maker_0", "maker_1"):
        copy = copied(callback)
        copy.count, copy.lock = 7, threading.Lock()
        states[actor] = PackedState.of(copy)
    return_states(callback, states, own="maker_0")
    assert (callback.count, callback.lock) == (7, "the driver's")
    assert not hasattr(callback.actor_copies["maker_1"], "lock")
    assert [record.getMessage() for record in caplog.records] == [
        "Counting: its attribute 'lock' in maker_0 cannot be sent to the driver "
        "(TypeError: cannot pickle '_thread.lock' object)"
    ]


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise OSError("not here")


def test_a_state_that_cannot_be_read_here_changes_nothing_and_is_reported(caplog):
    callback, copy = Counting(), Counting()
    copy.count, copy.model = 3, Unreadable()
    return_states(callback, {"trainer_0": PackedState.of(copy)}, own="trainer_0")
    assert (callback.count, callback.actor_copies) == (0, {})
    assert caplog.messages == ["the state of Counting in trainer_0 cannot be read here: OSError: not here"]


class OwnState(MakerCallback):
    """Decides itself what its state is."""

    def __init__(self):
        self.count, self.lock = 0, threading.Lock()

    def __getstate__(self):
        return {"count": self.count}

    def __setstate__(self, state):
        self.count, self.lock = state["count"] + 100, threading.Lock()


def test_a_class_may_say_what_its_state_is(caplog):
    callback, copy = OwnState(), OwnState()
    copy.count = 1
    return_states(callback, {"maker_0": PackedState.of(copy)})
    assert (callback.count, callback.actor_copies["maker_0"].count) == (0, 101)
    assert not caplog.records


@dataclass(slots=True, frozen=True)
class Slotted(TrainerCallback):
    heard: list[int] = field(default_factory=list)


def test_frozen_dataclasses_with_slots_have_state_too():
    callback, copy = Slotted(), Slotted([1, 2])
    return_states(callback, {"trainer_0": PackedState.of(copy)}, own="trainer_0")
    assert callback.heard == [1, 2]


def test_before_a_run_there_are_no_copies():
    assert Counting().actor_copies == {}
