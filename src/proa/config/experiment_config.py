"""`ExperimentConfig`: arms, repeats, stages, and how they are compared. Unknown keys are errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field, field_serializer, model_validator

from ..settings import Settings
from .algorithm_section import describe_objects
from .eval_section import BenchmarkSection
from .sections import GIVEN, CallbackSection, FolderName, Section, mistake

if TYPE_CHECKING:
    from .run_config import RunConfig

KeyPath: TypeAlias = tuple[str | int, ...]
"""A key with its sections and places in lists, e.g. `("eval", 0, "name")`."""


@dataclass(frozen=True)
class ArmContent:
    """The keys of an arm, changes to them by dotted key, and where in the file both are."""

    content: dict[str, Any]
    changes: dict[str, Any]
    where: tuple[str, ...]
    changed_at: dict[str, KeyPath] = field(default_factory=dict)


class MatrixSection(Section):
    """Every combination of some values of some keys, over one configuration."""

    run: dict[str, Any] = Field(description="the configuration that all arms share")
    over: dict[str, list[Any]] = Field(min_length=1, description="dotted keys, each with the values to try")

    @field_serializer("run", "over", when_used="json")
    def _describe(self, content: dict[str, Any]) -> Any:
        return describe_objects(content)

    @model_validator(mode="after")
    def _check_values(self) -> MatrixSection:
        for key, values in self.over.items():
            if not values:
                raise mistake(f"matrix.over.{key} has no values", "over", key)
            if len({str(value) for value in values}) < len(values):
                raise mistake(f"matrix.over.{key} has the same value twice", "over", key)
        return self

    @model_validator(mode="after")
    def _check_order(self) -> MatrixSection:
        for first, later in itertools.combinations(self.over, 2):
            if first.startswith(f"{later}."):
                raise mistake(
                    f"matrix.over.{later} would overwrite {first}, which comes before it: swap them", "over", later
                )
        return self

    @property
    def arms(self) -> dict[str, ArmContent]:
        """Each combination by its name, e.g. `learning_rate-0.0003.group_size-8`."""
        words = [_distinct(_name_part(key, value) for value in values) for key, values in self.over.items()]
        combinations = list(itertools.product(*(range(len(values)) for values in self.over.values())))
        names = (
            ".".join(options[index] for options, index in zip(words, indices, strict=True)) for indices in combinations
        )
        arms: dict[str, ArmContent] = {}
        for name, indices in zip(_distinct(name[:LONGEST].rstrip(MARKS) for name in names), combinations, strict=True):
            chosen = dict(zip(self.over, indices, strict=True))
            changes = {key: self.over[key][index] for key, index in chosen.items()}
            changed_at: dict[str, KeyPath] = {key: ("matrix", "over", key, index) for key, index in chosen.items()}
            arms[name] = ArmContent(self.run, changes, ("matrix", "run"), changed_at)
        return arms


class ContinualSection(Section):
    """Stages, each of which starts from the weights of the previous one, with a fresh optimizer."""

    datasets: list[str | dict[str, Any]] = Field(min_length=1, description="the task of each stage")
    name_template: str = Field("{arm}_stage{stage}", description="the name of a stage")

    @model_validator(mode="after")
    def _check_template(self) -> ContinualSection:
        template = f"continual.name_template {self.name_template!r}"
        try:
            first, second = (self.name_template.format(arm="a", stage=stage) for stage in (0, 1))
            other = self.name_template.format(arm="b", stage=0)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise mistake(f"{template} may contain {{arm}} and {{stage}} only: {error}", "name_template") from None
        if len({first, second, other}) < 3:
            raise mistake(f"{template} must contain both {{arm}} and {{stage}}", "name_template")
        if not _is_name(first):
            raise mistake(f"{template} gives names like {first!r}: {NAME_RULE}", "name_template")
        return self


class MetadataSection(Section):
    """The purpose of the experiment, and the metric that arms are compared by."""

    hypothesis: str | None = None
    tags: list[str] = Field(default_factory=list)
    success_metric: str | None = Field(None, description="a metric of the runs, or benchmark.metric")
    mode: Literal["max", "min"] = Field("max", description="whether a larger or a smaller value is better")
    benchmark: list[BenchmarkSection] = Field(
        default_factory=list, description="scored after each run, on its final weights"
    )

    @model_validator(mode="after")
    def _check_names(self) -> MetadataSection:
        names = [section.name for section in self.benchmark]
        for index, name in enumerate(names):
            if name in names[:index]:
                message = f"two of metadata.benchmark are called {name!r}: give each its own name"
                raise mistake(message, "benchmark", index, "name")
        return self


class ExperimentConfig(Section):
    """Arms, each with one run or several repeats, and how they are run and compared."""

    name: FolderName = "experiment"
    description: str = ""
    output_dir: Path = Path("runs")
    run: dict[str, Any] | None = Field(None, description="one arm")
    runs: dict[str, dict[str, Any]] | None = Field(None, description="several arms, by name")
    matrix: MatrixSection | None = Field(None, description="or one arm for every combination of values")
    n_repeats: int = Field(1, ge=1, description="runs of each arm, with seeds base_seed, base_seed + 1, …")
    base_seed: int | None = Field(
        None, ge=0, lt=2**62, description="seed of the first repeat; by default the arm's own seed"
    )
    continual: ContinualSection | None = None
    max_concurrent_arms: int = Field(1, ge=1, description="runs at the same time, each in its own process")
    arms_on: Literal["processes", "ray"] = Field(
        "processes", description="processes of this machine, or tasks of a Ray cluster"
    )
    ray_address: str | None = Field(None, description="the cluster for arms_on: ray; by default one is started here")
    callbacks: list[CallbackSection] = Field(default_factory=list)
    metadata: MetadataSection = MetadataSection()

    @field_serializer("run", "runs", when_used="json")
    def _describe(self, content: dict[str, Any] | None) -> Any:
        return describe_objects(content)

    @model_validator(mode="before")
    @classmethod
    def _name_runs(cls, given: Any) -> Any:
        """`runs` may also be a list of entries with names."""
        if isinstance(given, dict) and isinstance(given.get("runs"), list):
            runs: dict[str, Any] = {}
            for index, run in enumerate(given["runs"]):
                name = run.get("name") if isinstance(run, dict) else None
                if not isinstance(name, str):
                    raise mistake(f"runs, entry {index}: give it a name, e.g. 'name: small'", "runs", index)
                if name in runs:
                    raise mistake(f"two runs are called {name!r}", "runs", index, "name")
                runs[name] = {key: value for key, value in run.items() if key != "name"}
            return {**given, "runs": runs}
        return given

    @model_validator(mode="after")
    def _check_form(self) -> ExperimentConfig:
        given = [name for name in ("run", "runs", "matrix") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of run, runs and matrix, not {' and '.join(given) or 'none of them'}")
        if self.runs is not None and not self.runs:
            raise mistake("runs is empty: an experiment has at least one arm", "runs")
        return self

    @model_validator(mode="after")
    def _check_arm_names(self) -> ExperimentConfig:
        if self.run is not None and not _is_name(self.name):
            message = f"with run, the experiment's name {self.name!r} is also the name of its run: {NAME_RULE}"
            raise mistake(message, "name")
        for name, arm in self.arms.items():
            if not _is_name(name):
                raise mistake(f"{name!r} cannot name an arm: {NAME_RULE}", *arm.where)
            for key in ("name", "output_dir"):
                if key in arm.changes:
                    raise mistake(f"matrix.over.{key}: {key} is set by the experiment", "matrix", "over", key)
                if key in arm.content:
                    raise mistake(f"arm {name}: {key} is set by the experiment", *arm.where, key)
        return self

    @model_validator(mode="after")
    def _check_matrix_keys(self) -> ExperimentConfig:
        """Refuse keys that the experiment sets for every run: the arms would differ in name alone."""
        for key in () if self.matrix is None else self.matrix.over:
            if key == "seed" and (self.base_seed is not None or self.n_repeats > 1):
                raise mistake(
                    "matrix.over.seed: base_seed and n_repeats set the seeds of all arms. Leave seed out of the "
                    "matrix, or these two out of the experiment",
                    "matrix", "over", key,
                )  # fmt: skip
            if key.partition(".")[0] == "task" and self.continual is not None:
                raise mistake(
                    f"matrix.over.{key}: continual.datasets sets the tasks of all arms. Leave {key} out of the matrix, "
                    "or continual out of the experiment",
                    "matrix", "over", key,
                )  # fmt: skip
        return self

    @model_validator(mode="after")
    def _check_ray(self) -> ExperimentConfig:
        if self.arms_on == "ray" and self.max_concurrent_arms == 1:
            raise mistake(
                "arms_on: ray is for several runs at once: set max_concurrent_arms to the number of tasks at a time, "
                "2 or more",
                "arms_on",
            )
        if self.arms_on != "ray" and self.ray_address is not None:
            raise mistake(
                "ray_address is the cluster that arms run on: write arms_on: ray with it, or leave it out",
                "ray_address",
            )
        return self

    @classmethod
    def of_one(cls, run: RunConfig) -> ExperimentConfig:
        """A plain run as an experiment of one, with the run's name and folder. It is not validated: a run may have a
        name that no arm can have."""
        content = run.model_dump(mode="json", exclude={"name", "output_dir"})
        return cls.model_construct(name=run.name, output_dir=run.output_dir, run=content)

    @property
    def arms(self) -> dict[str, ArmContent]:
        """The arms by name, in order, without their seeds and stages."""
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
NAME_RULE = (
    "use letters, digits, single dots, dashes and underscores, a letter or digit first, and not __s, which comes "
    "before a repeat's seed"
)
LONGEST = 160
"""Characters of a generated name: a stage and a seed may be added, and the length of a folder's name is limited."""


def _is_name(name: str) -> bool:
    return re.fullmatch(NAME, name) is not None and ".." not in name and "__s" not in name


def _name_part(key: str, value: object) -> str:
    """A value as part of an arm's name, e.g. `learning_rate-0.0003`; `_is_name` accepts it.

    An algorithm's object is its name and the settings that were changed: `algorithm-dapo-clip_high-0.3`.
    """
    described = describe_objects(value)
    if isinstance(value, Settings):
        settings = [f"{name}-{setting}" for name, setting in described["params"].items()]
        described = "-".join([described["name"].removesuffix(f" {GIVEN}"), *settings])
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{key.rpartition('.')[2]}-{described}")
    word = re.sub(r"[.-]*\.\.[.-]*", "-", word)
    return re.sub(r"__+", "_", word).strip(MARKS) or "value"


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, the second of two equal ones with a number: `m`, `m-2`."""
    distinct: dict[str, None] = {}
    for name in names:
        numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        distinct[next(one for one in numbered if one not in distinct)] = None
    return list(distinct)
