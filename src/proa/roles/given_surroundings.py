"""Tools, an environment or an agent given as objects, which a configuration can only name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..config.sections import GIVEN
from ..environments.given import EnvironmentSource
from ..errors import SettingError

if TYPE_CHECKING:
    from ..config import DetachedConfig


@dataclass(frozen=True)
class GivenSurroundings:
    """Objects that replace names in the configuration."""

    tools: tuple[Callable[..., Any] | str, ...] | None = None
    environment: Any = None
    agent: Callable[..., Any] | None = None
    recorded: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """In a replay, what environments answered in the original run, by the uid of each trajectory."""

    def source(self, config: DetachedConfig) -> EnvironmentSource:
        """The environments that are given, or named."""
        for key, here, named in (
            ("tools", self.tools, config.tools),
            ("environment.path", self.environment, [config.environment.path]),
            ("agent", self.agent, [config.agent]),
        ):
            missing = [name for name in named if name is not None and GIVEN in name]
            if missing and here is None:
                raise SettingError(
                    f"{key}: {', '.join(missing)} is not here: name it by its dotted path, --{key} package.module:name"
                )
        if config.tools:
            return EnvironmentSource.load(tools=self.tools or config.tools)
        if config.agent is not None:
            return EnvironmentSource.load(agent=self.agent or config.agent)
        section = config.environment
        given = section.path if self.environment is None else self.environment
        return EnvironmentSource.load(environment=given, params=section.params)


NOTHING_GIVEN = GivenSurroundings()
