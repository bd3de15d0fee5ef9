"""What the model thinks of tokens that it is given: their log-probabilities, and what it would have said instead."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.sampling import Sampling
from ..engines.protocol import Request
from .asked import EchoedToken
from .generation import User, all_of
from .refusals import Refusal

if TYPE_CHECKING:
    from ..rollouts import EngineStream

TOGETHER = 64
"""Sequences that are scored together, at the most. What is decoded waits meanwhile."""
TOKENS_TOGETHER = 16_384
"""Of them together, if each were as long as the longest: it bounds the memory of their cache."""
LIKELIEST_PLACES = 64
"""At so many of a prompt's last tokens the likeliest token is looked for, if it is asked for: each takes a pass over
the tokens before it."""


@dataclass(eq=False, slots=True)
class _Waiting:
    tokens: tuple[int, ...]
    answer: asyncio.Future[list[float]]


class Scoring:
    """An engine's scores. Sequences that are asked for at the same time are scored together."""

    def __init__(self, stream: EngineStream, user: User) -> None:
        self._stream = stream
        self._user = user
        self._ids = itertools.count()
        self._waiting: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None

    async def echoed(self, prompts: Sequence[tuple[int, ...]], *, likeliest: bool) -> list[list[EchoedToken]]:
        """Each token of each prompt."""
        scored = await asyncio.gather(*map(self._log_probs, prompts))
        pairs = list(zip(prompts, scored, strict=True))
        if not likeliest:
            return [_echo(tokens, log_probs, {}) for tokens, log_probs in pairs]
        found = await asyncio.gather(*(self._likeliest(*pair) for pair in pairs))
        return [_echo(*pair, best) for pair, best in zip(pairs, found, strict=True)]

    async def _log_probs(self, tokens: tuple[int, ...]) -> list[float]:
        """Of all tokens but the first."""
        if len(tokens) < 2:
            return []
        waiting = _Waiting(tokens, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await waiting.answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._answer(self._batch())
        finally:
            self._running = None

    def _batch(self) -> list[_Waiting]:
        """Those that have waited longest, as many as are scored together."""
        batch = [self._waiting.popleft()]
        while self._waiting and len(batch) < TOGETHER:
            longest = max(len(self._waiting[0].tokens), *(len(one.tokens) for one in batch))
            if longest * (len(batch) + 1) > TOKENS_TOGETHER:
                break
            batch.append(self._waiting.popleft())
        return [one for one in batch if not one.answer.done()]

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            await self._score(batch)
        except Exception as error:
            if len(batch) > 1:  # the others are not to suffer from one of them
                for one in batch:
                    await self._answer([one])
            elif batch and not batch[0].answer.done():
                batch[0].answer.set_exception(error)

    async def _score(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        scores = await asyncio.to_thread(self._stream.score, [one.tokens for one in batch], self._user.version)
        if scores is None:
            raise Refusal(503, "the server has loaded other weights meanwhile: ask again", retry_after=1)
        for one, found in zip(batch, scores, strict=True):
            if not one.answer.done():
                one.answer.set_result(found.tolist())

    async def _likeliest(self, tokens: tuple[int, ...], log_probs: Sequence[float]) -> dict[int, tuple[int, float]]:
        """By place, what greedy sampling would have chosen. A token with more than half of the probability is that."""
        places = range(max(1, len(tokens) - LIKELIEST_PLACES), len(tokens))
        certain = {place: (tokens[place], score) for place in places if (score := log_probs[place - 1]) > math.log(0.5)}
        open_ = [place for place in places if place not in certain]
        sampling = Sampling(1, max_new_tokens=1, temperature=0.0)
        requests = [Request(f"likeliest {next(self._ids)}", tokens[:place], 0, sampling) for place in open_]
        found = await all_of([self._user.complete(request) for request in requests])
        chosen = [(int(one.tokens[0]), float(one.log_probs[0])) for one in found]
        return certain | dict(zip(open_, chosen, strict=True))


def _echo(
    tokens: tuple[int, ...], log_probs: Sequence[float], likeliest: dict[int, tuple[int, float]]
) -> list[EchoedToken]:
    scores = [None, *log_probs]
    return [EchoedToken(token, scores[place], likeliest.get(place)) for place, token in enumerate(tokens)]
