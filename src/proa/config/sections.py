"""The sections of a configuration. Unknown keys are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ..dotted import name_of
from ..errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..engines import Engine, EngineFactory

MISTAKE = "mistake"
"""The type of an error whose message names the key itself."""


def mistake(message: str, *place: str | int) -> PydanticCustomError:
    """An error at a key of the section that raises it, so that its line can be reported."""
    return PydanticCustomError(MISTAKE, "{message}", {"message": message, "place": place})


class Section(BaseModel):
    """Part of a configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


AUTO: Literal["auto"] = "auto"
"""Stands for what a run decides when it starts, from the model and the device."""
DTYPES = ("float32", "float64", "bfloat16", "float16")
_FOREIGN_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|npu|mtia|xla|meta)(:\d+)?")
"""What torch calls devices."""


def _dtype(name: str) -> str:
    """Torch is not asked: importing it takes longer than anybody waits to hear of a slip."""
    if name in (AUTO, *DTYPES):
        return name
    if name in _FOREIGN_DTYPES:
        raise ValueError(f"write {_FOREIGN_DTYPES[name]}")
    raise ValueError(f"write {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")


def _device(name: str) -> str:
    if name != AUTO and not _DEVICE.fullmatch(name):
        raise ValueError("write cpu, cuda or cuda:0")
    return name


DtypeName = Annotated[str, AfterValidator(_dtype)]
DeviceName = Annotated[str, AfterValidator(_device)]


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
        raise ValueError(
            "this is the name of a folder: use at most 200 letters, digits, dots, dashes and underscores, a letter or "
            "digit first"
        )
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]


class SamplingSection(Section):
    """How completions are generated; in a supervised run, by the user's own evaluator."""

    max_new_tokens: int = Field(64, ge=1, description="the most tokens of a completion")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description='texts that end a completion, after the token that completes one, e.g. ["</answer>"]; in evals too',
    )

    @field_validator("stop", mode="before")
    @classmethod
    def _one_text(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given


class DetachedSamplingSection(SamplingSection):
    group_size: int = Field(8, ge=1, description="completions per prompt")
    temperature: float = Field(1.0, gt=0, description="also used for the trainer's log-probabilities")
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample from the likeliest tokens that make up this share; 1 is all"
    )
    top_k: int = Field(0, ge=0, description="0 keeps all tokens")
    min_p: float = Field(
        0.0, ge=0, le=1, description="sample from tokens at least this many times as likely as the likeliest; 0 is all"
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="divides positive logits of tokens that the text already has, and multiplies negative ones; 1 is "
        "none",
    )


TRAINING_PREFIXES = ("trainer", "maker", "reward")
"""The parts before the dot in names of training metrics."""
CPU_TOKEN_BUDGET = 2048
"""Tokens of a micro-batch on a CPU: more only leave its caches."""
GIVEN = "(given in Python)"
"""Stands in a configuration for an object that was given in Python."""


class ModelSection(Section):
    path: str | None = Field(
        None, description="a Hugging Face folder, an adapter folder, or a name of the Hub: NAME/NAME@revision"
    )
    config: dict[str, Any] | None = Field(None, description="or a model configuration, with weights from the seed")
    tokenizer: str | None = Field(
        None, description="a folder or a name of the Hub; by default the model's, or a built-in task's own"
    )
    dtype: DtypeName = Field(
        AUTO,
        description="what is computed in; weights are trained in float32. auto is bfloat16 on a GPU, else float32",
    )
    device: DeviceName = Field(AUTO, description="cpu, cuda, cuda:1; auto is the GPU where there is one")
    attention: str = Field(
        AUTO, description="segments (no padding), or transformers' sdpa, eager, …; auto is segments on a GPU"
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        AUTO, description="compute activations twice instead of keeping them; auto does where memory is short"
    )
    compile: bool | Literal["auto"] = Field(AUTO, description="compile layers with torch.compile; auto does on a GPU")
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")

    @model_validator(mode="after")
    def _check_source(self) -> ModelSection:
        if (self.path is None) == (self.config is None):
            raise ValueError("give either model.path or model.config")
        return self


