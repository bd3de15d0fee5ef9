"""Trajectories of agents: functions that talk to the model through an endpoint, as they like."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ..data.facts import Ending, TrajectoryFacts
from ..data.sampling import Sampling
from ..engines.protocol import Request
from ..environments.failures import EnvironmentFailed, WorkerLostError
from ..rewards.calling import await_result
from ..rollouts import StreamUser, VersionedEngine, streaming
from ..rollouts.environment_rollout import MOST_TRIES, Limits, check_reward, touching
from ..rollouts.sample import Sample, Turn
from ..rollouts.scoring import scored_trajectories
from .served_model import template_message
from .sessions import RecordedTurn, Session, Sessions

if TYPE_CHECKING:
    from ..data.lease import Prompt
    from ..rewards.score import Scorer
    from ..rollouts import Conversations, ModelReward, Progress
    from ..rollouts.rollout import SamplingEngine


class Agents(Protocol):
    """What runs an agent, wherever that is."""

    @property
    def deterministic(self) -> bool: ...
    async def run_agent(
        self, base_url: str, api_key: str, row: Mapping[str, Any], *, timeout: float, alone: bool = False
    ) -> float | None: ...


class AgentEndpoint(Protocol):
    @property
    def base_url(self) -> str: ...


class AgentRollout:
    """A rollout in which an agent decides what the model is asked, how often, and what that was worth.

    Each trajectory has a session of its own at the endpoint. An agent that says that it is deterministic has every turn
    computed from its beginning, so that no bit depends on which of its calls came first.
    """

    def __init__(
        self,
        words: Conversations,
        sampling: Sampling,
        agents: Agents,
        sessions: Sessions,
        endpoint: AgentEndpoint,
        *,
        limits: Limits,
        recorded: Mapping[str, Sequence[Any]] | None = None,
        scorer: Scorer | None = None,
        model_reward: ModelReward | None = None,
        adds_given: bool = True,
    ) -> None:
        self.sampling = sampling
        self._words = words
        self._agents = agents
        self._sessions = sessions
        self._endpoint = endpoint
        self._limits = limits
        self._recorded = recorded or {}
        self._scorer = scorer
        self._model_reward = model_reward
        self._adds_given = adds_given

    def run(
        self, engine: SamplingEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], progress: Progress
    ) -> list[Sample]:
        """One sample for each seed of each prompt, those of a prompt together, in order."""
        with _user_of(engine) as user, progress.generating():
            samples = await_result(self._all(user, prompts, seeds))
        with progress.scoring():
            return scored_trajectories(samples, self._scorer, self._model_reward, adds_given=self._adds_given)

    async def _all(self, user: StreamUser, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]]) -> list[Sample]:
        own = [
            (prompt, index, seed)
            for prompt, seeds_ in zip(prompts, seeds, strict=True)
            for index, seed in enumerate(seeds_)
        ]
        async with touching(user.touch, lambda: True):  # they have deadlines of their own
            return list(await asyncio.gather(*(self._trajectory(user, *one) for one in own)))

    async def _trajectory(self, user: StreamUser, prompt: Prompt, index: int, seed: int) -> Sample:
        if (recorded := self._recorded.get(f"{prompt.ordinal}/{index}")) is not None:
            return await self._repeat(user, prompt, index, seed, recorded)
        alone = False
        for _ in range(MOST_TRIES):
            session = self._sessions.open(
                user, seed=seed, sampling=self.sampling, keeps=not self._agents.deterministic,
                most_turns=self._limits.max_turns,
            )  # fmt: skip
            try:
                return await self._with_agent(session, prompt, index, seed, alone=alone)
            except WorkerLostError as lost:
                alone, error = alone or lost.was_calling, f"{lost} (tried {MOST_TRIES} times)"
            finally:
                session.close()
        return self._sample(prompt, index, seed, (), None, "tool_failed", error)

    async def _with_agent(self, session: Session, prompt: Prompt, index: int, seed: int, *, alone: bool) -> Sample:
        reward: float | None = None
        ending: Ending = "finished"
        error: str | None = None
        row = {"prompt": prompt.text, **prompt.columns}
        try:
            reward = await self._agents.run_agent(
                self._endpoint.base_url, session.key, row, timeout=self._limits.seconds, alone=alone
            )
            check_reward(reward)
        except EnvironmentFailed as failure:
            reward, ending, error = None, failure.ending, str(failure)
        turns = session.close()
        if turns and ending == "tool_failed" and (session.is_spent or session.is_full):
            # It was refused another turn, and could not go on.
            ending, error = "max_turns" if session.is_spent else "token_limit", None
        if not turns and error is None:
            error = "the agent never asked the model for anything"
        return self._sample(prompt, index, seed, turns, reward, ending, error)

    def _sample(
        self, prompt: Prompt, index: int, seed: int, answered: Sequence[RecordedTurn], reward: float | None,
        ending: Ending, error: str | None,
    ) -> Sample:  # fmt: skip
        """The turns in an order that does not depend on which were answered first: those of shorter prompts before, and
        of one prompt in the order in which it was asked again. What the agent says it was worth is the last one's."""
        ordered = sorted(answered, key=_place)
        turns = [
            Turn(
                turn.prompt, turn.completion, turn.version, self._words.text(turn.completion.tokens.tolist()),
                message=None if turn.answer is None else template_message(turn.answer),
            )
            for turn in ordered
        ]  # fmt: skip
        if turns and reward is not None:
            turns[-1] = replace(turns[-1], reward=reward)
        conversation: list[Any] = []
        if ordered:
            longest = max(ordered, key=lambda turn: len(turn.messages))
            answer = longest.answer or {"role": "assistant", "content": turns[-1].text}
            # With arguments of calls as values, as those of tools have them, not as JSON, as they are sent.
            conversation = [template_message(message) for message in (*longest.messages, answer)]
        end = {"reward": reward, "ending": ending, "error": error}
        names = {turn.id: str(place) for place, turn in enumerate(ordered)} | {"": ""}
        journaled = () if self._agents.deterministic else (*(_written(turn, names) for turn in ordered), end)
        facts = TrajectoryFacts(
            ending, tuple(conversation), len(turns), tuple(turn.reward for turn in turns), answers=journaled
        )
        return Sample(prompt, index, seed, tuple(turns), facts=facts, error=error)

    async def _repeat(self, user: StreamUser, prompt: Prompt, index: int, seed: int, recorded: Sequence[Any]) -> Sample:
        """The same turns once more, one after the other, without the agent."""
        *asked, end = recorded
        continued = {turn["continues"] for turn in asked}
        answered: list[RecordedTurn] = []
        sampled: dict[str, tuple[int, ...]] = {}
        for turn in asked:
            tokens, before = tuple(turn["prompt"]), turn["continues"]
            stops = tuple(turn["stop_token_ids"])
            sampling = replace(self.sampling, **{**turn["sampling"], "stop": tuple(turn["sampling"]["stop"])})
            request = Request(
                f"repeated {prompt.ordinal}/{index} {turn['id']}",
                tokens[len(sampled[before]) :] if before else tokens,
                turn["seed"],
                sampling,
                stops=frozenset(stops),
                stop_strings=self._words.stop_strings(sampling.stop),
                continues=f"repeated {prompt.ordinal}/{index} {before}" if before else "",
                keep=turn["id"] in continued,
            )
            completion = await user.complete(request)
            sampled[turn["id"]] = (*tokens, *completion.tokens.tolist())
            answered.append(
                RecordedTurn(
                    turn["id"], tokens, completion, user.version, turn["seed"], sampling, {}, True, turn["count"],
                    turn["choice"], before, tuple(turn["messages"]), (), turn["answer"], stops,
                )
            )  # fmt: skip
        return self._sample(prompt, index, seed, answered, end["reward"], end["ending"], end["error"])


