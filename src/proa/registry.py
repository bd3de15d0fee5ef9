"""Finds what a configuration names: what comes with Proa, what another package adds by entry point, what code has
registered, or something of the user's by dotted path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .dotted import DottedPathError, check_module, resolve
from .errors import ProaError
from .spelling import did_you_mean


@dataclass(frozen=True)
class Registry:
    """The names that one key of a configuration may have.

    >>> functions = Registry("function", "proa.functions", {"floor": "math:floor"})
    >>> functions.find("floor") is functions.find("math:floor")
    True
    """

    what: str
    """What is named, for error messages, e.g. `callback kind`."""
    group: str
    """The entry point group of other packages."""
    shipped: Mapping[str, str]
    """Dotted paths of what comes with Proa, by name."""
    error: type[ProaError] = DottedPathError
    registered: dict[str, Any] = field(default_factory=dict)
    """Added from code."""

    def register(self, name: str, thing: Any) -> None:
        if name in self.names():
            raise self.error(f"{self.what} {name!r} is taken")
        self.registered[name] = thing

    def names(self) -> dict[str, str]:
        """Every name there is and where it comes from, without importing any."""
        plugins = {name: point.value for name, point in self._plugins().items() if name not in self.shipped}
        registered = {name: getattr(thing, "__module__", "?") for name, thing in self.registered.items()}
        return {**self.shipped, **plugins, **registered}

    def find(self, name: str, *, others: Collection[str] = ()) -> Any:
        """What has that name, or lies at that dotted path; its module is imported.

        `others` are names that mean something else to the caller; they are suggested too.
        """
        if name in self.registered:
            return self.registered[name]
        if name in self.shipped:
            return resolve(self.shipped[name])
        plugin = self._plugins().get(name)
        if plugin is not None:
            return self._load(name, plugin)
        if not _is_dotted(name):
            raise self._unknown(name, others)
        self.check(name)
        try:
            return resolve(name)
        except DottedPathError as error:
            raise self.error(f"{self.what} {error}") from error

    def check(self, name: str, *, others: Collection[str] = ()) -> None:
        """Raise where nothing can have that name: it is unknown, and not a dotted path to a package that is there.
        Nothing is imported."""
        if name in self.names() or name in others:
            return
        if not _is_dotted(name):
            raise self._unknown(name, others)
        try:
            check_module(name)
        except DottedPathError as error:
            raise self.error(f"{self.what} {error}") from error

    def _unknown(self, name: str, others: Collection[str]) -> ProaError:
        known = [*self.names(), *others]
        return self.error(
            f"no {self.what} {name!r}{did_you_mean(name, known)} (known: {', '.join(known)}; your own: "
            "'package.module:Class')"
        )

    def _load(self, name: str, plugin: EntryPoint) -> Any:
        try:
            return plugin.load()
        except Exception as error:  # the other package's module runs here, and may raise anything
            raise self.error(f"{self.what} {name!r} ({plugin.value}) could not be loaded: {error}") from error

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def _is_dotted(name: str) -> bool:
    return ":" in name or "." in name
