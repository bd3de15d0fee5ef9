"""What answers a run's model between its turns, as its configuration says: tools, an environment, or an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..environments.given import EnvironmentSource
from ..environments.pool import EnvironmentPool
from ..model_shape import context_length
from .conversation import Conversations
from .environment_rollout import EnvironmentRollout, Limits

if TYPE_CHECKING:
    from ..config import DetachedConfig
    from ..data.sampling import Sampling
    from ..policy.trainable import Trainable
    from ..rewards import Scorer
    from .scoring import ModelReward


@dataclass(frozen=True)
class GivenSurroundings:
    """Objects in place of what the configuration can only name."""

    tools: tuple[Callable[..., Any] | str, ...] | None = None
    environment: Any = None
    agent: Callable[..., Any] | None = None
    recorded: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """What environments answered in a run that is repeated, by the uid of each trajectory."""

    def source(self, config: DetachedConfig) -> EnvironmentSource:
        """The environments that are given, or named."""
        if config.tools:
            return EnvironmentSource.of_tools(self.tools or config.tools)
        if config.agent is not None:
            return EnvironmentSource.of_agent(self.agent or config.agent)
        section = config.environment
        given = section.path if self.environment is None else self.environment
        return EnvironmentSource.of_environment(given, section.params)


NOTHING_GIVEN = GivenSurroundings()


@dataclass(frozen=True)
class Surroundings:
    """The environments of one process, and how conversations with them are rendered. `close` ends their processes."""

    environments: EnvironmentPool
    conversations: Conversations
    limits: Limits
    recorded: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def rollout(
        self, sampling: Sampling, *, scorer: Scorer | None = None, model_reward: ModelReward | None = None
    ) -> EnvironmentRollout:
        return EnvironmentRollout(
            self.conversations,
            sampling,
            self.environments,
            limits=self.limits,
            recorded=self.recorded,
            scorer=scorer,
            model_reward=model_reward,
        )

    def close(self) -> None:
        self.environments.close()


def surroundings_of(
    config: DetachedConfig, policy: Trainable, given: GivenSurroundings = NOTHING_GIVEN
) -> Surroundings | None:
    """None in a run of single completions. What cannot be used as an environment is refused."""
    if not config.has_environment:
        return None
    section = config.environment
    pool = EnvironmentPool(
        given.source(config),
        workers=section.workers,
        call_timeout=section.call_timeout,
        step_timeout=section.step_timeout,
        memory_gib=section.memory_gib,
    )
    context = context_length(policy.model.config)
    most = min(size for size in (section.max_trajectory_tokens, context, 2**31) if size is not None)
    words = Conversations(policy.tokenizer, policy.end_ids, system_prompt=config.task.system_prompt)
    limits = Limits(section.max_turns, most, section.trajectory_timeout)
    return Surroundings(pool, words, limits, given.recorded)
