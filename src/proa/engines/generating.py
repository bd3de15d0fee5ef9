"""Completions of requests, from any engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..data.sampling import Completion, FinishReason, Sampling
from .protocol import Engine, Progress, Request
from .stop_strings import StopStrings, StopWatch


def generate(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """The completions of these requests, in their order, on an engine without other callers. If one fails, all are
    cancelled."""
    open_ = {request.id: Collected(request.stop_strings) for request in requests}
    completions: dict[str, Completion] = {}
    try:
        for request in requests:
            engine.submit(request)
        while len(completions) < len(requests):
            for progress in engine.step():
                if progress.id in completions:
                    continue  # it has been cancelled
                if (completion := open_[progress.id].add(progress)) is not None:
                    completions[progress.id] = completion
                    if progress.finish_reason is None:
                        engine.cancel(progress.id)
    except BaseException:
        for request_id in open_:
            engine.cancel(request_id)
        raise
    return [completions[request.id] for request in requests]


class Collected:
    """The tokens of one request as they come, up to the one that completes a stop string."""

    def __init__(self, stop_strings: StopStrings | None = None) -> None:
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._watch = None if stop_strings is None else StopWatch(stop_strings)

    def add(self, progress: Progress) -> Completion | None:
        """Take in a step's progress; returns the completion if this was the last. If the engine has not ended the
        request itself, the caller must cancel it."""
        if self._watch is None:
            self._tokens += progress.tokens
            self._log_probs += progress.log_probs
        else:
            for token, log_prob in zip(progress.tokens, progress.log_probs, strict=True):
                self._tokens.append(token)
                self._log_probs.append(log_prob)
                if self._watch.is_ended_by(token):
                    return self._completion("stop")  # an engine that reports late may have sampled more
        return None if progress.finish_reason is None else self._completion(progress.finish_reason)

    def _completion(self, finish_reason: FinishReason) -> Completion:
        tokens = torch.tensor(self._tokens, dtype=torch.int64)
        return Completion(tokens, torch.tensor(self._log_probs, dtype=torch.float32), finish_reason)


def group_requests(
    name: str,
    tokens: Sequence[int],
    seeds: Sequence[int],
    sampling: Sampling,
    version: int = 0,
    stop_strings: StopStrings | None = None,
) -> Iterator[Request]:
    """A request for each seed of one prompt."""
    prompt = tuple(tokens)
    for place, seed in enumerate(seeds):
        yield Request(f"{name}/{place}", prompt, seed, sampling, version, group=name, stop_strings=stop_strings)
