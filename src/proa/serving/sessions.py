"""Sessions of agents: each has a key of its own, and all that is sampled for it is recorded as it was sampled."""

from __future__ import annotations

import hmac
import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..data.sampling import Completion, Sampling
from .callers import Caller, Plan, digest_seed, new_tokens, wrong_key
from .refusals import Refusal
from .texts import visible_text

if TYPE_CHECKING:
    from ..environments.protocol import Message
    from .asked import Asked, PromptGiven
    from .generation import User
    from .served_model import ServedModel

_OVER = "this session is over: its key is not valid any more"
MOST_TURNS = 256
KEPT = 4
"""Turns of a session whose cache the engine keeps, the newest: others are computed again where they are continued."""
_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTurn:
    """One completion that was sampled for a session."""

    id: str
    """Of the request."""
    prompt: tuple[int, ...]
    completion: Completion
    version: int
    """Of the weights that sampled it."""
    seed: int
    sampling: Sampling
    """As it was sampled."""
    asked: Mapping[str, Any]
    """The settings of sampling that the client gave."""
    is_neutral: bool
    """Whether it was sampled with the session's settings."""
    count: int
    """How often just this had been asked before."""
    choice: int
    """Its place among the completions that were asked for together."""
    continues: str
    """The turn from whose cache the engine went on; empty if it began anew."""
    messages: tuple[Message, ...] = ()
    """The conversation as it was sent; empty where the prompt was text or tokens."""
    tools: tuple[Mapping[str, Any], ...] = ()
    answer: Message | None = None
    """The message that it was answered with; None where there was no conversation."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end it, beside the model's own."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and what was sampled."""
        return (*self.prompt, *self.completion.tokens.tolist())


def next_prompt(
    turns: Sequence[RecordedTurn],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    model: ServedModel,
) -> tuple[int, ...]:
    """The tokens of a session's next prompt: what was sampled stays as it was sampled where the conversation goes on
    from an earlier turn and the template allows it. Otherwise all of it is rendered."""
    # The longest first; of several alike, which concurrent calls make, the same whichever was answered first.
    for turn in sorted(turns, key=lambda turn: (-len(turn.messages), turn.prompt, turn.count, turn.choice, turn.seed)):
        if not _goes_on(turn, messages, tools, model):
            continue
        end = len(turn.messages)
        sampled = turn.completion.tokens.tolist()
        more = model.after(messages[:end], messages[end], sampled, messages[end + 1 :], tools)
        if more is not None:
            return (*turn.prompt, *sampled, *more)
    return model.render(messages, tools)


def _goes_on(
    turn: RecordedTurn, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], model: ServedModel
) -> bool:
    """Whether a conversation begins with that of a turn and the answer to it, as these were sent."""
    if turn.answer is None or len(messages) < len(turn.messages) + 2 or list(tools) != list(turn.tools):
        return False
    before = [*turn.messages, turn.answer]
    if any(_plain(one) != _plain(other) for one, other in zip(before, messages, strict=False)):
        return False
    stops = turn.asked.get("stop", ())
    sampled = visible_text(turn.completion.tokens.tolist(), model.tokenizer) if stops else ""
    return not any(stop in sampled for stop in stops)  # else the client got less than was sampled


def _plain(message: Message) -> dict[str, Any]:
    """A message without what clients add and leave out as they like: keys without a value."""
    return {key: value for key, value in message.items() if value not in (None, "", [])}


