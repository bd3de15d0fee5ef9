"""Weights in bfloat16 learn what weights in float32 do: float32 masters, moments and sums of gradients."""

import copy

import pytest
import torch

from proa.learning.optimizer import Optimizer, OptimizerError, OptimizerSettings

HALF = torch.bfloat16


def parameters(dtype=HALF):
    """Numbers that both dtypes can hold, so that both start from the same."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"layer.weight": (4, 3), "layer.bias": (4,), "head.weight": (5, 3)}
    drawn = {name: torch.randn(shape, generator=generator).to(HALF) for name, shape in shapes.items()}
    return {name: torch.nn.Parameter(tensor.to(dtype)) for name, tensor in drawn.items()}


def optimizer_of(named, **settings):
    return Optimizer(named.items(), OptimizerSettings(**{"learning_rate": 1e-6, **settings}), 1000)


def take_steps(named, optimizer, steps, first=0, scale=1.0):
    """Steps on the gradients that their numbers give: the same ones in every dtype."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        for parameter in named.values():
            drawn = scale * torch.randn(parameter.shape, generator=generator).to(HALF)
            parameter.grad = drawn.to(parameter.dtype)
        optimizer.step()


def test_tiny_steps_arrive_in_bfloat16_as_they_do_in_float32():
    half, full = parameters(), parameters(torch.float32)
    begun = {name: parameter.detach().float().clone() for name, parameter in half.items()}
    of_half, of_full = optimizer_of(half), optimizer_of(full)
    take_steps(half, of_half, 200)
    take_steps(full, of_full, 200)
    for name, parameter in full.items():
        assert torch.equal(of_half.masters[name], parameter.detach())
        assert torch.equal(half[name], parameter.detach().to(HALF))  # rounded once, from what is exact
        assert (of_half.masters[name] != begun[name]).all()  # each is far less than bfloat16's last place


def test_a_second_moment_falls_again_when_gradients_do():
    named = parameters()
    optimizer = optimizer_of(named)
    take_steps(named, optimizer, 1)
    before = copy.deepcopy(optimizer.state_dict()["moments"])
    take_steps(named, optimizer, 20, first=1, scale=0.0)  # in bfloat16 0.999 times a number is that number
    for name, moments in optimizer.state_dict()["moments"].items():
        assert moments["exp_avg_sq"].dtype == torch.float32
        assert (moments["exp_avg_sq"] < before[name]["exp_avg_sq"]).all()


def test_gradients_of_micro_batches_are_added_up_in_float32():
    """256 and 1 are a bfloat16 each; their sum, 257, is not, and would be 256 however often 1 were added."""
    weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=HALF))
    optimizer = Optimizer([("weight", weight)], OptimizerSettings(max_grad_norm=0), 10)
    for factor in (256.0, *[1.0] * 8):
        optimizer.backward((weight * factor).sum())
    assert torch.equal(optimizer.parameters[0].grad, torch.full((2, 2), 264.0))
    assert optimizer.step().grad_norm == pytest.approx(528.0)  # the root of four times 264 squared


def test_a_gradient_that_somebody_left_in_the_parameter_counts_too():
    named = parameters()
    optimizer = optimizer_of(named)
    (named["layer.bias"] * 2.0).sum().backward()  # not through the optimizer
    assert optimizer.step().grad_norm == pytest.approx(4.0)
    assert named["layer.bias"].grad is None


def test_resuming_is_bitwise_in_the_masters():
    named = parameters()
    optimizer = optimizer_of(named)
    take_steps(named, optimizer, 30)
    saved = copy.deepcopy(optimizer.state_dict())
    again = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in named.items()}
    resumed = optimizer_of(again)
    resumed.load_state_dict(saved)
    take_steps(named, optimizer, 30, first=30)
    take_steps(again, resumed, 30, first=30)
    for name, master in optimizer.masters.items():
        assert torch.equal(resumed.masters[name], master)
        assert torch.equal(again[name], named[name])


