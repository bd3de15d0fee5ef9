"""Prompts with several seeds each, and what an engine makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proa.data.sampling import Completion, Sampling
from proa.engines import Engine, generate, group_requests


@dataclass(frozen=True)
class Prompted:
    tokens: tuple[int, ...]
    seeds: tuple[int, ...]


def generated(
    engine: Engine, prompts: Sequence[Prompted], sampling: Sampling, version: int = 0
) -> list[list[Completion]]:
    """A list for each prompt, a completion for each of its seeds."""
    groups = [
        list(group_requests(f"prompt {place}", prompt.tokens, prompt.seeds, sampling, version))
        for place, prompt in enumerate(prompts)
    ]
    completions = iter(generate(engine, [request for group in groups for request in group]))
    return [[next(completions) for _ in group] for group in groups]
