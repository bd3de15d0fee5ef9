"""What a user gives as an environment, found and made."""

from __future__ import annotations

from typing import Any


class EnvironmentSource:
    def __init__(self, make: Any) -> None:
        self.make = make

    @classmethod
    def of_tools(cls, tools: Any) -> EnvironmentSource:
        from ..dotted import resolve
        from .tools import ToolEnvironment

        found = [resolve(one) if isinstance(one, str) else one for one in tools]
        return cls(lambda: ToolEnvironment(found))

    @classmethod
    def of_environment(cls, given: Any, params: Any) -> EnvironmentSource:
        from ..dotted import resolve

        found = resolve(given) if isinstance(given, str) else given
        return cls(lambda: found(**params))

    @classmethod
    def of_agent(cls, given: Any) -> EnvironmentSource:
        raise NotImplementedError