class TaskSection(Section):
    source: str = Field(
        description="a built-in task, a file (.jsonl, .json, .csv, .parquet), a saved dataset, hf:NAME of the Hub, or "
        "a dotted path to data"
    )
    split: str | None = Field(None, description="of a dataset that has several, e.g. train")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="what columns are called in the data, where that is not recognised, e.g. {prompt: question}",
    )
    prompt_column: str = Field("prompt", description="the column that holds the prompts; the same as columns.prompt")
    count: int | None = Field(None, ge=1, description="rows to use, the first; of a built-in task, rows to draw")
    overlong: Literal["error", "drop", "truncate_left"] = Field(
        "error", description="rows that the model's context has no room for: refuse, leave out, or cut their prompts"
    )
    chat_template: str | None = Field(
        None, description="a chat template (Jinja), as text or as a file, in place of the tokenizer's"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="values for names in the chat template, e.g. {enable_thinking: false}"
    )

    @model_validator(mode="after")
    def _check_prompt_column(self) -> TaskSection:
        if self.prompt_column != "prompt" and "prompt" in self.columns:
            raise ValueError("task.prompt_column and task.columns both name the prompts: leave out prompt_column")
        return self

    @property
    def named_columns(self) -> dict[str, str]:
        """The columns that were named, by what they are."""
        named = {} if self.prompt_column == "prompt" else {"prompt": self.prompt_column}
        return {**named, **self.columns}


class DetachedTaskSection(TaskSection):
    system_prompt: str | None = Field(
        None, description="a system message before each prompt that has none; a prompt that is text becomes the user's"
    )


class RewardModelSection(Section):
    path: str = Field(description="a folder, or a name of the Hub, of a sequence-classification model with one label")
    weight: float = Field(1.0, description="what its score counts beside the functions'")
    token_budget: int = Field(16_384, ge=0, description="tokens scored at once; 0 scores a whole lease at once")


