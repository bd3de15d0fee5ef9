"""Random streams: reproducible, uniform, and unrelated to each other."""

from __future__ import annotations

import torch

from proa.engines.streams import LARGEST_UNIFORM, uniforms


def test_streams_are_splitmix64() -> None:
    """Written out with Python's integers, for one number."""

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        return bits ^ (bits >> 31)

    golden = 0x9E3779B97F4A7C15
    state = mix((12345 + golden) % 2**64)
    expected = [(mix((state + place * golden) % 2**64) >> 12) * 2.0**-52 for place in (1, 2, 3)]
    assert uniforms([12345], 3)[0].tolist() == expected


def test_a_stream_depends_only_on_its_seed() -> None:
    assert torch.equal(uniforms([5, 6, 7], 9)[1], uniforms([6], 20)[0, :9])


def test_seeds_of_any_size_are_taken() -> None:
    streams = uniforms([0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**80 + 3], 4)
    assert bool(((streams >= 0) & (streams < 1)).all())
    assert torch.equal(streams[1], streams[4])  # the same 64 bits


def test_numbers_are_spread_evenly_along_streams_and_across_neighbouring_seeds() -> None:
    """Chi-square over 64 bins: 103.4 is passed by chance once in a thousand."""
    streams = uniforms(range(1000), 1000)
    for numbers in (streams[0], streams[:, 0], streams.flatten()):
        counts = torch.histc(numbers, 64, 0, 1)
        expected = len(numbers) / 64
        assert (counts - expected).square().div(expected).sum() < 103.4
    neighbours = torch.corrcoef(streams[:50])
    assert (neighbours - torch.eye(50)).abs().max() < 0.16


def test_the_largest_number_stays_below_one_after_scaling() -> None:
    totals = torch.rand(10_000, dtype=torch.float64) * 1e3 + 1e-9
    assert bool((totals * LARGEST_UNIFORM < totals).all())
