"""The output head by hand: gradients against numerical ones, and against autograd's."""

import pytest
import torch

from proa.algorithms import GRPO, PPO, Algorithm, build_algorithm
from proa.algorithms.base import TokenLoss
from proa.policy import head as head_module
from proa.policy.head import HeadSettings, head_statistics

TOKENS, WIDTH, VOCABULARY = 7, 5, 11


def inputs(biased, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, dtype=dtype, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, generator=generator, requires_grad=True)
    bias = torch.randn(VOCABULARY, dtype=dtype, generator=generator, requires_grad=True) if biased else None
    return hidden, weight, bias, torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)


def by_autograd(hidden, weight, bias, tokens, scale):
    log_probs = (torch.nn.functional.linear(hidden, weight, bias) * scale).log_softmax(-1)
    return torch.stack((log_probs.gather(-1, tokens[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1)))


@pytest.mark.parametrize("kept", [0, 10**6])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradients_are_the_numerical_ones(kept, biased, with_entropy, monkeypatch):
    monkeypatch.setattr(head_module, "_KEPT", kept)
    *tensors, tokens = inputs(biased)
    settings = HeadSettings(scale=0.6, chunk_tokens=3, with_entropy=with_entropy)
    assert torch.autograd.gradcheck(
        lambda *given: head_statistics(*given, tokens, settings), tensors, eps=1e-6, atol=1e-7
    )  # fmt: skip


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
def test_values_and_gradients_are_those_of_autograd(chunk_tokens):
    ours, theirs = inputs(True), inputs(True)
    settings = HeadSettings(scale=1.7, chunk_tokens=chunk_tokens, with_entropy=True)
    found, expected = head_statistics(*ours, settings), by_autograd(*theirs, 1.7)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.arange(1.0, 2 * TOKENS + 1, dtype=torch.float64).view(2, TOKENS)
    for statistics in (found, expected):
        (statistics * weights).sum().backward()
    for one, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-11, atol=1e-11)


def test_keeping_logits_changes_no_bit(monkeypatch):
    gradients = []
    for kept in (0, 10**6):
        monkeypatch.setattr(head_module, "_KEPT", kept)
        given = inputs(True, torch.float32)
        head_statistics(*given, HeadSettings(chunk_tokens=2, with_entropy=True)).sum().backward()
        gradients.append([one.grad for one in given[:3]])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_an_entropy_that_is_only_looked_at_has_no_gradient():
    looked_at, alone = inputs(True), inputs(True)
    settings = HeadSettings(with_entropy=True, entropy_gradient=False)
    both = head_statistics(*looked_at, settings)
    assert torch.allclose(both[1], by_autograd(*alone, 1.0)[1])
    both.sum().backward()
    head_statistics(*alone, HeadSettings()).sum().backward()
    for one, other in zip(looked_at[:3], alone[:3], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-13, atol=1e-13)


def test_what_is_frozen_gets_no_gradient():
    hidden, weight, _, tokens = inputs(False)
    weight.requires_grad_(False)
    head_statistics(hidden, weight, None, tokens, HeadSettings()).sum().backward()
    assert weight.grad is None
    assert hidden.grad.any()


def test_whole_chunks_are_computed_where_kernels_are_compiled(monkeypatch):
    seen = []
    describe = head_module._describe
    monkeypatch.setattr(
        head_module, "_compiled",
        lambda function: lambda logits, *rest: (seen.append(len(logits)), function(logits, *rest))[1],
    )  # fmt: skip
    ours, theirs = inputs(True), inputs(True)
    compiled = HeadSettings(chunk_tokens=4, with_entropy=True, is_compiled=True)
    found = head_statistics(*ours, compiled)
    found.sum().backward()
    expected = head_statistics(*theirs, HeadSettings(chunk_tokens=4, with_entropy=True))
    expected.sum().backward()
    assert seen == [4, 4, 4, 4]
    assert describe is head_module._describe
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    for one, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_which_algorithms_train_the_entropy():
    class Own(GRPO):
        def token_loss(self, inputs):
            return TokenLoss(inputs.entropy_BT, {})

    assert not any(build_algorithm(name).trains_entropy for name in ("grpo", "ppo", "dapo", "gspo", "cispo"))
    assert GRPO(entropy_coefficient=0.1).trains_entropy
    assert PPO(entropy_coefficient=0.1).trains_entropy
    assert Own().trains_entropy
    assert issubclass(Own, Algorithm)