class RewardSection(Section):
    functions: list[str] = Field(
        default_factory=list, description="dotted paths; by default the reward model alone, or the task's own"
    )
    weights: list[float] | None = Field(None, description="one for each function; by default 1 each")
    model: RewardModelSection | None = Field(None, description="a reward model's folder, alone or with functions")
    timeout: float = Field(30.0, gt=0, le=1e9, description="seconds for one call")
    workers: int = Field(1, ge=0, description="processes; 0 scores in the makers, without a deadline")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("model"), str):
            return {**given, "model": {"path": given["model"]}}
        return given

    @field_validator("functions", mode="before")
    @classmethod
    def _one_function(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_weights(self) -> RewardSection:
        if self.weights is not None and not self.functions and self.model is not None:
            raise ValueError("reward.weights is for functions; the weight of a reward model is reward.model.weight")
        return self


class CriticSection(Section):
    """PPO's critic."""

    kind: Literal["shared", "separate"] = Field("shared", description="a head on the policy, or a separate model")
    path: str | None = Field(None, description="separate only: the folder of a reward model to start from")
    learning_rate: float | None = Field(None, gt=0, description="separate only; by default the policy's")

    @model_validator(mode="after")
    def _check_kind(self) -> CriticSection:
        if self.kind == "shared" and (self.path is not None or self.learning_rate is not None):
            raise ValueError(
                "critic.path and critic.learning_rate are for a separate critic: set critic.kind: separate"
            )
        return self


class LoraSection(Section):
    """Train an adapter beside a frozen model."""

    rank: int = Field(16, ge=1, description="the width of the adapter")
    alpha: float = Field(32.0, gt=0, description="the adapter is scaled by alpha / rank")
    target_modules: Literal["all-linear"] | list[str] = Field("all-linear", description="names of linear layers")
    rslora: bool = Field(False, description="scale by alpha / sqrt(rank)")
    path: str | None = Field(None, description="an adapter folder to continue from; it has the other settings")

    @model_validator(mode="after")
    def _check_path(self) -> LoraSection:
        fields = type(self).model_fields
        changed = {name for name in self.model_fields_set - {"path"} if getattr(self, name) != fields[name].default}
        if self.path is not None and changed:
            raise ValueError(
                f"lora.path continues an adapter with its own settings: leave out {', '.join(sorted(changed))}"
            )
        return self


class EngineSection(Section):
    """An engine by name, by dotted path, or in Python as a class or a function that makes one instead of the name."""

    kind: str = Field("native", description="native, hf, vllm, an installed package's, or package.module:Engine")
    dtype: DtypeName | None = Field(None, description="in which it computes; by default the model's")
    device: DeviceName | None = Field(None, description="where it computes; by default where the model is trained")
    address: str | None = Field(
        None, description="of a vLLM server that runs already, e.g. http://127.0.0.1:8000, with kind: vllm"
    )
    slots: int = Field(0, ge=0, description="sequences decoded at once; 0 is the engine's own number")
    cache_tokens: int = Field(
        0, ge=0, description="tokens that the cache of native or vllm has room for; 0 takes what the slots need"
    )
    sleep: bool | Literal["auto"] = Field(
        AUTO,
        description="give the memory of the cache back whenever nothing is decoded; auto does in synchronous runs on a "
        "GPU that is short of memory",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="vLLM's own arguments, by name")
    params: dict[str, Any] = Field(default_factory=dict, description="further settings of an engine of your own")
    _given: EngineFactory | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_vllms(self) -> EngineSection:
        """What is vLLM's, and what cannot be said of a server that runs already, is known before torch is."""
        if self.kind in ("native", "hf"):
            if self.address is not None:
                raise ValueError(
                    f"engine.address is of a vLLM server, and engine.kind is {self.kind}: set engine.kind: vllm"
                )
            if self.options:
                raise ValueError(
                    f"engine.options are vLLM's own arguments, and engine.kind is {self.kind}: set engine.kind: vllm"
                )
        if self.kind == "vllm" and self.address is not None:
            self._check_server(self.address)
        return self

    def _check_server(self, address: str) -> None:
        if not re.match(r"https?://[^/:]", address):
            raise ValueError(f"engine.address is {address!r}: write it like http://127.0.0.1:8000")
        for name in ("options", "cache_tokens"):
            if getattr(self, name):
                raise ValueError(
                    f"engine.{name} is for vLLM in the maker's process, and engine.address names a server that runs "
                    f"already: leave engine.{name} out, and start the server with its own options"
                )

    @property
    def factory(self) -> str | EngineFactory:
        """What makes the engine: the object that was given, or the name."""
        if self.kind == "vllm" and self.address is not None:
            return "proa.engines.vllm_server:VLLMServerEngine"
        return self._given if self._given is not None else self.kind

    def settings(self) -> dict[str, Any]:
        """What an engine is told: what was set."""
        common = {"slots": self.slots, "cache_tokens": self.cache_tokens, "options": self.options}
        return {**{name: value for name, value in common.items() if value}, **self.params}

    def check(self, model: PreTrainedModel) -> None:
        """Raise if there is no such engine, or it cannot run this model. This imports torch."""
        from ..engines import check_engine

        check_engine(self.factory, model, self._arguments())

    def make(self, model: PreTrainedModel, end_ids: Sequence[int], device: str | None = None) -> Engine:
        """An engine for models like this one, without weights; on `device`, or where the model is."""
        from ..engines import ModelDescription, make_engine
        from ..policy.models import read_dtype

        if self._given is None and GIVEN in self.kind:
            raise SettingError(
                f"the run's engine, {self.kind}, is not here: evaluate its model/ folder, with the native engine, or "
                "name the engine by its dotted path in the run"
            )
        dtype = None if self.dtype is None else read_dtype(self.dtype)
        description = ModelDescription.of(model, end_ids=end_ids, dtype=dtype, device=self.device or device)
        return make_engine(self.factory, description, self._arguments())

    def _arguments(self) -> dict[str, Any]:
        """The engine's settings, and where it is, if that is elsewhere."""
        return self.settings() if self.address is None else {**self.settings(), "address": self.address}

    def source(self) -> dict[str, Any]:
        """The content that the section was made from, with the object if one was given."""
        return {**self.model_dump(), "kind": self.factory}

    @model_validator(mode="wrap")
    @classmethod
    def _take_object(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        given = value.get("kind") if isinstance(value, Mapping) else None
        if not callable(given):
            return handler(value)
        section = handler({**value, "kind": f"{name_of(given)} {GIVEN}"})
        section._given = given
        return section


class OptimizerSection(Section):
    learning_rate: float = Field(1e-5, gt=0, description="the largest step of a weight, about")
    weight_decay: float = Field(0.0, ge=0, description="of matrices; biases and norms are never decayed")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls to the end of the run"
    )
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises from 0")
    kind: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = Field(
        "adamw", description="the 8-bit ones are bitsandbytes': a quarter of the memory for moments"
    )
    state: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="bfloat16 trains a bfloat16 model without float32 weights: less memory, and small steps are lost",
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="how fast AdamW forgets gradients and their squares")
    epsilon: float = Field(1e-8, gt=0, description="added to the denominator of AdamW's steps")
    max_grad_norm: float = Field(1.0, ge=0, description="a longer gradient is shortened to this; 0 disables clipping")
    token_budget: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        AUTO, description="tokens of a micro-batch; 0 takes the whole batch at once; auto follows the memory"
    )

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a micro-batch; where nothing was decided, those of a CPU."""
        return CPU_TOKEN_BUDGET if self.token_budget == AUTO else int(self.token_budget)


class DetachedOptimizerSection(OptimizerSection):
    share_prompts: bool | Literal["auto"] = Field(
        AUTO,
        description="compute a prompt once for its group; auto does on a GPU, elsewhere it pays unless completions are "
        "far longer",
    )


class RecordSection(Section):
    """What is recorded besides metrics and evals."""

    rollouts: int = Field(
        4, ge=0, description="completions recorded per step, with values for each token; 0 disables it"
    )
    rollouts_every: int | None = Field(
        None, ge=1, description="steps between records; by default about fifty in the run"
    )
    spans: bool = Field(True, description="a timeline of all actors")


class CheckpointSection(Section):
    """When checkpoints are saved, and which are kept."""

    save_every: int = Field(100, ge=0, description="optimizer steps between checkpoints; 0 saves at the end only")
    keep: int | None = Field(2, ge=1, description="how many of the newest to keep; null keeps all")
    best: str | None = Field(None, description="a metric whose best checkpoint is kept as well, e.g. held_out.exact")
    mode: Literal["max", "min"] = Field("max", description="which value of it is best")
    background: bool = Field(False, description="write while training continues, at the cost of a copy in memory")
    grace: float = Field(
        60.0, ge=0, le=1e9, description="seconds for a last checkpoint after Ctrl-C, SIGTERM or a closed terminal"
    )


class WarmStartSection(Section):
    """A short supervised phase on the task's `answer` column, before the run proper."""

    steps: int = Field(ge=1, description="supervised steps")
    batch_size: int = Field(128, ge=1, description="rows of a supervised step")
    learning_rate: float = Field(1e-3, gt=0, description="of the supervised steps")


class RaySection(Section):
    """Settings of `runtime: ray`."""

    address: str | None = Field(None, description="an existing cluster; by default one is started on this machine")
    trainer: dict[str, Any] = Field(
        default_factory=dict, description="Ray's options for each trainer, e.g. {num_gpus: 1}"
    )
    maker: dict[str, Any] = Field(
        default_factory=dict, description="Ray's options for each maker, e.g. {num_gpus: 0.5}"
    )
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = Field(
        None, description="reserve resources for all actors at once, on few nodes or on many; by default Ray decides"
    )
    min_makers: int = Field(1, ge=1, description="with fewer, the run ends")
    max_restarts: int = Field(
        10, ge=1, description="restarts of a maker in a row without any result, before its slot stays empty"
    )
    trainer_restarts: int = Field(2, ge=0, description="how often a trainer that died is restarted from its checkpoint")
    log_to_driver: bool = Field(
        True, description="show what actors print in the driver's output, each line with the actor's name"
    )


class CallbackSection(Section):
    kind: str = Field(description="a name (proa callbacks lists them) or a dotted path")
    params: dict[str, Any] = Field(default_factory=dict, description="arguments of its constructor")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given