class Session(Caller):
    """One agent's: what it asks is sampled with the run's settings and with seeds that follow from the session's, and
    is recorded.

    A seed does not depend on the order in which concurrent calls arrive: it follows from the prompt's tokens, what else
    was asked (the client's own seed, how many choices, which limits) and how often just that was asked before.
    """

    def __init__(
        self,
        sessions: Sessions,
        number: int,
        key: str,
        user: User,
        *,
        seed: int,
        sampling: Sampling,
        enforce: bool,
        keeps: bool,
        most_turns: int,
    ) -> None:
        super().__init__(user, f"session {number} request ")
        self.key = key
        """The token that requests bring."""
        self._sessions = sessions
        self._number = number
        self._seed = seed
        self._sampling = sampling
        self._enforce = enforce
        self._keeps = keeps
        self._most_turns = most_turns
        self._lock = threading.Lock()
        self._asked: Counter[tuple[object, ...]] = Counter()
        self._turns: list[RecordedTurn] = []
        self._begun = 0
        self.is_spent = False
        """Whether it was refused a turn, having had all that it may have."""
        self.is_full = False
        """Whether the turn that it asked for last was refused: its prompt leaves no room in the model's context."""
        self._kept: dict[str, tuple[int, ...]] = {}
        """Turns that the engine can go on from, by their requests, with their tokens."""
        self._pending: set[str] = set()
        """Requests of plans of which nothing is recorded yet."""

    @property
    def turns(self) -> tuple[RecordedTurn, ...]:
        """What was sampled so far, in the order in which it was answered."""
        with self._lock:
            return tuple(self._turns)

    def close(self) -> tuple[RecordedTurn, ...]:
        """End the session: what is under way is cancelled, what comes later is refused, no cache is kept. All turns."""
        self.under_way.end(Refusal(410, _OVER, "session_over"))
        self._sessions.remove(self._number)
        with self._lock:
            for request_id in self._kept:
                self.user.forget(request_id)
            self._kept.clear()
            return tuple(self._turns)

    # -- what is asked -------------------------------------------------------------------------------

    def chat_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], model: ServedModel
    ) -> tuple[int, ...]:
        return next_prompt(self.turns, messages, tools, model)

    @contextmanager
    def planned(self, prompts: Sequence[PromptGiven], asked: Asked, model: ServedModel) -> Iterator[Sequence[Plan]]:
        plans: list[Plan] = []
        try:
            for prompt in prompts:
                plans.append(self._plan_turn(prompt, asked, model))  # noqa: PERF401 - those before one that is refused
            yield plans
        finally:
            for plan in plans:
                self._give_up(plan)

    def _plan_turn(self, prompt: PromptGiven, asked: Asked, model: ServedModel) -> Plan:
        sampling, given = self._settle(prompt, asked, model)
        # Not the prompt alone: of two calls at the same time that differ in something else either may be the first.
        own = (asked.seed, asked.n, asked.most_tokens, asked.stop, asked.stop_token_ids, *given.items())
        wanted = (prompt.tokens, *own)
        with self._lock:
            if self._begun + asked.n > self._most_turns:
                self.is_spent = True
                so_far = f"a session may have {self._most_turns} completions, and this one has asked for {self._begun}"
                raise Refusal(403, f"{so_far}; this asks for {asked.n} more", "too_many_turns")
            self._begun += asked.n
            count = self._asked[wanted]
            self._asked[wanted] += 1
            continues, cached = self._take_kept(prompt.tokens) if asked.n == 1 else ("", 0)
        base = digest_seed(self._seed, *own, count, ",".join(map(str, prompt.tokens)))
        requests = self._requests(
            prompt.tokens[cached:], [digest_seed(base, choice) for choice in range(asked.n)], sampling, asked, model,
            continues=continues,
            # A request that a stop text ends is cancelled, and nothing is kept of it.
            keep=self._keeps and asked.n == 1 and not sampling.stop,
        )  # fmt: skip
        with self._lock:
            self._pending |= {request.id for request in requests}
        enforced = {name: used for name in given if (used := getattr(sampling, name)) != given[name]}
        said = dict(given) | ({"stop": asked.stop} if asked.stop else {})
        return Plan(prompt, requests, sampling, base, said, enforced, cached, continues, count)

    def _settle(self, prompt: PromptGiven, asked: Asked, model: ServedModel) -> tuple[Sampling, Mapping[str, Any]]:
        """How it is sampled, and what the client gave."""
        if asked.most_tokens == 0:
            raise Refusal(400, "max_tokens is 0, and a turn has at least 1 token", "invalid_value", "max_tokens")
        given = asked.given_sampling()
        limit = self._sampling.max_new_tokens
        wanted = limit if asked.most_tokens is None else min(asked.most_tokens, limit)
        try:
            most = new_tokens(len(prompt.tokens), None, wanted, model)  # fewer where the context has no room for them
        except Refusal:
            self.is_full = True
            raise
        stop = tuple(dict.fromkeys((*self._sampling.stop, *asked.stop)))
        sampling = replace(self._sampling, group_size=asked.n, max_new_tokens=most, stop=stop)
        return sampling if self._enforce else replace(sampling, **given), given

    def _take_kept(self, prompt: tuple[int, ...]) -> tuple[str, int]:
        """The longest turn that is kept and that a prompt begins with: its request, and how many tokens it has. Nobody
        else can go on from it."""
        begins = {name: tokens for name, tokens in self._kept.items() if prompt[: len(tokens)] == tokens}
        if not begins:
            return "", 0
        longest = max(begins, key=lambda name: len(begins[name]))
        return longest, len(self._kept.pop(longest))

    # -- what comes of it ----------------------------------------------------------------------------

    def record(self, plan: Plan, completions: Sequence[Completion], answers: Sequence[Message | None]) -> None:
        is_neutral = all(getattr(plan.sampling, name) == getattr(self._sampling, name) for name in _SETTINGS)
        with self._lock:
            if self.under_way.over is not None:
                raise self.under_way.over
            self.is_full = False
            for choice, (request, completion, answer) in enumerate(
                zip(plan.requests, completions, answers, strict=True)
            ):
                turn = RecordedTurn(
                    request.id, plan.prompt.tokens, completion, self.user.version, request.seed, plan.sampling,
                    plan.asked, is_neutral, plan.count, choice, plan.continues, plan.prompt.messages,
                    plan.prompt.tools, answer, tuple(sorted(request.stops)),
                )  # fmt: skip
                self._turns.append(turn)
                self._pending.discard(request.id)
                if request.keep:
                    self._kept[request.id] = turn.tokens
            while len(self._kept) > KEPT:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self.user.forget(oldest)

    def _give_up(self, plan: Plan) -> None:
        """Nothing is kept of a plan that was not recorded, nor of what it would have gone on from."""
        with self._lock:
            lost = [request.id for request in plan.requests if request.id in self._pending]
            self._pending.difference_update(lost)
        for request_id in [*lost, plan.continues] if lost else []:
            if request_id:
                self.user.forget(request_id)


