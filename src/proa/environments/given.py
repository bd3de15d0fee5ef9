"""What a user gives for surroundings: tools, an environment, or an agent; checked before anything runs."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..dotted import DottedPathError, name_of, resolve
from ..errors import SettingError
from ..spelling import did_you_mean
from .adapters import adapted, adapter_of
from .adapters.adapter import Adapter
from .methods import MethodTools, method_schemas
from .questions import Deadlines
from .schemas import tool_schema
from .text import described
from .tools import ToolEnvironment, tools_by_name


class Recipe(Protocol):
    """How environments are made where they run."""

    def load(self) -> Callable[..., Any]:
        """What makes an environment for each trajectory, or is the agent."""
        ...

    def longest_step(self, deadlines: Deadlines) -> float:
        """How long code of the user's may run in one step without a pause."""
        ...


@dataclass(frozen=True)
class EnvironmentSource:
    """What answers the model, checked and named."""

    name: str
    deterministic: bool
    recipe: Recipe

    @classmethod
    def load(
        cls,
        *,
        tools: Sequence[Callable[..., Any] | str] = (),
        environment: Any = None,
        params: Mapping[str, Any] | None = None,
        agent: Callable[..., Any] | str | None = None,
    ) -> EnvironmentSource:
        """From typed functions, an environment (a class with its `params`, an object, a factory), or an agent, each
        also by its dotted path. Raises SettingError in the user's words.

        >>> EnvironmentSource.load(environment="proa.environments:ToolEnvironment", params={"functions": []}).name
        'ToolEnvironment'
        """
        given = [name for name, one in {"tools": tools, "environment": environment, "agent": agent}.items() if one]
        if len(given) != 1:
            both = f"{' and '.join(given)} are given" if given else "nothing is given"
            raise SettingError(f"{both}: give tools, an environment or an agent, one of the three")
        if params and environment is None:
            raise SettingError(f"environment.params are given, and no environment: {', '.join(params)}")
        if agent is not None:
            return _of_agent(agent)
        return _of_tools(tools) if tools else _of_environment(environment, dict(params or {}))


@dataclass(frozen=True)
class GivenTools:
    functions: tuple[Callable[..., Any] | str, ...]
    schemas: tuple[Mapping[str, Any], ...]

    def load(self) -> Callable[..., Any]:
        functions = [resolve(one) if isinstance(one, str) else one for one in self.functions]
        return functools.partial(ToolEnvironment, functions, self.schemas)

    def longest_step(self, deadlines: Deadlines) -> float:
        return deadlines.call


@dataclass(frozen=True)
class GivenMaker:
    """A class or factory."""

    target: Callable[..., Any] | str
    params: Mapping[str, Any]
    schemas: tuple[Mapping[str, Any], ...] | None
    """Of its methods that are tools, where they are known."""

    def load(self) -> Callable[..., Any]:
        make = resolve(self.target) if isinstance(self.target, str) else self.target
        return functools.partial(adapted, make, self.params, self.schemas)

    def longest_step(self, deadlines: Deadlines) -> float:
        return max(deadlines.call, deadlines.step)


@dataclass(frozen=True)
class GivenObject:
    """An object, of which each trajectory has a copy."""

    instance: Any
    schemas: tuple[Mapping[str, Any], ...] | None

    def load(self) -> Callable[..., Any]:
        return functools.partial(adapted, functools.partial(copy.deepcopy, self.instance), {}, self.schemas)

    def longest_step(self, deadlines: Deadlines) -> float:
        return max(deadlines.call, deadlines.step)


@dataclass(frozen=True)
class GivenAgent:
    function: Callable[..., Any] | str

    def load(self) -> Callable[..., Any]:
        found: Callable[..., Any] = resolve(self.function) if isinstance(self.function, str) else self.function
        return found

    def longest_step(self, deadlines: Deadlines) -> float:
        return deadlines.step