def test_a_state_without_masters_is_resumed_from_the_rounded_weights_and_said(caplog):
    """As version 0.1 wrote it: moments in bfloat16 and nothing else."""
    named = parameters()
    optimizer = optimizer_of(named)
    take_steps(named, optimizer, 3)
    old = {key: value for key, value in copy.deepcopy(optimizer.state_dict()).items() if key != "masters"}
    for moments in old["moments"].values():
        moments |= {key: moments[key].to(HALF) for key in ("exp_avg", "exp_avg_sq")}
    again = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in named.items()}
    resumed = optimizer_of(again)
    resumed.load_state_dict(old)
    assert "was trained in bfloat16 without float32 weights" in caplog.text
    for name, parameter in again.items():
        assert torch.equal(resumed.masters[name], parameter.detach().float())
    assert {m["exp_avg"].dtype for m in resumed.state_dict()["moments"].values()} == {torch.float32}


def test_masters_of_another_shape_or_of_none_are_refused():
    named = parameters()
    saved = copy.deepcopy(optimizer_of(named).state_dict())
    saved["masters"]["layer.bias"] = torch.zeros(7)
    with pytest.raises(OptimizerError, match=r"layer.bias was \(7,\) and is \(4,\)"):
        optimizer_of(parameters()).load_state_dict(saved)
    del saved["masters"]["layer.bias"]
    with pytest.raises(OptimizerError, match="the float32 weights of layer.bias are missing"):
        optimizer_of(parameters()).load_state_dict(saved)


def test_a_state_of_a_run_in_another_dtype_is_refused():
    half, full = optimizer_of(parameters()), optimizer_of(parameters(torch.float32))
    with pytest.raises(
        OptimizerError, match="float32 weights of head.weight beside the model's.*model.dtype as it was"
    ):
        full.load_state_dict(copy.deepcopy(half.state_dict()))
    with pytest.raises(OptimizerError, match="float32 weights of head.weight are missing.*model.dtype as it was"):
        half.load_state_dict(copy.deepcopy(full.state_dict()))


def test_a_step_that_is_skipped_changes_no_master():
    named = parameters()
    optimizer = optimizer_of(named)
    take_steps(named, optimizer, 2)
    before = copy.deepcopy(optimizer.masters)
    optimizer.zero_grad()
    named["head.weight"].grad = torch.full((5, 3), float("inf"), dtype=HALF)
    assert optimizer.step().skipped == "the gradient of head.weight is not finite"
    assert all(torch.equal(optimizer.masters[name], master) for name, master in before.items())


def test_weights_that_a_hook_changes_between_steps_are_what_is_trained_on():
    named = parameters()
    optimizer = optimizer_of(named)
    take_steps(named, optimizer, 5)
    kept = optimizer.masters["layer.bias"][1:].clone()
    with torch.no_grad():
        named["layer.bias"].data[0] = 5.0
    optimizer.zero_grad()
    optimizer.step()
    assert abs(float(optimizer.masters["layer.bias"][0]) - 5.0) < 1e-4
    assert (optimizer.masters["layer.bias"][1:] - kept).abs().max() < 1e-4
    assert named["layer.bias"].tolist()[0] == 5.0


def test_weights_that_a_hook_changed_after_the_last_step_are_what_is_saved():
    named = parameters()
    optimizer = optimizer_of(named)
    take_steps(named, optimizer, 5)
    named["layer.bias"].data[0] = 5.0
    assert optimizer.state_dict()["masters"]["layer.bias"][0] == 5.0


def test_weights_in_float32_and_more_have_no_masters():
    for dtype in (torch.float32, torch.float64):
        named = parameters(dtype)
        optimizer = optimizer_of(named)
        assert optimizer.masters == {}
        assert all(ours is theirs for ours, theirs in zip(optimizer.parameters, named.values(), strict=True))