@contextmanager
def _user_of(engine: SamplingEngine) -> Iterator[StreamUser]:
    """An engine for whoever asks it, whichever kind it is."""
    if isinstance(engine, StreamUser):
        yield engine
    elif isinstance(engine, VersionedEngine):
        with streaming(engine) as user:
            yield user
    else:
        raise TypeError(f"{type(engine).__name__} is not an engine that agents can ask")


def _place(turn: RecordedTurn) -> tuple[int, bytes, int, int, int]:
    tokens = hashlib.blake2b(",".join(map(str, turn.prompt)).encode(), digest_size=16).digest()
    return len(turn.prompt), tokens, turn.count, turn.choice, turn.seed


def _written(turn: RecordedTurn, names: Mapping[str, str]) -> dict[str, Any]:
    """What the agent asked, for the journal: with it the turn can be sampled again. Turns are named by their places:
    an agent that does the same again has the same journal."""
    sampling = turn.sampling
    return {
        "id": names[turn.id], "prompt": list(turn.prompt), "seed": turn.seed, "count": turn.count,
        "choice": turn.choice, "continues": names[turn.continues], "stop_token_ids": list(turn.stop_token_ids),
        "messages": list(turn.messages), "answer": turn.answer,
        "sampling": {
            "group_size": sampling.group_size, "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k,
            "min_p": sampling.min_p, "repetition_penalty": sampling.repetition_penalty, "stop": list(sampling.stop),
        },
    }  # fmt: skip
