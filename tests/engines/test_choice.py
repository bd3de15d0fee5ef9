"""The sampling rule, on logits made by hand."""

from __future__ import annotations

import pytest
import torch

from proa.data.sampling import Sampling
from proa.engines.choice import choose
from proa.engines.streams import LARGEST_UNIFORM, uniforms

VOCABULARIES = (5, 256, 257, 1000, 4096)
EXTREMES = torch.tensor([0.0, LARGEST_UNIFORM], dtype=torch.float64)


def _token(logits: torch.Tensor, uniform: float, **settings: float) -> int:
    tokens, _ = choose(logits[None], torch.tensor([uniform], dtype=torch.float64), Sampling(**settings))
    return int(tokens[0])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_token_is_where_the_cumulative_probability_passes_the_uniform_number(vocabulary: int) -> None:
    logits = uniforms(range(50), vocabulary).float() * 6
    numbers = uniforms([99], 50)[0]
    tokens, log_probs = choose(logits, numbers, Sampling(temperature=0.5))
    cumulative = (logits.double() / 0.5).softmax(-1).cumsum(-1)
    for row, token in enumerate(tokens.tolist()):
        assert cumulative[row, token] > numbers[row] - 1e-6
        assert token == 0 or cumulative[row, token - 1] <= numbers[row] + 1e-6
    expected = (logits / 0.5).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(log_probs, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_extremes_of_the_uniform_number_give_the_first_and_last_possible_token(vocabulary: int) -> None:
    logits = torch.full((2, vocabulary), float("-inf"))
    logits[:, 2:-2] = uniforms([3], vocabulary - 4)[0].float()
    tokens, _ = choose(logits, EXTREMES, Sampling())
    assert tokens.tolist() == [2, vocabulary - 3]


def test_worked_examples_of_top_k_and_top_p() -> None:
    """Probabilities 0.1, 0.4, 0.2, 0.3: top-p 0.7 is reached by 0.4 and 0.3, top-p 0.71 needs 0.2 as well."""
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    grid = [0.05, 0.3, 0.55, 0.75, 0.95]
    assert [_token(logits, uniform) for uniform in grid] == [0, 1, 2, 3, 3]
    assert [_token(logits, uniform, top_k=2) for uniform in grid] == [1, 1, 1, 3, 3]
    assert [_token(logits, uniform, top_p=0.69) for uniform in grid] == [1, 1, 1, 3, 3]
    assert [_token(logits, uniform, top_p=0.71) for uniform in grid] == [1, 1, 2, 3, 3]
    assert [_token(logits, uniform, top_k=2, top_p=0.5) for uniform in grid] == [1, 1, 1, 1, 1]
    assert [_token(logits, uniform, top_p=1e-9) for uniform in grid] == [1, 1, 1, 1, 1]


def test_low_temperatures_do_not_overflow() -> None:
    tokens, log_probs = choose(torch.tensor([[1.0, 9.0, 3.0]]), torch.tensor([0.99]), Sampling(temperature=1e-4))
    assert tokens.tolist() == [1]
    assert log_probs.tolist() == [0.0]


def test_rounding_at_the_edges_of_blocks_never_gives_an_impossible_token() -> None:
    """One possible token in each block of 64, and uniform numbers as close to the blocks' edges as can be."""
    weights = torch.zeros(200, 1024)
    weights[:, 30::64] = (-40 * uniforms(range(200), 16)).exp().float()  # so far apart that sums are rounded
    cumulative = weights.double().cumsum(-1)[:, 63::64]
    for edge in range(15):
        numbers = cumulative[:, edge] / cumulative[:, -1]
        for nudged in (
            numbers,
            numbers.nextafter(torch.zeros_like(numbers)),
            numbers.nextafter(torch.ones_like(numbers)),
        ):
            tokens, _ = choose(weights.log(), nudged, Sampling())
            assert bool((tokens % 64 == 30).all())
