"""Against the real vLLM, in the environment that `make vllm` sets up; elsewhere these tests are skipped."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from tests.vllm.models import SHAPES, Engines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is not None:
        return
    for item in items:
        if item.path.parent.name == "vllm":
            item.add_marker(pytest.mark.skip("vLLM is not installed here: `make vllm` runs these tests"))


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
