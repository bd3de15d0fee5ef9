"""The configuration of a run: `DetachedConfig` for makers and trainers, `SupervisedConfig` for training on data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationInfo, field_validator, model_validator

from ..errors import ProaError, SettingError, UnknownNameError
from ..settings import WrongSettingError, check_names
from ..spelling import did_you_mean
from .algorithm_outlines import OUTLINES
from .algorithm_section import AlgorithmSection, DetachedAlgorithmSection, SupervisedAlgorithmSection
from .environment_section import EnvironmentSection
from .eval_section import EvalSection
from .sections import (
    AUTO,
    TRAINING_PREFIXES,
    CallbackSection,
    CheckpointSection,
    CriticSection,
    DetachedOptimizerSection,
    DetachedSamplingSection,
    DetachedTaskSection,
    EngineSection,
    FolderName,
    LoraSection,
    ModelSection,
    OptimizerSection,
    RaySection,
    RecordSection,
    RewardSection,
    SamplingSection,
    Section,
    TaskSection,
    WarmStartSection,
    mistake,
)
from .supervised_settings import SUPERVISED

SHORT_FORMS = {
    "model": "path", "task": "source", "algorithm": "name", "engine": "kind", "critic": "kind", "reward": "functions",
    "environment": "path",
}  # fmt: skip
"""Sections that may be written as one value, and the key that it stands for."""
RESTORED = {"restored": True}
"""The validation context of a saved configuration. Its algorithm was checked when it was saved, and is not imported
again: its module may be gone."""
OUTLINED = {"outlined": True}
"""The validation context of one of which only what can be checked without torch is checked."""


class RunConfig(Section):
    """One run: the keys that both kinds share.

    `RunConfig(…)` and `RunConfig.model_validate(…)` return the kind of the algorithm: a `SupervisedConfig` for `sft`,
    `dpo` and `reward_model`, a `DetachedConfig` otherwise. Keys that this kind does not have are errors.
    """

    name: FolderName = Field(
        AUTO, description="of the run, and of its folder; auto is algorithm and task, with a number if that is used"
    )
    output_dir: Path = Field(Path("runs"), description="where the folders of runs are")
    seed: int = Field(0, ge=0, lt=2**63, description="all that is random follows from it")
    threads: int = Field(1, ge=1, le=4096, description="torch threads per role")
    deterministic: bool = Field(True, description="the same bits each time on a GPU too; false allows any kernel")
    total_steps: int = Field(0, ge=0, description="fresh batches; or give epochs")
    epochs: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="passes over the prompts, or the data, instead of total_steps, which config.json then has",
    )
    train_epochs: int = Field(1, ge=1, description="passes over each episode's batches")
    train_batch_size: int = Field(ge=1, description="samples, whole groups")
    model: ModelSection = Field(description="what is trained")
    task: TaskSection = Field(description="the prompts, or the data")
    algorithm: AlgorithmSection = Field(AlgorithmSection(), description="how it learns")
    lora: LoraSection | None = Field(None, description="train an adapter beside a frozen model")
    engine: EngineSection = Field(EngineSection(), description="what generates")
    sampling: SamplingSection = Field(SamplingSection(), description="how completions are generated")
    optimizer: OptimizerSection = Field(OptimizerSection(), description="how weights follow gradients")
    checkpoint: CheckpointSection = Field(
        CheckpointSection(), description="when checkpoints are saved, and which are kept"
    )
    progress: bool = Field(True, description="show progress on the console, or in the notebook's output")
    record: RecordSection = Field(RecordSection(), description="what is recorded besides metrics and evals")
    eval: list[EvalSection] = Field(default_factory=list, description="evals while it trains, and at the end")
    callbacks: list[CallbackSection] = Field(default_factory=list, description="what listens to the run")

    @field_validator("callbacks", mode="before")
    @classmethod
    def _one_callback(cls, given: Any) -> Any:
        return [given] if isinstance(given, str | dict) else given

    def __new__(cls, **content: Any) -> Self:
        kind: Any = config_type(content) if cls is RunConfig else cls
        made: Self = super().__new__(kind)
        return made

    if TYPE_CHECKING:  # the keys of both kinds

        def __init__(self, **content: Any) -> None: ...

    @model_validator(mode="wrap")
    @classmethod
    def _validate_kind(cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping):
            return handler(given)
        if cls is RunConfig:
            return config_type(given).model_validate(given, context=info.context)
        content = {key: _expand(key, value) for key, value in given.items()}
        for path, is_default in list(_foreign_keys(content, cls, DetachedConfig)):
            if not is_default:
                name = _algorithm_name(content)
                raise mistake(f"{'.'.join(path)} does not apply to algorithm {name}: leave it out", *path)
            content = _without(content, path)
        return handler(content)

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        self._check_duration()
        self._check_eval_names()
        self._check_best([section.name for section in self.eval])
        self._check_sizes()
        if info.context != RESTORED:
            with _algorithm_mistakes():
                self._check_outline()
                if info.context == OUTLINED:
                    return self
                self._check_algorithm()  # last, because it may import torch
            self._check_engine()
        return self

    def _check_outline(self) -> None:
        """Raise for what can be seen of the algorithm without importing it."""

    def _check_engine(self) -> None:
        """Raise for an engine that there is not."""
        if self.engine.factory in ("native", "hf"):
            return  # without importing torch
        from ..engines.build import find_engine

        try:
            find_engine(self.engine.factory)
        except ProaError as error:
            raise mistake(str(error), "engine", "kind") from error

    def _check_sizes(self) -> None:
        """Raise for numbers that are not consistent."""

    def _check_algorithm(self) -> None:
        """Raise for unknown or wrong settings of the algorithm, and for keys that it cannot work with."""

    def _check_duration(self) -> None:
        if not self.total_steps and self.epochs is None:
            raise mistake("'total_steps' is missing: give it, at least 1, or epochs", "total_steps")
        if self.total_steps and self.epochs is not None:
            raise mistake("total_steps and epochs both say how long to train: leave one of them out", "epochs")

    def _check_eval_names(self) -> None:
        names = [section.name for section in self.eval]
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two evals are called {duplicates.pop()!r}: give each its own name")
        if taken := next((name for name in names if name in TRAINING_PREFIXES), None):
            raise ValueError(f"an eval cannot be called {taken}: metrics of training have that prefix")
        for one in names:
            if longer := next((name for name in names if name.startswith(f"{one}.")), None):
                raise ValueError(f"evals {one!r} and {longer!r} would have scores of the same name: rename one of them")

    def _check_best(self, evals: list[str]) -> None:
        """Catch a metric of an unknown eval, by which no checkpoint would ever be kept."""
        best = self.checkpoint.best
        if best is None or "." not in best or best.partition(".")[0] in (*evals, *TRAINING_PREFIXES):
            return
        near = did_you_mean(best.partition(".")[0], evals)
        known = f" (known: {', '.join(evals)})" if evals else ": the run has no evals"
        raise ValueError(f"checkpoint.best is {best}, and no eval has that name{near}{known}")

    @property
    def has_warm_start(self) -> bool:
        """Whether `model` is trained before the run proper."""
        return False

    @property
    def folder(self) -> Path:
        return self.output_dir / self.name


class SupervisedConfig(RunConfig):
    """Training on data: SFT, DPO, a reward model."""

    algorithm: SupervisedAlgorithmSection = Field(description="what is learned from the data")

    def _check_algorithm(self) -> None:
        self.algorithm.settings()


class DetachedConfig(RunConfig):
    """Makers generate, a trainer learns."""

    runtime: Literal["local", "ray"] = Field("local", description="threads of one process, or actors on a Ray cluster")
    makers: int = Field(1, ge=1, description="how many generate; they change nothing but speed")
    trainers: int = Field(1, ge=1, description="each computes its share of every batch; several need ray")
    max_staleness: int = Field(1, ge=0, description="versions a sample may lag behind; 0 is synchronous")
    schedule: Literal["in_order", "windowed"] = Field(
        "in_order", description="train on leases in their order, or as they finish within the window that is admitted"
    )
    update_steps: int = Field(1, ge=1, description="steps between two pushes of weights")
    buffer_limit: int = Field(0, ge=0, description="batches; 0 is unlimited")
    lease_prompts: int | None = Field(None, ge=1, description="by default about a quarter of a batch's prompts")
    wait_timeout: float = Field(600.0, gt=0, le=1e9, description="seconds; the deadline of every wait")
    lease_timeout: float | None = Field(
        None,
        gt=0,
        description="seconds a maker may hold a lease before another gets it; by default half of wait_timeout",
    )
    task: DetachedTaskSection = Field(description="the prompts, or the data")
    sampling: DetachedSamplingSection = Field(DetachedSamplingSection(), description="how completions are generated")
    reward: RewardSection = Field(RewardSection(), description="what scores completions")
    tools: list[str] = Field(
        default_factory=list, description="functions that the model may call between its turns, as dotted paths"
    )
    environment: EnvironmentSection = Field(
        EnvironmentSection(), description="what answers the model between its turns, and how long conversations may be"
    )
    agent: str | None = Field(
        None, description="dotted path of a function that talks to the model through an endpoint, as it likes"
    )
    algorithm: DetachedAlgorithmSection = Field(DetachedAlgorithmSection(), description="how it learns")
    critic: CriticSection | None = Field(
        None, description="for algorithms that need one; by default a head on the policy"
    )
    ray: RaySection = Field(RaySection(), description="settings of runtime: ray")
    optimizer: DetachedOptimizerSection = Field(DetachedOptimizerSection(), description="how weights follow gradients")
    warm_start: WarmStartSection | None = Field(None, description="a short supervised phase before the run proper")

    def _check_sizes(self) -> None:
        if wrong := next((section for section in self.eval if section.kind == "loss"), None):
            raise ValueError(f"eval {wrong.name}: kind loss is for supervised algorithms; here evals generate")
        if self.warm_start is not None and self.task.system_prompt is not None:
            raise ValueError(
                "warm_start learns prompts as the data has them, without task.system_prompt: write the system message "
                "into the prompts of the data, as messages"
            )
        group = self.sampling.group_size
        if self.train_batch_size % group:
            raise ValueError(
                f"train_batch_size={self.train_batch_size} is not a multiple of sampling.group_size={group}: a batch "
                "holds whole groups"
            )
        self._check_trainers()
        self._check_environment()
        if self.lease_timeout is not None and self.lease_timeout >= self.wait_timeout:
            raise ValueError(
                f"lease_timeout={self.lease_timeout:g} must be less than wait_timeout={self.wait_timeout:g}: "
                "a maker that hangs must be replaced before the trainer stops waiting"
            )
        if self.prompts_per_step % self.prompts_per_lease:
            raise ValueError(
                f"lease_prompts={self.lease_prompts} does not divide the {self.prompts_per_step} prompts of a batch"
            )

    @property
    def lease_seconds(self) -> float:
        """How long a maker may hold a lease: `lease_timeout`, or half of `wait_timeout`."""
        return self.lease_timeout or self.wait_timeout / 2

    def _check_trainers(self) -> None:
        if self.trainers > 1 and self.runtime != "ray":
            raise ValueError(f"trainers={self.trainers} needs a process for each: set runtime: ray")
        if self.prompts_per_step % self.trainers:
            raise ValueError(
                f"the {self.prompts_per_step} groups of a batch do not divide among trainers={self.trainers}: "
                f"make train_batch_size a multiple of {self.trainers * self.sampling.group_size}"
            )

    def _check_environment(self) -> None:
        given = {"tools": self.tools, "environment.path": self.environment.path, "agent": self.agent}
        doors = [name for name, value in given.items() if value]
        if len(doors) > 1:
            raise ValueError(f"{' and '.join(doors)} cannot be used together: give one of them")
        if (
            not doors
            and (set_ := sorted(self.environment.model_fields_set))
            and self.environment != EnvironmentSection()
        ):
            raise ValueError(
                f"environment.{set_[0]} is set, and there is no environment: give tools, environment.path or agent"
            )
        if doors and self.warm_start is not None:
            raise ValueError("warm_start learns single completions: leave it out, or train with algorithm sft first")

    @property
    def has_environment(self) -> bool:
        """Whether something answers the model between its turns."""
        return bool(self.tools or self.environment.path or self.agent)

    def _check_outline(self) -> None:
        outline = OUTLINES.get(self.algorithm.name)
        if outline is not None and self.algorithm.given is None:
            check_names(self.algorithm.params, outline.settings, f"algorithm {self.algorithm.name!r}")
            self._check_group(outline.min_group)

    def _check_group(self, least: int) -> None:
        if self.sampling.group_size < least:
            raise mistake(
                f"sampling.group_size must be at least {least}: completions of one prompt are compared",
                "sampling", "group_size",
            )  # fmt: skip

    def _check_algorithm(self) -> None:
        from ..algorithms import find_algorithm

        if self.algorithm.given is None:
            find_algorithm(self.algorithm.name, others=SUPERVISED)
        algorithm = self.algorithm.build()
        if self.critic is not None and not algorithm.needs_critic:
            raise mistake(f"critic does not apply to algorithm {self.algorithm.name}: leave it out", "critic")
        self._check_group(algorithm.min_group)

    @property
    def has_warm_start(self) -> bool:
        return self.warm_start is not None

    @property
    def prompts_per_step(self) -> int:
        return self.train_batch_size // self.sampling.group_size

    @property
    def prompts_per_lease(self) -> int:
        """`lease_prompts`, or the largest divisor of a batch's prompts that is at most a quarter of them."""
        if self.lease_prompts is not None:
            return self.lease_prompts
        prompts = self.prompts_per_step
        return next(size for size in range(max(1, prompts // 4), 0, -1) if prompts % size == 0)


def config_type(content: Mapping[str, Any]) -> type[RunConfig]:
    """The type of a configuration, by its algorithm."""
    name = _algorithm_name(content)
    return SupervisedConfig if isinstance(name, str) and name in SUPERVISED else DetachedConfig


def _algorithm_name(content: Mapping[str, Any]) -> Any:
    section = _expand("algorithm", content.get("algorithm"))
    return section.get("name") if isinstance(section, Mapping) else None


@contextmanager
def _algorithm_mistakes() -> Iterator[None]:
    """Turns errors of the algorithm into mistakes at their key."""
    try:
        yield
    except UnknownNameError as error:
        raise mistake(str(error), "algorithm", "name") from error
    except WrongSettingError as error:
        message = str(error)
        if message.startswith(error.setting):
            message = f"algorithm.params.{message}"
        raise mistake(message, "algorithm", "params", error.setting) from error
    except SettingError as error:
        raise mistake(str(error), "algorithm", "params") from error


def _expand(key: str, value: Any) -> Any:
    """`model: path` and `task: name` as `model: {path: …}` and `task: {source: …}`; rewards may be a list, an algorithm
    an object, and so may what makes an engine."""
    if isinstance(value, AlgorithmSection | EngineSection):
        return value.source()
    if isinstance(value, OptimizerSection | SamplingSection):
        return value.model_dump()
    if key == "tools" and isinstance(value, str):
        return [value]
    is_object = key == "algorithm" and not isinstance(value, Mapping | list | int | float | None)
    is_object |= key == "engine" and callable(value)
    is_object |= key == "reward" and isinstance(value, list)
    return {SHORT_FORMS[key]: value} if key in SHORT_FORMS and (isinstance(value, str) or is_object) else value


def _foreign_keys(
    given: Mapping[str, Any], own: type[Section], other: type[Section]
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The keys that only the other kind of run has, and whether each has its default."""
    for key, value in given.items():
        if key not in other.model_fields:
            continue  # pydantic reports unknown keys
        if key not in own.model_fields:
            default = other.model_fields[key].get_default(call_default_factory=True)
            yield (key,), bool(value == default or (isinstance(default, Section) and value == default.model_dump()))
            continue
        sections = own.model_fields[key].annotation, other.model_fields[key].annotation
        if sections[0] is not sections[1] and isinstance(value, Mapping):
            for path, is_default in _foreign_keys(value, *sections):  # type: ignore[arg-type]  # both are sections
                yield (key, *path), is_default


def drop_foreign_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration without the keys that only the other kind of run has, which older versions wrote."""
    for path, _ in list(_foreign_keys(content, config_type(content), DetachedConfig)):
        content = _without(content, path)
    return dict(content)


def _without(content: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    key, *rest = path
    if rest:
        return {**content, key: _without(content[key], tuple(rest))}
    return {name: value for name, value in content.items() if name != key}