class Sessions:
    """The open sessions of an endpoint. A key that was given out is known for ever; those of closed sessions cost
    nothing."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._numbers = itertools.count()
        self._open: dict[int, Session] = {}
        self._lock = threading.Lock()

    def open(
        self,
        user: User,
        *,
        seed: int,
        sampling: Sampling,
        enforce: bool = True,
        keeps: bool = True,
        most_turns: int = MOST_TURNS,
    ) -> Session:
        """A session whose completions `user` generates, with its version of the weights.

        What clients ask of temperature, top_p, top_k, min_p and repetition_penalty is replaced by that of `sampling`;
        without `enforce` it is used, and the turns say so. Its `max_new_tokens` is the most that they may ask for.
        Unless it `keeps`, every turn is computed from its beginning.
        """
        with self._lock:
            number = next(self._numbers)
            session = Session(
                self, number, self._key(number), user, seed=seed, sampling=sampling, enforce=enforce, keeps=keeps,
                most_turns=most_turns,
            )  # fmt: skip
            self._open[number] = session
        return session

    def find(self, key: str) -> Caller:
        number = key.removeprefix("session-").partition("-")[0]
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise wrong_key(key)
        if not hmac.compare_digest(key.encode(), self._key(int(number)).encode()):
            raise wrong_key(key)
        with self._lock:
            session = self._open.get(int(number))
        if session is None:
            raise Refusal(410, _OVER, "session_over")
        return session

    def remove(self, number: int) -> None:
        """A session that is over."""
        with self._lock:
            self._open.pop(number, None)

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            sessions = list(self._open.values())
        for session in sessions:
            session.close()

    def _key(self, number: int) -> str:
        """Follows from the number, for whoever has the secret."""
        return f"session-{number}-{hmac.digest(self._secret, str(number).encode(), 'sha256').hex()}"
