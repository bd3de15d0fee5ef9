"""Completions of requests, from any engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..data.sampling import Completion, FinishReason, Sampling
from .protocol import Engine, Progress, Request


def generate(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """What comes of these requests, in their order, with the engine to oneself. Where one of them cannot be had, none
    is left in the engine."""
    open_ = {request.id: Collected() for request in requests}
    completions: dict[str, Completion] = {}
    try:
        for request in requests:
            engine.submit(request)
        while len(completions) < len(requests):
            for progress in engine.step():
                if (completion := open_[progress.id].add(progress)) is not None:
                    completions[progress.id] = completion
    except BaseException:
        for request_id in open_:
            engine.cancel(request_id)
        raise
    return [completions[request.id] for request in requests]


class Collected:
    """The tokens of one request as they come."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._log_probs: list[float] = []

    def add(self, progress: Progress) -> Completion | None:
        """Take in what a step added; the completion, if that was the last of it."""
        self._tokens += progress.tokens
        self._log_probs += progress.log_probs
        return None if progress.finish_reason is None else self._completion(progress.finish_reason)

    def _completion(self, finish_reason: FinishReason) -> Completion:
        tokens = torch.tensor(self._tokens, dtype=torch.int64)
        return Completion(tokens, torch.tensor(self._log_probs, dtype=torch.float32), finish_reason)


def group_requests(
    name: str, tokens: Sequence[int], seeds: Sequence[int], sampling: Sampling, version: int = 0
) -> Iterator[Request]:
    """A request for each seed of one prompt."""
    prompt = tuple(tokens)
    for place, seed in enumerate(seeds):
        yield Request(f"{name}/{place}", prompt, seed, sampling, version, group=name)
