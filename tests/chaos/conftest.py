"""One nursery for all tests here, and runs to compare with."""

import json
import time
from dataclasses import dataclass

import pytest
from tests.chaos.nursery import Nursery
from tests.chaos.real_runs import begin, came_to


@dataclass(frozen=True)
class Whole:
    """A run that nothing happened to."""

    outcome: dict
    seconds: float
    """From when it listens for signals to its end."""


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def undisturbed(nursery, tmp_path_factory):
    """What a configuration comes to when nothing happens; asked for twice, run once."""
    known = {}

    def whole(settings):
        key = json.dumps(settings)
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            run = begin(nursery, folder, settings)
            began = time.monotonic()
            assert run.wait() == 0, run.printed
            known[key] = Whole(came_to(folder), time.monotonic() - began)
        return known[key]

    return whole
