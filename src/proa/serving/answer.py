"""The answer to one request: its completions as choices, whole or in chunks."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from .asked import Asked, EchoedToken, Finished, Piece
from .generation import Ended, Grown, completions_of, events_of
from .texts import TextStream

if TYPE_CHECKING:
    from ..data.sampling import Completion
    from ..engines.protocol import Request
    from .callers import Caller, Plan
    from .served_model import ServedModel


class Answer:
    """What is answered to a caller. Choices are in the order of prompts, `n` for each."""

    def __init__(self, asked: Asked, plans: Sequence[Plan], caller: Caller, model: ServedModel) -> None:
        self._asked = asked
        self._plans = plans
        self._caller = caller
        self._model = model
        self._requests = [request for plan in plans for request in plan.requests]
        self._id = f"{asked.ID}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        echoed: Sequence[Sequence[EchoedToken]] = ()
        if self._asked.scores_prompts:
            prompts = [plan.prompt for plan in self._plans]
            echoed = await self._caller.echoed(prompts, likeliest=self._asked.names_likeliest)
        completions = await completions_of(self._requests, self._caller.user)
        finished = [self._finished(*pair, echoed) for pair in enumerate(completions)]
        self._record(finished)
        choices = [self._asked.choice(one, self._model) for one in finished]
        return {**self._head(self._asked.OBJECT), "choices": choices, "usage": self._usage(finished)}

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The same in pieces, as they come."""
        first = [choice for index in range(len(self._requests)) if (choice := self._asked.first(index)) is not None]
        growing = [_Growing(*pair, self._asked, self._model) for pair in enumerate(self._requests)]
        finished: dict[int, Finished] = {}
        async with contextlib.aclosing(events_of(self._requests, self._caller.user)) as happening:
            async for events in happening:
                if first:  # not before something has come: what the engine refuses is said with its own status
                    yield self._chunk(first)
                    first = []
                choices = []
                for event in events:
                    one = growing[event.index]
                    if isinstance(event, Ended):
                        over = self._finished(event.index, event.completion)
                        finished[event.index] = over
                        choices.append(self._asked.last(over, one.rest(over), self._model))
                    else:
                        one.add(event)
                pieces = [piece for one in growing if (piece := one.take()) is not None]
                choices = [self._asked.piece(piece, self._model) for piece in pieces] + choices
                if len(finished) == len(growing):  # before the client can know that it is over
                    self._record([finished[index] for index in range(len(growing))])
                if choices:
                    yield self._chunk(choices)
        if self._asked.stream_options.include_usage:
            yield {**self._chunk([]), "usage": self._usage(list(finished.values()))}

    def _finished(self, index: int, completion: Completion, echoed: Sequence[Sequence[EchoedToken]] = ()) -> Finished:
        place = index // self._asked.n
        prompt, seed = self._plans[place].prompt, self._requests[index].seed
        return Finished(index, prompt, completion, seed, echoed[place] if echoed else None)

    def _record(self, finished: Sequence[Finished]) -> None:
        for place, plan in enumerate(self._plans):
            own = finished[place * self._asked.n : (place + 1) * self._asked.n]
            said = [self._asked.said(one, self._model) for one in own]
            self._caller.record(plan, [one.completion for one in own], said)

    # -- what is around the choices ------------------------------------------------------------------

    def _head(self, kind: str) -> dict[str, Any]:
        version, first = self._caller.user.version, self._plans[0]
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model.name,
            "system_fingerprint": f"proa-version-{version}",
            "policy_version": version,
            "seed": first.seed,
            **({"enforced": dict(first.enforced)} if first.enforced else {}),
            **self._asked.envelope(self._id, [plan.prompt for plan in self._plans]),
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self._asked.stream_options.include_usage else {}
        return {**self._head(self._asked.CHUNK), "choices": choices, **usage}

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        prompt = sum(len(plan.prompt.tokens) for plan in self._plans)
        completion = sum(len(one.tokens) for one in finished)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(plan.cached for plan in self._plans)},
        }


class _Growing:
    """One completion while it is streamed."""

    def __init__(self, index: int, request: Request, asked: Asked, model: ServedModel) -> None:
        self._index = index
        # What came last may reach beyond a stop text: it waits for what comes next.
        self._waiting = 0 if request.stop_strings is None else 1
        self._asked = asked
        self._text = TextStream(model.tokenizer, asked.stop)
        self._holds = asked.holds_text or model.writes_own_format
        self._new: list[Grown] = []
        self._sent = 0
        self._is_over = False

    def add(self, grown: Grown) -> None:
        self._new.append(grown)

    def take(self) -> Piece | None:
        """What can be said by now; None if that is nothing."""
        certain = len(self._new) - self._waiting
        if self._is_over or self._holds or certain < 1:
            return None
        tokens = [token for grown in self._new[:certain] for token in grown.tokens]
        log_probs = [log_prob for grown in self._new[:certain] for log_prob in grown.log_probs]
        del self._new[:certain]
        self._sent += len(tokens)
        text = self._text.add(tokens)
        return Piece(self._index, text, tokens, log_probs) if text or self._asked.shows_tokens else None

    def rest(self, finished: Finished) -> Piece:
        """What has not been said of it, now that it is over."""
        self._is_over = True
        text = self._text.end(finished.tokens)
        return Piece(self._index, text, finished.tokens[self._sent :], finished.log_probs[self._sent :])
