"""Against the real vLLM, in the environment that `make vllm` sets up; elsewhere these tests are skipped."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.vllm.models import SHAPES, Engines

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else a model that is split wants two nodes of memory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.parent == Path(__file__).parent]
    if not own or importlib.util.find_spec("vllm") is not None:
        return
    own[0].add_marker(pytest.mark.skip(f"vLLM is not installed here: `make vllm` runs these {len(own)} tests"))
    items[:] = [item for item in items if item not in own[1:]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engines() -> Engines:
    """Those that were made already."""
    return Engines()


@pytest.fixture
def vllms_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of all engines make models that vLLM serves: its heads have 32 numbers at the least."""
    monkeypatch.setattr("tests.engines.tiny.SHAPES", SHAPES)
