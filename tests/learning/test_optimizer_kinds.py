"""Optimizers with less memory: 8-bit moments, and weights that are trained in bfloat16."""

import json

import pytest
import torch
from tests.small import MODEL_WITH_END
from torch import nn

from proa import recipes
from proa.learning.optimizer import Optimizer, OptimizerError, OptimizerSettings

bitsandbytes = pytest.importorskip("bitsandbytes", reason="8-bit optimizers need bitsandbytes, which is not installed")


def trained(steps=20, **settings):
    """A weight that is large enough to have 8-bit moments, after some steps towards 0."""
    parameter = nn.Parameter(torch.linspace(-1, 1, 128 * 64).view(128, 64).clone())
    optimizer = Optimizer([("weight", parameter)], OptimizerSettings(learning_rate=0.01, **settings), steps)
    for _ in range(steps):
        optimizer.zero_grad()
        optimizer.backward((parameter**2).sum())
        optimizer.step()
    return parameter.detach(), optimizer


def test_moments_take_a_quarter_and_steps_are_nearly_the_same():
    exact, _ = trained()
    rough, optimizer = trained(kind="adamw_8bit")
    assert optimizer.state_dict()["moments"]["weight"]["state1"].dtype == torch.uint8
    # 20 steps of 0.01: blocks of 256 moments in 8 bits are off by 1 % of the largest, and steps by about as much
    assert float((exact - rough).abs().max()) < 0.01
    assert float(rough.abs().mean()) < float(torch.linspace(-1, 1, 128 * 64).abs().mean()) - 0.1


def test_a_saved_state_continues_to_the_same_bits():
    whole, _ = trained(steps=8, kind="adamw_8bit")
    parameter = nn.Parameter(torch.linspace(-1, 1, 128 * 64).view(128, 64).clone())
    settings = OptimizerSettings(learning_rate=0.01, kind="adamw_8bit")
    first = Optimizer([("weight", parameter)], settings, 8)
    for step in range(8):
        if step == 4:
            state = first.state_dict()
            second = Optimizer([("weight", parameter)], settings, 8)
            second.load_state_dict(state)
            first = second
        first.zero_grad()
        first.backward((parameter**2).sum())
        first.step()
    assert torch.equal(parameter, whole)


def test_a_state_of_another_kind_is_refused():
    _, plain = trained(steps=1)
    _, rough = trained(steps=1, kind="adamw_8bit")
    for optimizer, other in ((plain, rough), (rough, plain)):
        with pytest.raises(OptimizerError, match=r"another kind of optimizer: give optimizer\.kind as it was"):
            optimizer.load_state_dict(other.state_dict())


SETTINGS = {
    "model": {"config": {**MODEL_WITH_END, "hidden_size": 64, "intermediate_size": 128}}, "task": "sort_digits",
    "total_steps": 4, "train_batch_size": 8, "optimizer.learning_rate": 1e-3, "optimizer.kind": "adamw_8bit",
    "checkpoint.save_every": 2, "checkpoint.keep": None, "name": "run",
}  # fmt: skip


def test_a_run_with_8_bit_moments_resumes_to_the_same_bits(tmp_path):
    recipes.sft(**SETTINGS, output_dir=str(tmp_path))
    digest = json.loads((tmp_path / "run/run.json").read_text())["weights_digest"]
    recipes.sft(**SETTINGS, output_dir=str(tmp_path), resume="step_2")
    assert json.loads((tmp_path / "run/run.json").read_text())["weights_digest"] == digest


def test_weights_that_are_trained_as_they_are_have_no_masters(bfloat16):
    for state, count in (("float32", 1), ("bfloat16", 0)):
        parameter = nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
        optimizer = Optimizer([("weight", parameter)], OptimizerSettings(learning_rate=1e-6, state=state), 1)
        optimizer.backward((parameter.float() ** 2).sum())
        optimizer.step()
        assert len(optimizer.masters) == count
        moved = optimizer.masters["weight"] if count else parameter.detach()
        assert (float((moved - 1).abs().max()) > 0) == bool(count)  # a step of 1e-6 is lost without them
    assert bfloat16 == "bfloat16"


def test_names_that_there_are_not_are_answered():
    with pytest.raises(OptimizerError, match=r"kind must be one of adamw, .* not 'adamw_8bits'; did you mean"):
        OptimizerSettings(kind="adamw_8bits")
    with pytest.raises(OptimizerError, match=r"state must be one of float32, bfloat16"):
        OptimizerSettings(state="int8")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("proa.learning.optimizer.import_module", missing)
    with pytest.raises(OptimizerError, match=r"pip install 'proa\[8bit\]'"):
        trained(steps=1, kind="adamw_8bit")
