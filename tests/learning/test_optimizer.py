"""The optimizer: schedules, clipping, exact resume, and steps that a non-finite number cannot poison."""

import copy
import io
import math
import pickle

import pytest
import torch

from proa.learning.optimizer import (
    Optimizer,
    OptimizerError,
    OptimizerSettings,
    TooManySkippedSteps,
    learning_rate_at,
)


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return {
        "layer.weight": torch.nn.Parameter(torch.randn(4, 3, generator=generator).to(dtype)),
        "layer.bias": torch.nn.Parameter(torch.randn(4, generator=generator).to(dtype)),
        "norm.weight": torch.nn.Parameter(torch.ones(3, dtype=dtype)),
        "head.weight": torch.nn.Parameter(torch.randn(5, 3, generator=generator).to(dtype)),
    }


def optimizer_of(named, *, total_steps=20, **settings):
    return Optimizer(named.items(), OptimizerSettings(**{"learning_rate": 0.1, **settings}), total_steps)


def fill_gradients(named, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def snapshot(named, optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    return [p.detach().clone() for p in named.values()], state["moments"]


def bitwise_equal(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(bitwise_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(bitwise_equal, left, right))
    return left == right


# Schedules


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        # after three steps of warm-up, four of decay from 1 to 0.2, and 0.2 from then on
        ("linear", [0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        # 0.2 + 0.8 * (1 + cos(pi * progress)) / 2 at progress 0, 1/4, 1/2, 3/4, 1
        ("cosine", [0.25, 0.5, 0.75, 1.0, 0.8828427, 0.6, 0.3171573, 0.2, 0.2]),
    ],
)
def test_schedules_at_points_worked_out_by_hand(schedule, expected):
    settings = OptimizerSettings(learning_rate=2.0, schedule=schedule, warmup_steps=3, final_share=0.2)
    rates = [learning_rate_at(step, settings, total_steps=7) for step in range(9)]
    assert rates == pytest.approx([2.0 * share for share in expected], abs=1e-6)


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert learning_rate_at(0, OptimizerSettings(learning_rate=3.0, schedule="cosine"), total_steps=1) == 3.0


def test_a_warm_up_longer_than_the_run_only_rises():
    settings = OptimizerSettings(learning_rate=1.0, schedule="linear", warmup_steps=9)
    assert [learning_rate_at(step, settings, total_steps=3) for step in range(3)] == pytest.approx([0.1, 0.2, 0.3])


def test_a_step_uses_the_schedules_rate_and_says_so():
    named = {"only": torch.nn.Parameter(torch.zeros(1))}
    optimizer = optimizer_of(named, learning_rate=1.0, schedule="linear", total_steps=2, epsilon=1e-30)
    for rate, weight in ((1.0, -1.0), (0.5, -1.5)):  # with a constant gradient Adam moves by the rate itself
        named["only"].grad = torch.ones(1)
        assert optimizer.step().learning_rate == rate
        assert named["only"].item() == pytest.approx(weight)


# Updates


def test_a_step_is_torchs_adamw_after_torchs_clipping_bit_for_bit():
    ours, theirs = parameters(), parameters()
    optimizer = optimizer_of(ours, weight_decay=0.1, betas=(0.8, 0.95), epsilon=1e-6, max_grad_norm=0.5)
    decayed, kept = ["layer.weight", "head.weight"], ["layer.bias", "norm.weight"]
    reference = torch.optim.AdamW(
        [
            {"params": [theirs[name] for name in decayed], "weight_decay": 0.1},
            {"params": [theirs[name] for name in kept], "weight_decay": 0.0},
        ],
        lr=0.1, betas=(0.8, 0.95), eps=1e-6, foreach=False,
    )  # fmt: skip
    for step, scale in enumerate((3.0, 0.001, 1.0)):
        for named in (ours, theirs):
            fill_gradients(named, step, scale)
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5, foreach=False)
        reference.step()
        outcome = optimizer.step()
        assert outcome.grad_norm == norm.item()
        assert outcome.skipped is None
        assert all(torch.equal(ours[name].grad, theirs[name].grad) for name in ours)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_max_grad_norm_of_0_clips_nothing():
    named = parameters()
    optimizer = optimizer_of(named, max_grad_norm=0.0)
    fill_gradients(named, 0, scale=50.0)
    before = [parameter.grad.clone() for parameter in named.values()]
    assert optimizer.step().grad_norm > 50
    assert bitwise_equal(before, [parameter.grad for parameter in named.values()])


def test_biases_and_norms_are_not_decayed():
    named = parameters()
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    optimizer = optimizer_of(named, weight_decay=0.5)
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = {name for name in named if not torch.equal(named[name], before[name])}
    assert changed == {"layer.weight", "head.weight"}


def test_zero_grad_forgets_the_gradients():
    named = parameters()
    optimizer = optimizer_of(named)
    fill_gradients(named, 0)
    optimizer.zero_grad()
    before = snapshot(named, optimizer)
    assert optimizer.step().grad_norm == 0.0
    assert bitwise_equal(before, snapshot(named, optimizer))


def test_frozen_parameters_stay_as_they_are():
    named = parameters()
    named["head.weight"].requires_grad_(False)
    optimizer = optimizer_of(named, weight_decay=0.5)
    before = named["head.weight"].clone()
    fill_gradients({name: named[name] for name in named if name != "head.weight"}, 0)
    optimizer.step()
    assert torch.equal(named["head.weight"], before)


# Steps that are skipped


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_non_finite_gradient_reaches_neither_weights_nor_moments(poison, steps_before):
    named = parameters()
    optimizer = optimizer_of(named)
    for step in range(steps_before):
        fill_gradients(named, step)
        optimizer.step()
    before = snapshot(named, optimizer)
    fill_gradients(named, 9)
    named["norm.weight"].grad[1] = poison
    outcome = optimizer.step()
    assert bitwise_equal(before, snapshot(named, optimizer))
    assert not math.isfinite(outcome.grad_norm)
    finite = math.isfinite(poison)  # 3e38 is, its square is not
    words = "the norm of the gradient is too large" if finite else "the gradient of norm.weight is not finite"
    assert words in outcome.skipped


def test_a_non_finite_loss_reaches_neither_weights_nor_moments_although_its_gradient_is_finite():
    named = parameters()
    optimizer = optimizer_of(named)
    fill_gradients(named, 0)
    before = snapshot(named, optimizer)
    outcome = optimizer.step(loss_is_finite=False)
    assert bitwise_equal(before, snapshot(named, optimizer))
    assert outcome.skipped == "the loss is not finite"
    assert math.isfinite(outcome.grad_norm)


def test_skipped_steps_are_counted_and_a_good_one_ends_the_row():
    named = parameters()
    optimizer = optimizer_of(named)
    counts = []
    for step, finite in enumerate((True, False, False, True, False)):
        fill_gradients(named, step)
        optimizer.step(loss_is_finite=finite)
        counts.append((optimizer.skipped_steps, optimizer.skipped_in_a_row))
    assert counts == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]


def test_the_schedule_goes_on_over_skipped_steps():
    named = parameters()
    optimizer = optimizer_of(named, learning_rate=1.0, schedule="linear", total_steps=4)
    fill_gradients(named, 0)
    rates = [optimizer.step(loss_is_finite=finite).learning_rate for finite in (True, False, False, True)]
    assert rates == [1.0, 0.75, 0.5, 0.25]
    assert optimizer.steps == 4


def test_past_the_limit_the_run_stops_and_names_the_first_parameter_with_a_non_finite_gradient():
    named = parameters()
    optimizer = optimizer_of(named, max_skipped_steps=2)
    fill_gradients(named, 0)
    before = snapshot(named, optimizer)
    for name in ("head.weight", "layer.bias"):
        named[name].grad.view(-1)[0] = math.nan
    assert optimizer.step().skipped == "the gradient of layer.bias is not finite"
    assert optimizer.step().skipped == "the gradient of layer.bias is not finite"
    with pytest.raises(TooManySkippedSteps, match="3 steps in a row.*the loss is not finite and the gradient of layer"):
        optimizer.step(loss_is_finite=False)
    assert bitwise_equal(before, snapshot(named, optimizer))
    assert optimizer.skipped_steps == 3


def test_with_no_step_to_skip_the_first_bad_one_stops_the_run():
    named = parameters()
    with pytest.raises(TooManySkippedSteps, match="max_skipped_steps is 0: in the last of them the loss is not finite"):
        optimizer_of(named, max_skipped_steps=0).step(loss_is_finite=False)


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(TooManySkippedSteps("3 steps")))
    assert isinstance(error, TooManySkippedSteps)
    assert str(error) == "3 steps"