def _of_tools(tools: Sequence[Callable[..., Any] | str]) -> EnvironmentSource:
    if isinstance(tools, str) or callable(tools):
        raise SettingError(f"tools is {described(tools)}: write a list, [{described(tools)}]")
    functions = [_resolved(one, "tool") for one in tools]
    for given, function in zip(tools, functions, strict=True):
        if not callable(function) or isinstance(function, type):
            raise SettingError(
                f"{described(given)} is not a tool: give a typed function, a method of an object, or the path of one, "
                "'package.module:function'"
            )
    tools_by_name(functions)
    schemas = tuple(tool_schema(one) for one in functions)
    deterministic = all(getattr(one, "deterministic", True) for one in functions)
    return EnvironmentSource("tools", deterministic, GivenTools(tuple(tools), schemas))


def _of_environment(given: Any, params: dict[str, Any]) -> EnvironmentSource:
    found = _resolved(given, "environment")
    if isinstance(found, type):
        _check_parameters(found, params)
        path = given if isinstance(given, str) else None
        maker = GivenMaker(path or found, params, _schemas(found))
        return EnvironmentSource(found.__name__, _is_deterministic(found), maker)
    if inspect.isroutine(found) or isinstance(found, functools.partial):
        _check_parameters(found, params)
        path = given if isinstance(given, str) else None
        return EnvironmentSource(name_of(found), _is_deterministic(found), GivenMaker(path or found, params, None))
    if params:
        raise SettingError(
            f"environment.params {', '.join(params)} are for a class, and {described(given)} is an object"
        )
    try:
        copy.deepcopy(found)
    except Exception as error:  # copying runs the user's code
        raise SettingError(
            f"this {type(found).__name__} cannot be copied, and each trajectory has an environment of its own: "
            f"{type(error).__name__}: {error}. Give its class, and what it is made with as environment.params"
        ) from error
    own = GivenObject(found, _schemas(type(found)))
    return EnvironmentSource(type(found).__name__, _is_deterministic(type(found)), own)


def _of_agent(given: Callable[..., Any] | str) -> EnvironmentSource:
    function = _resolved(given, "agent")
    if not callable(function) or isinstance(function, type):
        raise SettingError(f"{described(given)} is not an agent: write a function agent(base_url, api_key, row)")
    try:
        inspect.signature(function).bind("base_url", "api_key", {})
    except TypeError as error:
        raise SettingError(f"agent {name_of(function)!r} must take (base_url, api_key, row): {error}") from None
    except ValueError:
        pass  # some callables written in C have no signature
    # What it answers depends on services of its own, unless it says otherwise.
    deterministic = bool(getattr(function, "deterministic", False))
    return EnvironmentSource(name_of(function), deterministic, GivenAgent(given))


def _resolved(given: Any, what: str) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return resolve(given)
    except DottedPathError as error:
        raise SettingError(f"{what} {error}") from error


def _is_deterministic(found: Any) -> bool:
    adapter = adapter_of(found) if isinstance(found, type) else None
    return bool(getattr(found, "deterministic", True) and getattr(adapter, "deterministic", True))


def _schemas(kind: type) -> tuple[Mapping[str, Any], ...] | None:
    """Of methods that are tools. They are made here, once: where environments run, importing what makes them would take
    seconds, and much memory."""
    return tuple(method_schemas(kind)) if adapter_of(kind) is MethodTools else None


def _check_parameters(make: Callable[..., Any], params: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(make)
    except (ValueError, TypeError):
        return
    names = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_POSITIONAL]
    adapter = adapter_of(make) if isinstance(make, type) else None
    own = adapter.parameters if adapter is not None and issubclass(adapter, Adapter) else ()
    if not any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        for name in params.keys() - {*names, *own}:
            near = did_you_mean(name, names) or f" (there are: {', '.join(names) or 'none'})"
            raise SettingError(f"environment.params: {name_of(make)} has no parameter {name!r}{near}")
