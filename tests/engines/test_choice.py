"""The sampling rule, on logits made by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

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


def test_worked_examples_of_min_p() -> None:
    """Probabilities 0.1, 0.4, 0.2, 0.3: half of the likeliest is 0.2, three quarters are 0.3."""
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    grid = [0.05, 0.3, 0.55, 0.75, 0.95]
    assert [_token(logits, uniform, min_p=0.49) for uniform in grid] == [1, 1, 2, 3, 3]
    assert [_token(logits, uniform, min_p=0.51) for uniform in grid] == [1, 1, 1, 3, 3]
    assert [_token(logits, uniform, min_p=1.0) for uniform in grid] == [1, 1, 1, 1, 1]
    assert [_token(logits, uniform, top_k=3, min_p=0.1) for uniform in grid] == [1, 1, 2, 3, 3]
    assert [_token(logits, uniform, min_p=1.0, temperature=1e9) for uniform in grid] == [0, 1, 2, 3, 3], "all alike"


def test_worked_example_of_the_repetition_penalty() -> None:
    """Logits 2, 1.5 and -1, of which the first and the last were seen: with a penalty of 2 they are 1, 1.5 and -2."""
    logits, uniform = torch.tensor([[2.0, 1.5, -1.0]]), torch.tensor([0.5])
    penalised = Sampling(temperature=0.0, repetition_penalty=2.0)
    tokens, log_probs = choose(logits, uniform, penalised, [{0, 2}])
    assert tokens.tolist() == [1]
    torch.testing.assert_close(log_probs, logits.log_softmax(-1)[:, 1], atol=0, rtol=0)
    assert choose(logits, uniform, penalised, [{1}])[0].tolist() == [0]


SETTINGS = (
    {"min_p": 0.05}, {"min_p": 0.3, "temperature": 0.6}, {"repetition_penalty": 1.4}, {"repetition_penalty": 0.7},
    {"min_p": 0.1, "repetition_penalty": 1.2, "temperature": 1.7, "top_k": 20, "top_p": 0.8},
)  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [50, 1000])
def test_what_can_be_sampled_is_what_transformers_leaves(vocabulary: int, settings: dict[str, float]) -> None:
    """Every place of the uniform number in a grid, against the cumulative probabilities of transformers' logits."""
    sampling, rows = Sampling(**settings), 40
    logits_BV = (uniforms(range(rows), vocabulary).float() - 0.5) * 12
    texts_BT = (uniforms(range(100, 100 + rows), 30) * vocabulary).long()
    expected_BV = _of_transformers(logits_BV, texts_BT, sampling).double().softmax(-1)
    cumulative_BV = expected_BV.cumsum(-1)
    seen = [set(text) for text in texts_BT.tolist()]
    for number in (torch.arange(64) + 0.5) / 64:
        tokens_B, log_probs_B = choose(logits_BV, number.double().expand(rows), sampling, seen)
        assert (expected_BV.gather(-1, tokens_B[:, None]) > 0).all()
        reached_B = cumulative_BV.gather(-1, tokens_B[:, None])[:, 0]
        assert (reached_B > number - 1e-5).all()
        assert (reached_B - expected_BV.gather(-1, tokens_B[:, None])[:, 0] <= number + 1e-5).all()
        policy_BV = (logits_BV / sampling.temperature).log_softmax(-1)
        torch.testing.assert_close(log_probs_B, policy_BV.gather(-1, tokens_B[:, None])[:, 0], atol=2e-6, rtol=0)


def _of_transformers(logits_BV: torch.Tensor, texts_BT: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    logits_BV = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(texts_BT, logits_BV.clone())
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k:
        logits_BV = TopKLogitsWarper(sampling.top_k)(texts_BT, logits_BV)
    if sampling.top_p < 1:
        logits_BV = TopPLogitsWarper(sampling.top_p)(texts_BT, logits_BV)
    return MinPLogitsWarper(sampling.min_p)(texts_BT, logits_BV)


def test_a_token_that_only_the_penalty_lets_come_has_the_finite_log_probability_of_the_policy() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=50.0)
    tokens, log_probs = choose(torch.tensor([[900.0, 100.0]]), torch.tensor([0.5]), sampling, [{0}])
    assert (tokens.tolist(), log_probs.tolist()) == ([1], [-800.0])


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
