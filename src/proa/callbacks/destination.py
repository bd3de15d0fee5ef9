"""Where a logger writes a run: folder, project, name and group."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.results import LogContext
from ..data.state import LoopState
from ..errors import CallbackConfigError
from .logged_values import plain_config


@dataclass(frozen=True)
class Destination:
    """One run in a logger's library."""

    folder: Path
    """Where the library keeps its files."""
    project: str
    name: str
    group: str | None = None
    job: str = "train"
    config: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    shared: bool = False
    """Whether other runs may use the same folder."""


@dataclass(frozen=True)
class DestinationSettings:
    """A logger's own settings; everything else follows from the run."""

    kind: str
    project: str | None = None
    group: str | None = None
    folder: Path | None = None
    """Instead of the run's own folder."""

    def run_destination(self, state: LoopState) -> Destination:
        """For a loop of one's own."""
        if state.output_dir is None and self.folder is None:
            raise CallbackConfigError(
                f"callback kind {self.kind!r} has nowhere to write: give it a folder, or the run an output_dir"
            )
        name = "" if state.output_dir is None else safe_name(state.output_dir.resolve().name)
        return Destination(
            self._folder(state.output_dir or Path()), self.project or "proa", name or "run", self.group,
            config=_run_config(state.output_dir), shared=self.folder is not None,
        )  # fmt: skip

    def arm_destination(self, ctx: LogContext) -> Destination:
        """For one run; the context's folder is the run's, or that of all runs."""
        config = plain_config(ctx.run_config)
        if "experiment_id" in ctx.ids:
            config["experiment_id"] = str(ctx.ids["experiment_id"])
        return Destination(
            self._folder(ctx.output_dir), self._project(ctx), safe_name(ctx.run_key) or "run",
            self.group or ctx.group_name, config=config,
            shared=self.folder is not None or ctx.output_dir.name != ctx.run_key,
        )  # fmt: skip

    def result_destination(self, ctx: LogContext, name: str) -> Destination:
        """For the result of an experiment, beside its runs."""
        return Destination(
            self._folder(ctx.output_dir), self._project(ctx), safe_name(name) or "experiment",
            job="experiment", config=plain_config(ctx.config), shared=True,
        )  # fmt: skip

    def _folder(self, output_dir: Path) -> Path:
        return (self.folder or output_dir) / self.kind

    def _project(self, ctx: LogContext) -> str:
        if ctx.extras.get("standalone"):  # its name is its run's, not that of many
            return self.project or "proa"
        config = ctx.config
        name = config.get("name") if isinstance(config, Mapping) else getattr(config, "name", None)
        return self.project or safe_name(str(name or "")) or "proa"


def require(package: str, kind: str) -> None:
    """Raise if a logger's library is not installed, without importing it."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise CallbackConfigError(f"callback kind {kind!r} needs the package {package}: pip install 'proa[{kind}]'")


def library(module: str) -> Any:
    """A library's module, imported on first use."""
    return importlib.import_module(module)


def new_id() -> str:
    return uuid.uuid4().hex[:12]


def experiment_id(folder: Path) -> str:
    """The id of an experiment, which is the same when it is run again in its folder."""
    return uuid.uuid5(uuid.NAMESPACE_URL, folder.resolve().as_uri()).hex[:12]


def safe_name(name: str) -> str:
    """A name that every library accepts and that is not a path.

    >>> safe_name("../lr=3e-3/s0")
    'lr-3e-3-s0'
    """
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


def _run_config(folder: Path | None) -> dict[str, Any]:
    """The configuration in a run's folder; a user's own loop may have none."""
    try:
        return plain_config(json.loads((folder / "config.json").read_text(encoding="utf-8"))) if folder else {}
    except (OSError, ValueError):
        return {}
