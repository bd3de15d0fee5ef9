"""The sections of a configuration. Unknown keys are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ..settings import changed_settings, make_settings
from .supervised_settings import SUPERVISED, SupervisedSettings

if TYPE_CHECKING:
    from ..algorithms import Algorithm

MISTAKE = "mistake"
"""The type of an error whose words name the key themselves."""


def mistake(words: str, *place: str | int) -> PydanticCustomError:
    """What is wrong, and at which key of the section that finds it, so that its line can be reported."""
    return PydanticCustomError(MISTAKE, "{words}", {"words": words, "place": place})


class Section(BaseModel):
    """Part of a configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
        raise ValueError(
            "a folder gets this name: use letters, digits, dots, dashes and underscores, a letter or digit first, "
            "200 at most"
        )
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]


class SamplingSection(Section):
    """How completions are generated; in a supervised run, those that an evaluator of the user's asks for."""

    max_new_tokens: int = Field(64, ge=1)


class DetachedSamplingSection(SamplingSection):
    group_size: int = Field(8, ge=1, description="completions per prompt")
    temperature: float = Field(1.0, gt=0, description="the trainer's log-probabilities use it too")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 keeps all tokens")


TRAINING_PREFIXES = ("trainer", "maker", "reward")
"""What stands before the dot in names of metrics of training itself."""
GIVEN = "(given in Python)"
"""What a configuration says where an object was handed over."""


class ModelSection(Section):
    path: str | None = Field(None, description="a Hugging Face folder, or an adapter folder")
    config: dict[str, Any] | None = Field(None, description="or a model configuration, with weights from the seed")
    tokenizer: str | None = Field(None, description="a folder; by default the model's, or a built-in task's own")
    dtype: str = "float32"
    device: str = "cpu"
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> ModelSection:
        if (self.path is None) == (self.config is None):
            raise ValueError("give model.path or model.config, one of the two")
        return self


class TaskSection(Section):
    source: str = Field(description="a built-in task, a JSONL file, or a dotted path to data")
    prompt_column: str = "prompt"
    count: int | None = Field(None, ge=1, description="rows of a built-in task to draw")


class RewardModelSection(Section):
    path: str = Field(description="a folder of a sequence-classification model with one label")
    weight: float = 1.0
    token_budget: int = Field(16_384, ge=0, description="tokens scored at once; 0 is a lease's samples at once")


class RewardSection(Section):
    functions: list[str] = Field(
        default_factory=list, description="dotted paths; none is the model's reward, or else the task's own"
    )
    weights: list[float] | None = None
    model: RewardModelSection | None = Field(None, description="a reward model's folder, alone or beside functions")
    timeout: float = Field(30.0, gt=0, le=1e9, description="seconds for one call")
    workers: int = Field(1, ge=0, description="processes; 0 scores in the makers themselves, without a deadline")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("model"), str):
            return {**given, "model": {"path": given["model"]}}
        return given

    @model_validator(mode="after")
    def _weights_of_functions(self) -> RewardSection:
        if self.weights is not None and not self.functions and self.model is not None:
            raise ValueError("reward.weights are of functions; a reward model's is reward.model.weight")
        return self


class AlgorithmSection(Section):
    """What is optimized, and its settings."""

    name: str = "grpo"
    params: dict[str, Any] = Field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """What the section was made of: no name where nobody gave one, and an object where that was given."""
        content = self.model_dump()
        if "name" not in self.model_fields_set:
            del content["name"]
        return content


class SupervisedAlgorithmSection(AlgorithmSection):
    """An algorithm that learns from data as it is."""

    name: Literal["sft", "dpo", "reward_model"]

    def settings(self) -> SupervisedSettings:
        return make_settings(SUPERVISED[self.name], self.params, f"algorithm {self.name!r}")