# Resume


def run(named, optimizer, steps):
    outcomes = []
    for step in steps:
        fill_gradients(named, step)
        outcomes.append(optimizer.step(loss_is_finite=step != 4))
    return outcomes


@pytest.mark.parametrize("stopped_at", [0, 1, 5])
def test_a_resumed_run_goes_on_bit_for_bit(stopped_at):
    # Nothing is clipped: a norm summed over parameters in another order may differ in its last bit.
    settings = {"schedule": "cosine", "warmup_steps": 2, "total_steps": 9, "weight_decay": 0.01, "max_grad_norm": 0.0}
    named = parameters()
    optimizer = optimizer_of(named, **settings)
    whole = run(named, optimizer, range(9))

    halted = parameters()
    first = optimizer_of(halted, **settings)
    run(halted, first, range(stopped_at))
    file = io.BytesIO()
    torch.save({"weights": halted, "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = dict(reversed(saved["weights"].items()))  # names hold, whatever the order
    second = optimizer_of(resumed, **settings)
    second.load_state_dict(saved["optimizer"])
    rest = run({name: resumed[name] for name in named}, second, range(stopped_at, 9))

    assert [outcome.learning_rate for outcome in rest] == [o.learning_rate for o in whole[stopped_at:]]
    assert all(torch.equal(named[name], resumed[name]) for name in named)
    assert bitwise_equal(optimizer.state_dict()["moments"], second.state_dict()["moments"])
    for counter in ("steps", "skipped_steps", "skipped_in_a_row"):
        assert getattr(optimizer, counter) == getattr(second, counter)


def test_a_row_of_skipped_steps_goes_on_over_a_resume():
    optimizer, resumed = (optimizer_of(parameters(), max_skipped_steps=1) for _ in range(2))
    optimizer.step(loss_is_finite=False)
    resumed.load_state_dict(optimizer.state_dict())
    with pytest.raises(TooManySkippedSteps, match="2 steps in a row"):
        resumed.step(loss_is_finite=False)


def test_two_optimizers_of_one_state_do_not_share_it():
    named, other = parameters(), parameters()
    optimizer, twin = optimizer_of(named), optimizer_of(other)
    run(named, optimizer, [0])
    twin.load_state_dict(optimizer.state_dict())
    before = snapshot(other, twin)
    run(named, optimizer, [1])
    assert bitwise_equal(before, snapshot(other, twin))


def test_a_resumed_run_obeys_settings_that_were_changed():
    named = parameters()
    saved = optimizer_of(named, weight_decay=0.0)
    run(named, saved, [0])
    resumed = optimizer_of(named, weight_decay=0.5)
    resumed.load_state_dict(saved.state_dict())
    resumed.step()
    twin = optimizer_of(again := parameters(), weight_decay=0.0)
    run(again, twin, [0])
    twin.step()
    assert not torch.equal(named["head.weight"], again["head.weight"])
    assert resumed.state_dict()["steps"] == 2


def test_a_state_of_other_parameters_is_refused():
    state = optimizer_of(parameters()).state_dict()
    fewer = {name: parameter for name, parameter in parameters().items() if name != "layer.bias"}
    with pytest.raises(OptimizerError, match="of other parameters: layer.bias is only in one"):
        optimizer_of(fewer).load_state_dict(state)


def test_a_state_of_other_shapes_is_refused():
    named = parameters()
    optimizer = optimizer_of(named)
    run(named, optimizer, [0])
    other = {**parameters(), "head.weight": torch.nn.Parameter(torch.zeros(6, 3))}
    with pytest.raises(OptimizerError, match=r"head.weight was \(5, 3\) and is \(6, 3\)"):
        optimizer_of(other).load_state_dict(optimizer.state_dict())


# Words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate": 0}, "learning_rate must be a number above 0, not 0"),
        ({"learning_rate": "3e-5"}, "learning_rate must be a number above 0, not '3e-5'"),
        ({"learning_rate": math.nan}, "learning_rate must be a number above 0, not nan"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers from 0 to below 1"),
        ({"betas": (0.9,)}, "betas must be two numbers from 0 to below 1"),
        ({"epsilon": 0.0}, "epsilon must be a number above 0"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more, not -0.1"),
        ({"schedule": "cosin"}, "schedule must be one of constant, linear, cosine, not 'cosin'; did you mean 'cosine'"),
        ({"warmup_steps": -1}, "warmup_steps must be 0 or more"),
        ({"final_share": 1.5}, "final_share must be from 0 to 1, not 1.5"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be above 0, or 0 to clip nothing, not -1.0"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be above 0, or 0 to clip nothing, not inf"),
        ({"max_skipped_steps": -1}, "max_skipped_steps must be 0 or more"),
    ],
)
def test_bad_settings_are_refused_in_clear_words(settings, words):
    with pytest.raises(OptimizerError, match=words):
        OptimizerSettings(**settings)


def test_a_run_of_no_steps_nothing_to_train_and_float16_are_refused():
    with pytest.raises(OptimizerError, match="total_steps must be at least 1, not 0"):
        optimizer_of(parameters(), total_steps=0)
    with pytest.raises(OptimizerError, match="no parameter requires a gradient"):
        optimizer_of({"a": torch.nn.Parameter(torch.zeros(1), requires_grad=False)})
    with pytest.raises(OptimizerError, match="layer.weight is float16, in which small gradients are 0"):
        optimizer_of(parameters(torch.float16))
