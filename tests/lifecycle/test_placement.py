"""Which process a callback lives in, and whether it can get there."""

import functools
import threading

import pytest

from proa import Callback, MakerCallback, TrainerCallback
from proa.errors import NotPortableError
from proa.lifecycle import Placement, check_portable


class OnTrainer(TrainerCallback): ...


class OnEveryRank(TrainerCallback):
    all_ranks = True


class OnMaker(MakerCallback):
    def __init__(self, lock=None):
        self.lock = lock


class OnDriver(Callback): ...


def test_each_family_has_its_place():
    trainer, rank, maker, driver = OnTrainer(), OnEveryRank(), OnMaker(), OnDriver()
    placement = Placement.assign([trainer, rank, maker, driver])
    assert placement == Placement([driver], [trainer], [rank], [maker], in_one_process=[trainer, rank, driver])
    assert placement.travelling == [trainer, rank, maker]


def test_factories_travel_as_factories_to_where_many_are_made():
    maker, rank = functools.partial(OnMaker, lock=None), OnEveryRank
    placement = Placement.assign([maker, rank, OnDriver])
    assert placement.makers == [maker]
    assert placement.every_trainer == [rank]
    assert isinstance(placement.driver[0], OnDriver)


def test_what_cannot_travel_is_refused_with_the_attribute_named():
    with pytest.raises(NotPortableError, match=r"OnMaker lives in another process.*its attribute 'lock'.*partial"):
        check_portable([OnTrainer(), OnMaker(threading.Lock())])


def test_a_class_that_only_exists_here_is_refused():
    class Local(MakerCallback): ...

    with pytest.raises(NotPortableError, match="define it at the top level of a module"):
        check_portable([Local()])


def test_what_can_travel_passes():
    check_portable([OnTrainer(), OnMaker(), functools.partial(OnMaker, lock=None)])
