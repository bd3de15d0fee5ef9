"""What the tests of all engines ask of an engine, asked of vLLM: the same tests, with models that vLLM serves."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from tests.engines import test_adapters, test_engines, test_stop_strings, test_stream
from tests.vllm.models import COMMON, SHAPES, Engines

pytestmark = pytest.mark.usefixtures("vllms_shapes")

NOT_VLLMS = {
    "test_an_engine_of_another_dtype_than_the_model": "vLLM has no float64",
    "test_engines_in_two_threads_give_what_they_give_one_after_the_other": "test_vllm.py has it, with two engines",
    "test_frequencies_under_min_p_and_a_penalty_are_those_of_the_logits_that_transformers_makes":
        "these settings leave a model of this size one token; that they are followed is compared with hf",
    "test_weights_that_do_not_fit_leave_the_old_ones_in_force": "it names a width; test_vllm.py has it",
}  # fmt: skip
_MODULES = (test_adapters, test_engines, test_stop_strings, test_stream)

# As in test_engines.py: sums of up to 192 terms, and two layers whose scores grow an error by 20 each.
ROUNDING = 2**-24 * 192**0.5 * 20**2


@pytest.fixture(autouse=True)
def _with_vllm(monkeypatch: pytest.MonkeyPatch, engines: Engines) -> None:
    for module in _MODULES:
        monkeypatch.setattr(module, "build_engine", engines.build)
    monkeypatch.setattr(test_engines, "ROUNDING", ROUNDING)
    monkeypatch.setattr(test_engines, "KINDS", ("vllm", "hf"))


@pytest.fixture(scope="module")
def model() -> Any:
    """Of the built-in tasks' characters."""
    from proa.policy.models import load_model

    small = {**COMMON, "model_type": "llama", "vocab_size": 16, "eos_token_id": 1, "max_position_embeddings": 24}
    return load_model(small, seed=3)


@pytest.fixture
def engine(engines: Engines, model: Any) -> Any:
    return engines.build("vllm", model, end_ids=[1])


def _of_vllm(test: Callable[..., None]) -> Callable[..., None]:
    """The same test, of vLLM and of its shapes."""
    own: Any = types.FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    own.__annotations__, own.__doc__ = test.__annotations__, test.__doc__
    marks = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize" and mark.args[0] == "kind":
            mark = pytest.mark.parametrize("kind", ["vllm"]).mark
        elif mark.name == "parametrize" and mark.args[0] == "shape":
            mark = pytest.mark.parametrize("shape", [one for one in SHAPES if mark.args[1] is not SHAPES]).mark
        marks.append(mark)
    own.pytestmark = marks
    return own  # type: ignore[no-any-return]


def _asked(module: types.ModuleType) -> dict[str, Callable[..., None]]:
    """A module's tests that are about any kind of engine."""
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_") and callable(test)}
    return {
        name: _of_vllm(test)
        for name, test in tests.items()
        if _is_of_any_kind(test) and name not in NOT_VLLMS and not hasattr(test, "hypothesis")
    }


def _is_of_any_kind(test: Callable[..., None]) -> bool:
    code = test.__code__
    return "KINDS" in code.co_names or bool({"kind", "engine"} & set(code.co_varnames[: code.co_argcount]))


for _module in _MODULES:
    globals().update(_asked(_module))


def test_most_of_them_are_asked() -> None:
    assert sum(name.startswith("test_") for name in globals()) > 35
