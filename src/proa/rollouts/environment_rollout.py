"""Trajectories with an environment: turn after turn, as many at once as there are samples."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..data.facts import Ending, TrajectoryFacts
from ..data.reward_limits import fault_of
from ..engines.protocol import Request
from ..environments import Start, Step
from ..environments.failures import EnvironmentFailed, WorkerLostError
from ..rewards.calling import await_result
from .sample import Sample, Turn
from .scoring import scored_trajectories
from .turn_taking import TurnEngine, turns_of

if TYPE_CHECKING:
    from ..data.lease import Prompt
    from ..data.sampling import Completion, Sampling
    from ..environments import Message
    from ..rewards.score import Scorer
    from .conversation import Conversations
    from .progress import Progress
    from .rollout import SamplingEngine
    from .scoring import ModelReward

MOST_TRIES = 3
"""Of one trajectory, if the worker that its environment lives in is lost again and again."""
HEARTBEAT_SECONDS = 1.0
"""How often it is said that a lease moves on while environments are at work: they have deadlines of their own."""


class Surroundings(Protocol):
    """One trajectory's environment, wherever it lives."""

    @property
    def start(self) -> Start: ...
    @property
    def seconds(self) -> float: ...
    async def step(self, message: Message) -> Step: ...
    async def final_reward(self) -> float | None: ...
    async def close(self) -> None: ...


class Environments(Protocol):
    """What has an environment for each trajectory."""

    @property
    def deterministic(self) -> bool: ...
    async def begin(self, row: Mapping[str, Any], *, seed: int, alone: bool = False) -> Surroundings: ...


class Recorded:
    """An environment of which it is known what it answered: another run's, which is repeated."""

    seconds = 0.0

    def __init__(self, answers: Sequence[Any]) -> None:
        if "failed" in answers[0]:
            raise EnvironmentFailed(answers[0]["failed"])
        self.start = Start(**answers[0])
        self._answers = iter(answers[1:])

    async def step(self, message: Message) -> Step:
        return Step(**self._next())

    async def final_reward(self) -> float | None:
        reward: float | None = self._next()["final_reward"]
        return reward

    def _next(self) -> dict[str, Any]:
        answer: dict[str, Any] | None = next(self._answers, None)
        if answer is None:
            raise EnvironmentFailed("the journal has no more answers: the environment failed here")
        return answer

    async def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a trajectory may go."""

    max_turns: int = 8
    max_tokens: int = 2**31
    """Of its conversation as the model sees it, prompt and all."""
    seconds: float = 600.0


class _Group:
    """The trajectories of one prompt: they ask for their first turns together, so that it is computed once."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seed = _environment_seed(seeds[0])
        """Of their environments: they are compared."""
        self._missing = len(seeds)
        self._all_are_here = asyncio.Event()

    def note_one(self) -> None:
        """One more has begun, or will not begin any more."""
        self._missing -= 1
        if self._missing == 0:
            self._all_are_here.set()

    async def wait(self) -> None:
        await self._all_are_here.wait()