class DetachedAlgorithmSection(AlgorithmSection):
    """An algorithm by name, by dotted path, or in Python as an object in place of its name."""

    old: Literal["sampler", "trainer"] = "sampler"
    importance_cap: float = Field(2.0, gt=0)
    _given: Algorithm | None = PrivateAttr(None)

    @property
    def given(self) -> Algorithm | None:
        """The object, where one of the user's own class was given; `name` and `params` describe it for the record."""
        return self._given

    def build(self) -> Algorithm:
        """The algorithm with its settings. This imports torch."""
        from ..algorithms import build_algorithm

        return self._given if self._given is not None else build_algorithm(self.name, **self.params)

    def written(self) -> dict[str, Any]:
        content = super().written()
        return content if self._given is None else {**content, "name": self._given, "params": {}}

    @model_validator(mode="wrap")
    @classmethod
    def _take_object(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """One of Proa's own classes is the same as its name with the settings that were changed."""
        given = value.get("name") if isinstance(value, Mapping) else None
        if given is None or isinstance(given, str | int | float):
            return handler(value)
        from ..algorithms import ALGORITHMS, Algorithm

        if not isinstance(given, Algorithm):
            remedy = f"give an object, {given.__name__}()" if isinstance(given, type) else "derive it from Algorithm"
            raise mistake(
                f"algorithm is a name, a dotted path or an algorithm, and {given!r} is none: {remedy}", "name"
            )
        if value.get("params"):
            raise mistake(
                f"the algorithm {given.name} was given with its settings: leave out algorithm.params", "params"
            )
        is_named = ALGORITHMS.get(given.name) is type(given)
        name = given.name if is_named else f"{type(given).__name__} {GIVEN}"
        params = {key: _in_words(setting) for key, setting in changed_settings(given).items()}
        section = handler({**value, "name": name, "params": params})
        section._given = None if is_named else given
        return section


def _in_words(setting: Any) -> Any:
    """A setting as a record holds it: the same in every process, as an object's address is not."""
    if isinstance(setting, list | tuple):
        return [_in_words(one) for one in setting]
    if isinstance(setting, Mapping):
        return {str(key): _in_words(one) for key, one in setting.items()}
    return setting if isinstance(setting, str | int | float | None) else type(setting).__qualname__


class CriticSection(Section):
    """PPO's critic."""

    kind: Literal["shared", "separate"] = Field("shared", description="a head on the policy, or a model of its own")
    path: str | None = Field(None, description="separate only: a reward-model folder to start from")
    learning_rate: float | None = Field(None, gt=0, description="separate only; by default the policy's")

    @model_validator(mode="after")
    def _only_separate(self) -> CriticSection:
        if self.kind == "shared" and (self.path is not None or self.learning_rate is not None):
            raise ValueError(
                "critic.path and critic.learning_rate are for a critic of its own: set critic.kind: separate"
            )
        return self


class LoraSection(Section):
    """Train an adapter beside a frozen model."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    target_modules: Literal["all-linear"] | list[str] = Field("all-linear", description="names of linear layers")
    rslora: bool = Field(False, description="scale by alpha / sqrt(rank)")
    path: str | None = Field(None, description="an adapter folder to go on from; it says all the rest itself")

    @model_validator(mode="after")
    def _one_or_the_other(self) -> LoraSection:
        if self.path is not None and (also := self.model_fields_set - {"path"} - self._defaults()):
            raise ValueError(f"lora.path goes on with the adapter as it is: leave out {', '.join(sorted(also))}")
        return self

    def _defaults(self) -> set[str]:
        return {name for name, field in type(self).model_fields.items() if getattr(self, name) == field.default}


class EngineSection(Section):
    kind: Literal["native", "hf"] = "native"
    slots: int = Field(0, ge=0, description="sequences decoded at once; 0 is all of a lease's")


class OptimizerSection(Section):
    learning_rate: float = Field(1e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0, description="0 clips nothing")
    token_budget: int = Field(16_384, ge=0, description="tokens of a micro-batch; 0 is the whole batch at once")


class DetachedOptimizerSection(OptimizerSection):
    share_prompts: bool = Field(
        False, description="compute a prompt once for its group: faster unless completions are far longer"
    )


class EvalSection(Section):
    name: FolderName
    kind: Literal["auto", "generate", "loss"] = Field(
        "auto", description="score greedy completions, or measure on data as it is; auto: what the algorithm trains"
    )
    source: str | None = Field(None, description="data to evaluate on; by default the test split of the task")
    count: int = Field(512, ge=1)
    run_every: int = Field(0, ge=0, description="steps; 0 is at the end only")
    baseline: bool = True
    metric: str | None = Field(None, description="dotted path of a scoring function; by default the task's own")
    max_new_tokens: int | None = Field(None, ge=1)
    samples: int = Field(1, ge=1, description="completions of each prompt; with several, pass@k and mean@k")
    temperature: float | None = Field(None, ge=0, description="by default 0, which is greedy; with several samples 1")
    correct_at: float = Field(1.0, description="a completion with at least this reward counts as correct")
    breakdown: list[str] = Field(default_factory=list, description="columns by whose values scores are broken down")
    tags: list[str] = Field(default_factory=list)
    evaluator: str | None = Field(
        None, description="dotted path of a function, async or not, that is given the policy and returns numbers"
    )

    apart: bool = Field(
        False,
        description="score a copy of the weights in the background, while training goes on to the next checkpoint",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> EvalSection:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"eval {self.name}: with temperature 0 all {self.samples} samples would be the same")
        if self.apart and self.kind == "loss":
            raise ValueError(f"eval {self.name}: apart is for evals that generate, not for kind loss")
        return self

    @property
    def sampling_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0


class RecordSection(Section):
    """What is written down beside metrics and evals."""

    rollouts: int = Field(4, ge=0, description="completions kept of a step, with what each token was given; 0 is none")
    rollouts_every: int | None = Field(None, ge=1, description="steps; by default about fifty times in the run")
    spans: bool = Field(True, description="who did what when, for a timeline")


class CheckpointSection(Section):
    """When the run is saved, and what is kept of it."""

    save_every: int = Field(100, ge=0, description="optimizer steps; 0 is at the end only")
    keep: int | None = Field(2, ge=1, description="so many of the newest; null keeps all")
    best: str | None = Field(None, description="a metric whose best checkpoint is kept besides, e.g. held_out.exact")
    mode: Literal["max", "min"] = Field("max", description="which value of it is best")
    background: bool = Field(False, description="write beside the training, at the cost of a copy in memory")
    grace: float = Field(
        60.0, ge=0, le=1e9, description="seconds that Ctrl-C, SIGTERM and a closed terminal leave for a last one"
    )


class WarmStartSection(Section):
    """A short supervised start on the task's `answer` column, before the run proper."""

    steps: int = Field(ge=1)
    batch_size: int = Field(128, ge=1)
    learning_rate: float = Field(1e-3, gt=0)


class RaySection(Section):
    """Where actors run, with `runtime: ray`."""

    address: str | None = Field(None, description="of a cluster that is there; none starts one on this machine")
    trainer: dict[str, Any] = Field(
        default_factory=dict, description="Ray's options of the trainer, e.g. {num_gpus: 1}"
    )
    maker: dict[str, Any] = Field(default_factory=dict, description="of each maker, e.g. {num_gpus: 0.5}")
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = Field(
        None, description="reserve room for all actors at once, on few nodes or on many; none leaves it to Ray"
    )
    min_makers: int = Field(1, ge=1, description="with fewer, the run ends")
    max_restarts: int = Field(10, ge=1, description="in a row, of one maker's place, before anything was made there")
    trainer_restarts: int = Field(2, ge=0, description="how often a trainer that died is started from its checkpoint")


class CallbackSection(Section):
    kind: str
    params: dict[str, Any] = Field(default_factory=dict)
