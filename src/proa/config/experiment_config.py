"""`ExperimentConfig`: arms, repeats, stages; what they are judged by. Unknown keys are errors."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from .run_config import CallbackSection, EvalSection, FolderName, Section


@dataclass(frozen=True)
class ArmContent:
    """What is written of an arm: keys, changes to them by dotted key, and where in the experiment they stand."""

    content: dict[str, Any]
    changes: dict[str, Any]
    where: tuple[str, ...]


class MatrixSection(Section):
    """Every combination of some values of some keys, over one configuration."""

    run: dict[str, Any] = Field(description="what all arms have in common")
    over: dict[str, list[Any]] = Field(min_length=1, description="dotted keys, each with the values to be tried")

    @model_validator(mode="after")
    def _has_values(self) -> MatrixSection:
        for key, values in self.over.items():
            if not values:
                raise ValueError(f"matrix.over.{key} has no values")
            if len({str(value) for value in values}) < len(values):
                raise ValueError(f"matrix.over.{key} has a value twice")
        return self


class ContinualSection(Section):
    """Stages, each of which goes on from the weights of the one before, with a fresh optimizer."""

    datasets: list[str | dict[str, Any]] = Field(min_length=1, description="the task of each stage")
    name_template: str = Field("{arm}_stage{stage}", description="what a stage is called")

    @model_validator(mode="after")
    def _names_differ(self) -> ContinualSection:
        try:
            first, second = (self.name_template.format(arm="a", stage=stage) for stage in (0, 1))
            other = self.name_template.format(arm="b", stage=0)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"continual.name_template {self.name_template!r} may have {{arm}} and {{stage}}: {error}"
            ) from None
        if len({first, second, other}) < 3:
            raise ValueError(f"continual.name_template {self.name_template!r} must have both {{arm}} and {{stage}}")
        return self


class MetadataSection(Section):
    """What the experiment is for, and what it is judged by."""

    hypothesis: str | None = None
    tags: list[str] = Field(default_factory=list)
    success_metric: str | None = Field(None, description="a metric of the runs, or benchmark.metric")
    mode: Literal["max", "min"] = Field("max", description="whether more of it is better, or less")
    benchmark: list[EvalSection] = Field(
        default_factory=list, description="scored after each run, on its final weights"
    )


class ExperimentConfig(Section):
    """Arms, each a run or several repeats of one, and what is done with them."""

    name: FolderName = "experiment"
    description: str = ""
    output_dir: Path = Path("runs")
    run: dict[str, Any] | None = Field(None, description="one arm")
    runs: dict[str, dict[str, Any]] | None = Field(None, description="several arms, by name")
    matrix: MatrixSection | None = Field(None, description="or every combination of some values")
    n_repeats: int = Field(1, ge=1, description="of each arm, with seeds base_seed, base_seed + 1, …")
    base_seed: int | None = Field(None, ge=0, description="of the first repeat; by default the arm's own seed")
    continual: ContinualSection | None = None
    max_concurrent_arms: int = Field(1, ge=1, description="runs at once, each in a process of its own")
    arms_on: Literal["processes", "ray"] = Field("processes", description="of this machine, or tasks of a Ray cluster")
    ray_address: str | None = Field(None, description="of the cluster, with arms_on: ray; none starts one here")
    callbacks: list[CallbackSection] = Field(default_factory=list)
    metadata: MetadataSection = MetadataSection()

    @model_validator(mode="before")
    @classmethod
    def _list_of_runs(cls, given: Any) -> Any:
        """`runs` may also be a list whose entries have names."""
        if isinstance(given, dict) and isinstance(given.get("runs"), list):
            runs: dict[str, Any] = {}
            for place, run in enumerate(given["runs"]):
                if not isinstance(run, dict) or "name" not in run:
                    raise ValueError(f"runs, entry {place}: give it a name")
                if run["name"] in runs:
                    raise ValueError(f"two runs are called {run['name']!r}")
                runs[run["name"]] = {key: value for key, value in run.items() if key != "name"}
            return {**given, "runs": runs}
        return given

    @model_validator(mode="after")
    def _one_of_three(self) -> ExperimentConfig:
        given = [name for name in ("run", "runs", "matrix") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of run, runs and matrix, not {' and '.join(given) or 'none of them'}")
        if self.runs is not None and not self.runs:
            raise ValueError("runs is empty: an experiment has at least one arm")
        for name, arm in self.arms.items():
            if not re.fullmatch(NAME, name) or ".." in name or "__s" in name:
                raise ValueError(
                    f"{name!r} cannot name an arm: use letters, digits, single dots, dashes and underscores, and not "
                    f"__s, which comes before a repeat's seed"
                )
            for key in ("name", "output_dir"):
                if key in arm.content or key in arm.changes:
                    raise ValueError(f"arm {name}: {key} is the experiment's to say")
        return self

    @property
    def arms(self) -> dict[str, ArmContent]:
        """What the arms' configurations hold, by name, in order; seeds and stages are not in them yet."""
        if self.run is not None:
            return {self.name: ArmContent(self.run, {}, ("run",))}
        if self.runs is not None:
            return {name: ArmContent(content, {}, ("runs", name)) for name, content in self.runs.items()}
        assert self.matrix is not None
        keys, values = list(self.matrix.over), list(self.matrix.over.values())
        return {
            _name_of(keys, chosen): ArmContent(
                self.matrix.run, dict(zip(keys, chosen, strict=True)), ("matrix", "run")
            )
            for chosen in itertools.product(*values)
        }  # fmt: skip

    @property
    def folder(self) -> Path:
        return self.output_dir / self.name


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def _name_of(keys: list[str], chosen: tuple[Any, ...]) -> str:
    """E.g. `learning_rate-0.0003.group_size-8`; what a folder's name cannot hold becomes a dash."""
    words = (f"{key.rpartition('.')[2]}-{value}" for key, value in zip(keys, chosen, strict=True))
    return ".".join(re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-.") for word in words)