@dataclass(eq=False)
class _Trajectory:
    """What there is of a trajectory so far; it is kept whatever ends it."""

    prompt: Prompt
    index: int
    seed: int
    group: _Group
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    tool_calls: int = 0
    tool_errors: int = 0
    environment_tokens: int = 0
    environment_seconds: float = 0.0
    answers: list[Any] = field(default_factory=list)
    ending: Ending = "cancelled"
    error: str | None = None
    kept: str = ""
    """The request that the next turn may continue."""
    tries: int = 1
    is_answered: bool = False
    """Whether its environment is at work."""
    is_counted: bool = False
    """Whether its group knows that it has begun."""

    @property
    def uid(self) -> str:
        return f"{self.prompt.ordinal}/{self.index}"

    def begin_again(self) -> None:
        """As if there had been nothing yet."""
        tries, is_counted = self.tries + 1, self.is_counted
        self.__init__(self.prompt, self.index, self.seed, self.group, tries=tries, is_counted=is_counted)  # type: ignore[misc]

    def note_begun(self) -> None:
        """Once, also if it never does."""
        if not self.is_counted:
            self.is_counted = True
            self.group.note_one()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Its environment is at work inside."""
        self.is_answered = True
        try:
            yield
        finally:
            self.is_answered = False

    def add_turn(
        self, prompt: tuple[int, ...], completion: Completion, version: int, text: str, answer: Message
    ) -> None:
        self.turns.append(Turn(prompt, completion, version, text, message=answer))

    def add_step(self, step: Step) -> None:
        self.turns[-1] = replace(self.turns[-1], reward=step.reward)
        self.tool_calls += step.tool_calls
        self.tool_errors += step.tool_errors

    def add_reward(self, reward: float | None) -> None:
        """What its environment gives in the end, though it was not done."""
        if reward is not None:
            check_reward(reward)
            self.turns[-1] = replace(self.turns[-1], reward=(self.turns[-1].reward or 0.0) + reward)
        self.answers.append({"final_reward": reward})

    def sample(self, *, journaled: bool) -> Sample:
        if journaled and not self.answers:
            self.answers.append({"failed": self.error or self.ending})
        facts = TrajectoryFacts(
            self.ending,
            tuple(self.messages),
            len(self.turns),
            tuple(turn.reward for turn in self.turns),
            self.tool_calls,
            self.tool_errors,
            self.environment_tokens,
            self.environment_seconds,
            tuple(self.answers) if journaled else (),
        )
        return Sample(self.prompt, self.index, self.seed, tuple(self.turns), facts=facts, error=self.error)


class EnvironmentRollout:
    """A rollout of many turns: the model speaks, its environment answers, until one of them is done.

    What comes of a trajectory follows from the weights, its prompt, its seed and what its environment answers, not from
    when: each has its own turns, whoever is slow.
    """

    def __init__(
        self,
        conversations: Conversations,
        sampling: Sampling,
        environments: Environments,
        *,
        limits: Limits,
        recorded: Mapping[str, Sequence[Any]] | None = None,
        scorer: Scorer | None = None,
        model_reward: ModelReward | None = None,
        adds_given: bool = True,
    ) -> None:
        self.sampling = sampling
        self._conversations = conversations
        self._environments = environments
        self._limits = limits
        self._recorded = recorded or {}
        self._stop_strings = conversations.stop_strings(sampling.stop)
        self._scorer = scorer
        self._model_reward = model_reward
        self._adds_given = adds_given

    def run(
        self, engine: SamplingEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], progress: Progress
    ) -> list[Sample]:
        """One sample for each seed of each prompt, those of a prompt together, in order."""
        with turns_of(engine, progress) as turns:
            samples = await_result(self._all(turns, prompts, seeds))
        with progress.scoring():
            return scored_trajectories(samples, self._scorer, self._model_reward, adds_given=self._adds_given)

    async def _all(self, turns: TurnEngine, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]]) -> list[Sample]:
        trajectories = [
            _Trajectory(prompt, index, seed, group)
            for prompt, own in zip(prompts, seeds, strict=True)
            for group in [_Group(own)]
            for index, seed in enumerate(own)
        ]

        def are_answered() -> bool:
            return any(trajectory.is_answered for trajectory in trajectories)

        for _ in trajectories:
            turns.join()
        try:
            async with touching(turns.touch, are_answered), asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._trajectory(turns, one)) for one in trajectories]
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return [task.result() for task in running]

    async def _trajectory(self, turns: TurnEngine, trajectory: _Trajectory) -> Sample:
        """A trajectory to its end, from the beginning again if its environment's worker is lost."""
        alone = False
        try:
            while True:
                try:
                    await self._within_time(turns, trajectory, alone=alone)
                    break
                except WorkerLostError as lost:
                    if trajectory.tries == MOST_TRIES:
                        trajectory.ending, trajectory.error = "tool_failed", f"{lost} (tried {MOST_TRIES} times)"
                        break
                    trajectory.begin_again()
                    alone = alone or lost.was_calling
        finally:
            trajectory.note_begun()
            turns.leave()
        return trajectory.sample(journaled=not self._environments.deterministic)

    async def _within_time(self, turns: TurnEngine, trajectory: _Trajectory, *, alone: bool) -> None:
        surroundings: Surroundings | None = None
        try:
            async with asyncio.timeout(None if alone else self._limits.seconds) as deadline:
                row = {"prompt": trajectory.prompt.text, **trajectory.prompt.columns}
                with trajectory.answering():
                    if (recorded := self._recorded.get(trajectory.uid)) is not None:
                        surroundings = Recorded(recorded)
                    else:
                        surroundings = await self._environments.begin(row, seed=trajectory.group.seed, alone=alone)
                    if alone:  # it may have waited for long until others that are alone had ended
                        deadline.reschedule(asyncio.get_running_loop().time() + self._limits.seconds)
                    trajectory.note_begun()
                    await trajectory.group.wait()
                await self._converse(turns, trajectory, surroundings)
                if trajectory.ending != "finished" and trajectory.turns:
                    trajectory.add_reward(await surroundings.final_reward())
        except EnvironmentFailed as failure:
            trajectory.ending, trajectory.error = failure.ending, str(failure)
        except TimeoutError:
            if not deadline.expired():
                raise
            trajectory.ending = "timed_out"
            trajectory.error = f"it took more than {self._limits.seconds:g} s (environment.trajectory_timeout)"
        finally:
            trajectory.note_begun()
            turns.forget(trajectory.kept)
            if surroundings is not None:
                trajectory.environment_seconds = surroundings.seconds
                await surroundings.close()

    async def _converse(self, turns: TurnEngine, trajectory: _Trajectory, surroundings: Surroundings) -> None:
        start, words = surroundings.start, self._conversations
        tools: Sequence[Any] = start.tools
        trajectory.answers.append({"messages": list(start.messages), "tools": list(tools)})
        trajectory.messages = words.begin(start.messages)
        prompt = words.prompt(trajectory.messages, tools)
        given = prompt
        while True:
            room = min(self.sampling.max_new_tokens, self._limits.max_tokens - len(prompt))
            if room < 1:
                trajectory.ending = "token_limit"
                if not trajectory.turns:
                    trajectory.error = (
                        f"its first prompt has {len(prompt)} tokens, and the limit is {self._limits.max_tokens} "
                        "(environment.max_trajectory_tokens, or the model's context)"
                    )
                return
            completion = await self._turn(turns, trajectory, given, room)
            sampled = completion.tokens.tolist()
            answer = words.message(sampled, tools, prompt=prompt)
            trajectory.add_turn(prompt, completion, turns.version, words.text(sampled), answer)
            before = list(trajectory.messages)
            trajectory.messages.append(answer)
            if completion.finish_reason == "length":
                trajectory.ending = "token_limit"
                return
            with trajectory.answering():
                step = await surroundings.step(answer)
            check_reward(step.reward)
            trajectory.add_step(step)
            trajectory.answers.append(asdict(step))
            trajectory.messages += step.messages
            if step.done or len(trajectory.turns) >= self._limits.max_turns:
                trajectory.ending = "finished" if step.done else "max_turns"
                return
            more = words.after(before, answer, sampled, step.messages, tools)
            if more is None:
                prompt = given = words.prompt(trajectory.messages, tools)
                turns.forget(trajectory.kept)
                trajectory.kept = ""
            else:
                trajectory.environment_tokens += len(more)
                prompt = (*prompt, *sampled, *more)
                given = more if trajectory.kept else prompt

    async def _turn(self, turns: TurnEngine, trajectory: _Trajectory, given: tuple[int, ...], room: int) -> Completion:
        """What the model says next. It may be continued if the engine itself ended it, and has kept what it has."""
        ordinal, number = trajectory.prompt.ordinal, len(trajectory.turns)
        name = f"{ordinal:09}/{trajectory.index:05}/{trajectory.tries}/{number:05}"
        is_last = number + 1 >= self._limits.max_turns
        request = Request(
            name,
            given,
            turn_seed(trajectory.seed, number),
            replace(self.sampling, max_new_tokens=room),
            group="" if number else str(ordinal),
            stop_strings=self._stop_strings,
            continues=trajectory.kept,
            keep=turns.continues and not is_last and self._stop_strings is None,
        )
        try:
            completion = await turns.complete(request)
        except BaseException:
            turns.forget(request.id)
            raise  # what it was to continue may still be kept
        trajectory.kept = request.id if request.keep else ""
        return completion


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn: the first has its sample's, so that one turn is what it is without an environment."""
    if turn == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/turn/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _environment_seed(group_seed: int) -> int:
    digest = hashlib.blake2b(f"{group_seed}/environment".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33  # 31 bits: environments draw from numpy and the like


def check_reward(reward: float | None) -> None:
    """Raise for what cannot be learned from."""
    if reward is not None and (fault := fault_of(reward)):
        raise EnvironmentFailed(f"the environment gave the reward {reward}, {fault}")


@asynccontextmanager
async def touching(touch: Callable[[], None], is_at_work: Callable[[], bool]) -> AsyncIterator[None]:
    """Inside, say now and then that something moves on, while environments are at work: they have deadlines of their
    own."""

    async def touch_often() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if is_at_work():
                touch()

    heartbeat = asyncio.create_task(touch_often())
    try:
        yield
    finally:
        heartbeat.cancel()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
