"""What a run's configuration has the model talk to between its turns: tools, an environment, or an agent."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from ..environments.pool import EnvironmentPool
from ..model_shape import context_length
from ..rollouts import Conversations, EnvironmentRollout, Limits
from ..serving import Limits as ServingLimits
from ..serving import ServedModel, Sessions
from ..serving.agents import AgentRollout
from .given_surroundings import NOTHING_GIVEN, GivenSurroundings

if TYPE_CHECKING:
    from ..config import DetachedConfig
    from ..data.sampling import Sampling
    from ..policy.trainable import Trainable
    from ..rewards import Scorer
    from ..rollouts import ModelReward, Rollout
    from ..serving.endpoint import Endpoint


MOST_SEQUENCES = 65_536
"""How many the agents of one maker may request at the same time: practically no limit, as the run sets their number."""


class Surroundings:
    """The environments of one process, and how conversations with them are rendered. `close` ends their workers and
    the endpoint."""

    def __init__(self, config: DetachedConfig, policy: Trainable, given: GivenSurroundings = NOTHING_GIVEN) -> None:
        section = config.environment
        self._pool = EnvironmentPool(
            given.source(config),
            workers=section.workers,
            call_timeout=section.call_timeout,
            step_timeout=section.step_timeout,
            memory_gib=section.memory_gib,
        )
        self._policy = policy
        self._words = Conversations(policy.tokenizer, policy.end_ids, system_prompt=config.task.system_prompt)
        context = context_length(policy.model.config)
        self._context = context or 2**31
        most = min(size for size in (section.max_trajectory_tokens, context, 2**31) if size is not None)
        self._limits = Limits(section.max_turns, most, section.trajectory_timeout)
        self._recorded = given.recorded
        self._sessions: Sessions | None = None
        self._endpoint: Endpoint | None = None
        self._starting = threading.Lock()
        if config.agent is not None:
            self._sessions = Sessions()

    def rollout(
        self,
        sampling: Sampling,
        *,
        scorer: Scorer | None = None,
        model_reward: ModelReward | None = None,
        adds_given: bool = True,
    ) -> Rollout:
        """A rollout whose samples are conversations with the environments or the agent. With `adds_given` the rewards
        that these give are added to those of the scorer."""
        if self._sessions is not None:
            return AgentRollout(
                self._words, sampling, self._pool, self._sessions, self,
                limits=self._limits, recorded=self._recorded, scorer=scorer, model_reward=model_reward,
                adds_given=adds_given,
            )  # fmt: skip
        return EnvironmentRollout(
            self._words, sampling, self._pool,
            limits=self._limits, recorded=self._recorded, scorer=scorer, model_reward=model_reward,
            adds_given=adds_given,
        )  # fmt: skip

    @property
    def base_url(self) -> str:
        """The address of the endpoint that agents of this process talk to, started at the first use: on loopback only,
        with a key for each agent."""
        with self._starting:
            if self._endpoint is None:
                self._endpoint = self._listen()
                weakref.finalize(self, self._endpoint.close)  # an eval's surroundings are never closed
            return self._endpoint.base_url

    def close(self) -> None:
        if self._sessions is not None:
            self._sessions.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._pool.close()

    def _listen(self) -> Endpoint:
        from ..serving.endpoint import Endpoint

        assert self._sessions is not None
        policy, limits = self._policy, self._limits
        embeddings: Any = policy.model.get_input_embeddings()
        model = ServedModel(
            "policy",
            policy.tokenizer,
            end_ids=policy.end_ids,
            context_length=min(self._context, limits.max_tokens),
            vocabulary=int(embeddings.weight.shape[0]),
        )
        return Endpoint(model, self._sessions, limits=ServingLimits(sequences=MOST_SEQUENCES, seconds=limits.seconds))


def surroundings_of(
    config: DetachedConfig, policy: Trainable, given: GivenSurroundings = NOTHING_GIVEN
) -> Surroundings | None:
    """None in a run of single completions. An object that cannot serve as an environment is an error."""
    return Surroundings(config, policy, given) if config.has_environment else None
