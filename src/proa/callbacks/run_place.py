"""Where a run stands with a logger's library: in which folder, under which name, and what it belongs to."""

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
class Place:
    """One run, as a library is told of it."""

    folder: Path
    """Of the library, where it keeps its files."""
    project: str
    name: str
    group: str | None = None
    job: str = "train"
    config: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    shared: bool = False
    """Other runs may have the same folder."""


@dataclass(frozen=True)
class Wanted:
    """What a logger was told of its places; the rest follows from the run."""

    kind: str
    project: str | None = None
    group: str | None = None
    folder: Path | None = None
    """Takes the place of the run's own."""

    def place_of(self, state: LoopState) -> Place:
        """Of a run with no experiment around it."""
        if state.output_dir is None and self.folder is None:
            raise CallbackConfigError(
                f"callback kind {self.kind!r} has nowhere to write: give it a folder, or the run an output_dir"
            )
        name = "" if state.output_dir is None else safe_name(state.output_dir.resolve().name)
        return Place(
            self._in(state.output_dir or Path()), self.project or "proa", name or "run", self.group,
            config=_config_in(state.output_dir), shared=self.folder is not None,
        )  # fmt: skip

    def place_in_experiment(self, ctx: LogContext) -> Place:
        """Of one run of an experiment; the context's folder is the run's, or that of all of them."""
        config = plain_config(ctx.run_config)
        if "experiment_id" in ctx.ids:
            config["experiment_id"] = str(ctx.ids["experiment_id"])
        return Place(
            self._in(ctx.output_dir), self._project_of(ctx), safe_name(ctx.run_key) or "run",
            self.group or ctx.group_name, config=config,
            shared=self.folder is not None or ctx.output_dir.name != ctx.run_key,
        )  # fmt: skip

    def place_of_result(self, ctx: LogContext, name: str) -> Place:
        """Of what an experiment came to, beside its runs."""
        return Place(
            self._in(ctx.output_dir), self._project_of(ctx), safe_name(name) or "experiment",
            job="experiment", config=plain_config(ctx.config), shared=True,
        )  # fmt: skip

    def _in(self, output_dir: Path) -> Path:
        return (self.folder or output_dir) / self.kind

    def _project_of(self, ctx: LogContext) -> str:
        config = ctx.config
        name = config.get("name") if isinstance(config, Mapping) else getattr(config, "name", None)
        return self.project or safe_name(str(name or "")) or "proa"


def require(package: str, kind: str) -> None:
    """Refuse a logger whose library is not there, before anything else begins; nothing is imported for it."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise CallbackConfigError(f"callback kind {kind!r} needs the package {package}: pip install 'proa[{kind}]'")


def library(module: str) -> Any:
    """A library's module, imported when it is needed."""
    return importlib.import_module(module)


def new_id() -> str:
    return uuid.uuid4().hex[:12]


def id_of(folder: Path) -> str:
    """The id of an experiment: the same whenever it is run again in its folder."""
    return uuid.uuid5(uuid.NAMESPACE_URL, folder.resolve().as_uri()).hex[:12]


def safe_name(name: str) -> str:
    """A name that every library takes, and that is no path.

    >>> safe_name("../lr=3e-3/s0")
    'lr-3e-3-s0'
    """
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


def _config_in(folder: Path | None) -> dict[str, Any]:
    """The configuration that a run's folder holds; a loop of one's own may have none."""
    try:
        return plain_config(json.loads((folder / "config.json").read_text(encoding="utf-8"))) if folder else {}
    except (OSError, ValueError):
        return {}
