"""Shared by all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("proa", deadline=None)  # the machine may be busy: a slow example is no failure
settings.load_profile("proa")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]
