"""Shared by all tests."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The processes of the tests share the cores, and models of a few thousand parameters are no faster for a second thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The machine may be busy: a slow example is no failure. `make prove` tries ten times as many.
settings.register_profile("proa", deadline=None, max_examples=30)
settings.register_profile("prove", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("PROA_EXAMPLES", "proa"))

# Folders whose tests wait for other processes most of the time: begun first, they run beside the ones that compute.
FIRST = ("tests/integration", "tests/chaos", "tests/experiments", "tests/recipes", "tests/run", "tests/resume")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def bfloat16() -> str:
    """The dtype, where this processor multiplies matrices of it: some end the whole process instead."""
    product = "import torch; x = torch.ones(40, 40, dtype=torch.bfloat16, requires_grad=True); (x @ x).sum().backward()"
    probe = subprocess.run([sys.executable, "-c", product], capture_output=True, timeout=120, check=False)
    if probe.returncode:
        pytest.skip(f"this processor cannot multiply matrices in bfloat16 (exit code {probe.returncode})")
    return "bfloat16"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes: the tests of one file run in one, in their order, and all on Ray share one cluster.
    Those on a GPU compile for minutes, so each is by itself."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.startswith("tests/gpu/"):
                return nodeid
            return "tests/integration" if file.startswith("tests/integration/") else file

    return ByFile(config, log)
