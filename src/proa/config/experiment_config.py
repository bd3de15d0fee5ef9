"""`ExperimentConfig`: arms, repeats, stages; what they are judged by. Unknown keys are errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from .sections import CallbackSection, EvalSection, FolderName, Section, mistake


@dataclass(frozen=True)
class ArmContent:
    """What is written of an arm: keys, changes to them by dotted key, and where in the experiment they stand."""

    content: dict[str, Any]
    changes: dict[str, Any]
    where: tuple[str, ...]
    changed_at: dict[str, tuple[str | int, ...]] = field(default_factory=dict)


class MatrixSection(Section):
    """Every combination of some values of some keys, over one configuration."""

    run: dict[str, Any] = Field(description="what all arms have in common")
    over: dict[str, list[Any]] = Field(min_length=1, description="dotted keys, each with the values to be tried")

    @model_validator(mode="after")
    def _has_values(self) -> MatrixSection:
        for key, values in self.over.items():
            if not values:
                raise mistake(f"matrix.over.{key} has no values", "over", key)
            if len({str(value) for value in values}) < len(values):
                raise mistake(f"matrix.over.{key} has a value twice", "over", key)
        return self

    @model_validator(mode="after")
    def _no_key_undoes_another(self) -> MatrixSection:
        for first, later in itertools.combinations(self.over, 2):
            if first.startswith(f"{later}."):
                raise mistake(
                    f"matrix.over.{later} would undo {first}, which comes before it: swap them", "over", later
                )
        return self

    @property
    def arms(self) -> dict[str, ArmContent]:
        """Each combination by its name, e.g. `learning_rate-0.0003.group_size-8`."""
        words = [_told_apart(_word(key, value) for value in values) for key, values in self.over.items()]
        combinations = list(itertools.product(*(range(len(values)) for values in self.over.values())))
        names = (
            ".".join(of_key[place] for of_key, place in zip(words, places, strict=True)) for places in combinations
        )
        cut = _told_apart(name[:LONGEST].rstrip(MARKS) for name in names)
        return {name: self._arm(places) for name, places in zip(cut, combinations, strict=True)}

    def _arm(self, places: tuple[int, ...]) -> ArmContent:
        chosen = dict(zip(self.over, places, strict=True))
        changes = {key: self.over[key][place] for key, place in chosen.items()}
        at: dict[str, tuple[str | int, ...]] = {key: ("matrix", "over", key, place) for key, place in chosen.items()}
        return ArmContent(self.run, changes, ("matrix", "run"), at)


class ContinualSection(Section):
    """Stages, each of which goes on from the weights of the one before, with a fresh optimizer."""

    datasets: list[str | dict[str, Any]] = Field(min_length=1, description="the task of each stage")
    name_template: str = Field("{arm}_stage{stage}", description="what a stage is called")

    @model_validator(mode="after")
    def _names_differ(self) -> ContinualSection:
        template = f"continual.name_template {self.name_template!r}"
        try:
            first, second = (self.name_template.format(arm="a", stage=stage) for stage in (0, 1))
            other = self.name_template.format(arm="b", stage=0)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            words = f"{template} may have {{arm}} and {{stage}}, as they are: {error}"
            raise mistake(words, "name_template") from None
        if len({first, second, other}) < 3:
            raise mistake(f"{template} must have both {{arm}} and {{stage}}", "name_template")
        if not _can_be_name(first):
            raise mistake(f"{template} gives names like {first!r}: {IN_A_NAME}", "name_template")
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

    @model_validator(mode="after")
    def _benchmarks_differ(self) -> MetadataSection:
        names = [section.name for section in self.benchmark]
        for place, name in enumerate(names):
            if name in names[:place]:
                words = f"two of metadata.benchmark are called {name!r}: give each a name of its own"
                raise mistake(words, "benchmark", place, "name")
        return self


class ExperimentConfig(Section):
    """Arms, each a run or several repeats of one, and what is done with them."""

    name: FolderName = "experiment"
    description: str = ""
    output_dir: Path = Path("runs")
    run: dict[str, Any] | None = Field(None, description="one arm")
    runs: dict[str, dict[str, Any]] | None = Field(None, description="several arms, by name")
    matrix: MatrixSection | None = Field(None, description="or every combination of some values")
    n_repeats: int = Field(1, ge=1, description="of each arm, with seeds base_seed, base_seed + 1, …")
    base_seed: int | None = Field(
        None, ge=0, lt=2**62, description="of the first repeat; by default the arm's own seed"
    )
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
                name = run.get("name") if isinstance(run, dict) else None
                if not isinstance(name, str):
                    raise mistake(f"runs, entry {place}: give it a name, e.g. 'name: small'", "runs", place)
                if name in runs:
                    raise mistake(f"two runs are called {name!r}", "runs", place, "name")
                runs[name] = {key: value for key, value in run.items() if key != "name"}
            return {**given, "runs": runs}
        return given

    @model_validator(mode="after")
    def _one_of_three(self) -> ExperimentConfig:
        given = [name for name in ("run", "runs", "matrix") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of run, runs and matrix, not {' and '.join(given) or 'none of them'}")
        if self.runs is not None and not self.runs:
            raise mistake("runs is empty: an experiment has at least one arm", "runs")
        return self

    @model_validator(mode="after")
    def _arms_are_named(self) -> ExperimentConfig:
        if self.run is not None and not _can_be_name(self.name):
            words = f"with run, the experiment's name {self.name!r} is also that of its run: {IN_A_NAME}"
            raise mistake(words, "name")
        for name, arm in self.arms.items():
            if not _can_be_name(name):
                raise mistake(f"{name!r} cannot name an arm: {IN_A_NAME}", *arm.where)
            for key in ("name", "output_dir"):
                if key in arm.changes:
                    raise mistake(f"matrix.over.{key}: {key} is the experiment's to say", "matrix", "over", key)
                if key in arm.content:
                    raise mistake(f"arm {name}: {key} is the experiment's to say", *arm.where, key)
        return self

    @model_validator(mode="after")
    def _matrix_is_not_undone(self) -> ExperimentConfig:
        """What the experiment says of every run would make arms that differ in name alone."""
        for key in () if self.matrix is None else self.matrix.over:
            if key == "seed" and (self.base_seed is not None or self.n_repeats > 1):
                raise mistake(
                    "matrix.over.seed: base_seed and n_repeats say what the seeds of all arms are. Leave seed out of "
                    "the matrix, or the two out of the experiment",
                    "matrix", "over", key,
                )  # fmt: skip
            if key.partition(".")[0] == "task" and self.continual is not None:
                raise mistake(
                    f"matrix.over.{key}: continual.datasets say what the tasks of all arms are. Leave {key} out of the "
                    f"matrix, or continual out of the experiment",
                    "matrix", "over", key,
                )  # fmt: skip
        return self

    @model_validator(mode="after")
    def _ray_is_meant(self) -> ExperimentConfig:
        if self.arms_on == "ray" and self.max_concurrent_arms == 1:
            raise mistake(
                "arms_on: ray is for several runs at once: set max_concurrent_arms to how many tasks there may be at a "
                "time, 2 or more",
                "arms_on",
            )
        if self.arms_on != "ray" and self.ray_address is not None:
            raise mistake(
                "ray_address is of the cluster that arms run on: write arms_on: ray with it, or leave it out",
                "ray_address",
            )
        return self

    @property
    def arms(self) -> dict[str, ArmContent]:
        """What the arms' configurations hold, by name, in order; seeds and stages are not in them yet."""
        if self.run is not None:
            return {self.name: ArmContent(self.run, {}, ("run",))}
        if self.runs is not None:
            return {name: ArmContent(content, {}, ("runs", name)) for name, content in self.runs.items()}
        assert self.matrix is not None
        return self.matrix.arms

    @property
    def folder(self) -> Path:
        return self.output_dir / self.name


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
MARKS = "._-"
IN_A_NAME = (
    "use letters, digits, single dots, dashes and underscores, a letter or digit first, and not __s, which comes "
    "before a repeat's seed"
)
LONGEST = 160
"""Characters of a name that is made here; a stage and a seed may be added to it, and a folder's name has an end."""


def _can_be_name(name: str) -> bool:
    return re.fullmatch(NAME, name) is not None and ".." not in name and "__s" not in name


def _word(key: str, value: Any) -> str:
    """What a value is called in an arm's name, e.g. `learning_rate-0.0003`: something that `_can_be_name`."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{key.rpartition('.')[2]}-{value}")
    word = re.sub(r"[.-]*\.\.[.-]*", "-", word)
    return re.sub(r"__+", "_", word).strip(MARKS) or "value"


def _told_apart(names: Iterable[str]) -> list[str]:
    """The second of two equal names gets a number: `m`, `m-2`."""
    apart: dict[str, None] = {}
    for name in names:
        numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        apart[next(one for one in numbered if one not in apart)] = None
    return list(apart)
