"""Those who may ask for completions: with which key, whose weights and which seeds."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..data.sampling import Sampling
from ..engines.protocol import Request
from ..engines.stop_strings import StopStrings
from .limits import UnderWay
from .refusals import Refusal

if TYPE_CHECKING:
    from ..data.sampling import Completion
    from ..environments.protocol import Message
    from .asked import Asked, EchoedToken, PromptGiven
    from .generation import User
    from .scoring import Scoring
    from .served_model import ServedModel

_SEED_BITS = 53
"""Numbers in JSON are exact up to these."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one prompt's completions are sampled: a request to the engine for each."""

    prompt: PromptGiven
    requests: tuple[Request, ...]
    sampling: Sampling
    seed: int
    """Which the seeds of all choices follow from."""
    asked: Mapping[str, Any]
    """The settings of sampling that the client gave."""
    enforced: Mapping[str, Any] = field(default_factory=dict)
    """Those of them that are something else here, with what they are."""
    cached: int = 0
    """How many of the prompt's tokens the engine has computed already."""
    continues: str = ""
    """The request that its only request goes on from."""
    count: int = 0
    """How often just this was asked before."""


class Caller:
    """One of them. What it asks is answered and forgotten; a session remembers."""

    def __init__(self, user: User, name: str = "") -> None:
        self.under_way = UnderWay()
        self.user = user
        """Who generates for it, with one version of the weights."""
        self._name = name
        self._ids = itertools.count()

    def chat_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], model: ServedModel
    ) -> tuple[int, ...]:
        """The tokens that the model is given to answer a conversation."""
        if not model.has_template:
            raise Refusal(
                400, "this model has no chat template, so it cannot be asked as a chat: use /v1/completions, or set "
                "chat_template in its tokenizer_config.json", "no_chat_template", "messages",
            )  # fmt: skip
        return model.render(messages, tools)

    @contextmanager
    def planned(self, prompts: Sequence[PromptGiven], asked: Asked, model: ServedModel) -> Iterator[Sequence[Plan]]:
        """The requests for each prompt. They are to be made inside, and what comes of them recorded."""
        seed = secrets.randbits(_SEED_BITS) if asked.seed is None else asked.seed
        seeds = [seed, *(digest_seed(seed, choice) for choice in range(1, asked.n))]
        yield [self._plan(prompt, seed, seeds, asked, model) for prompt in prompts]

    def _plan(self, prompt: PromptGiven, seed: int, seeds: Sequence[int], asked: Asked, model: ServedModel) -> Plan:
        given = asked.given_sampling()
        most = new_tokens(len(prompt.tokens), asked.most_tokens, model.max_new_tokens, model)
        sampling = replace(Sampling(asked.n, most, stop=asked.stop), **given)
        return Plan(prompt, self._requests(prompt.tokens, seeds, sampling, asked, model), sampling, seed, given)

    def _requests(
        self, tokens: tuple[int, ...], seeds: Sequence[int], sampling: Sampling, asked: Asked, model: ServedModel,
        *, continues: str = "", keep: bool = False,
    ) -> tuple[Request, ...]:  # fmt: skip
        """One for each seed; with others of the same prompt it shares what is computed of that."""
        stops = StopStrings(sampling.stop, model.tokenizer) if sampling.stop else None
        names = [f"{self._name}{next(self._ids)}" for _ in seeds]  # of one user there may be several callers
        return tuple(
            Request(
                name, tokens, seed, sampling, group=f"group {names[0]}" if len(seeds) > 1 else "",
                stops=frozenset(asked.stop_token_ids), stop_strings=stops, continues=continues, keep=keep,
            )
            for name, seed in zip(names, seeds, strict=True)
        )  # fmt: skip

    def record(self, plan: Plan, completions: Sequence[Completion], answers: Sequence[Message | None]) -> None:
        """What came of a plan, and the messages that it is answered with, where it was a conversation."""

    async def echoed(self, prompts: Sequence[PromptGiven], *, likeliest: bool) -> Sequence[Sequence[EchoedToken]]:
        """What the model thinks of each token of prompts; with `likeliest`, also what it would say at the last."""
        raise Refusal(400, "log-probabilities of prompts are not to be had here: leave echo out", param="echo")


class Guest(Caller):
    """Whoever has the server's key, or anybody where there is none."""

    def __init__(self, user: User, scoring: Scoring | None = None) -> None:
        super().__init__(user)
        self._scoring = scoring

    async def echoed(self, prompts: Sequence[PromptGiven], *, likeliest: bool) -> Sequence[Sequence[EchoedToken]]:
        if self._scoring is None:
            return await super().echoed(prompts, likeliest=likeliest)
        return await self._scoring.echoed([prompt.tokens for prompt in prompts], likeliest=likeliest)


class Callers(Protocol):
    """Who has which key."""

    def find(self, key: str) -> Caller:
        """The caller with this key, the empty one if none was sent; otherwise a `Refusal`."""
        ...


class OneKey:
    """One key for everybody; without one, everybody is let in."""

    def __init__(self, caller: Caller, key: str | None) -> None:
        self._caller = caller
        self._key = key

    def find(self, key: str) -> Caller:
        if self._key is not None and not hmac.compare_digest(key.encode(), self._key.encode()):
            raise wrong_key(key)
        return self._caller


def wrong_key(key: str) -> Refusal:
    why = "this is not the server's token" if key else "a token is needed"
    return Refusal(401, f"{why}: send the header Authorization: Bearer TOKEN (api_key= in clients)", "invalid_api_key")


def new_key() -> str:
    return f"proa-{secrets.token_urlsafe(24)}"


def new_tokens(prompt: int, asked: int | None, usual: int, model: ServedModel) -> int:
    """How many tokens a completion may have: what was asked for, or what is usual and the context has room for."""
    room = model.context_length - prompt
    if room < 1 or (asked or 0) > room:
        wanted = f" and max_tokens is {asked}" if asked else ""
        raise Refusal(
            400, f"the prompt has {prompt} tokens{wanted}, and the model's context is {model.context_length}: shorten "
            f"the prompt{f', or ask for at most {room}' if room > 0 else ''}", "context_length_exceeded",
            "max_tokens" if room > 0 else None,
        )  # fmt: skip
    return min(usual, room) if asked is None else asked


def digest_seed(*parts: object) -> int:
    """A seed that follows from these.

    >>> digest_seed(1, "a") == digest_seed(1, "a") != digest_seed(1, "b")
    True
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)
