"""`RunConfig`: everything that decides what a run does. Unknown keys are errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ..spelling import did_you_mean


class Section(BaseModel):
    """Part of a configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
        raise ValueError(
            "a folder gets this name: use letters, digits, dots, dashes and underscores, a letter or digit first, "
            "200 at most"
        )
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]


class SamplingSection(Section):
    group_size: int = Field(8, ge=1, description="completions per prompt")
    max_new_tokens: int = Field(64, ge=1)
    temperature: float = Field(1.0, gt=0, description="the trainer's log-probabilities use it too")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 keeps all tokens")


SUPERVISED = ("sft", "dpo", "reward_model")
"""Algorithms that learn from data as it is: no makers, no sampling, no reward."""

TRAININGS_OWN = ("trainer", "maker", "reward")
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
    name: str = "grpo"
    params: dict[str, Any] = Field(default_factory=dict)
    old: Literal["sampler", "trainer"] = "sampler"
    importance_cap: float = Field(2.0, gt=0)


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


SHORT_FORMS = {"model": "path", "task": "source", "algorithm": "name", "engine": "kind", "critic": "kind"}
"""Sections that may be written as one word, and which of their keys it is."""

_DETACHED_ONLY = (
    "makers", "max_staleness", "schedule", "update_steps", "buffer_limit", "lease_prompts", "lease_timeout",
    "wait_timeout", "reward", "critic", "warm_start", "optimizer.share_prompts", "algorithm.old",
    "algorithm.importance_cap", "runtime", "ray", "trainers",
)  # fmt: skip


class RunConfig(Section):
    """One run."""

    name: FolderName = "run"
    output_dir: Path = Path("runs")
    seed: int = Field(0, ge=0, lt=2**63)
    runtime: Literal["local", "ray"] = "local"
    makers: int = Field(1, ge=1)
    trainers: int = Field(1, ge=1, description="each computes its share of every batch; more than one needs ray")
    threads: int = Field(1, ge=1, le=4096, description="torch threads per role")
    max_staleness: int = Field(1, ge=0, description="versions a sample may lag; 0 is synchronous")
    schedule: Literal["in_order", "windowed"] = "in_order"
    total_steps: int = Field(ge=1, description="fresh batches")
    update_steps: int = Field(1, ge=1, description="steps between two pushes of weights")
    train_epochs: int = Field(1, ge=1, description="passes over each episode's batches")
    train_batch_size: int = Field(ge=1, description="samples, whole groups")
    buffer_limit: int = Field(0, ge=0, description="batches; 0 is unlimited")
    lease_prompts: int | None = Field(None, ge=1, description="by default about a quarter of a batch's prompts")
    wait_timeout: float = Field(600.0, gt=0, le=1e9, description="seconds; the deadline of every wait")
    lease_timeout: float | None = Field(
        None,
        gt=0,
        description="seconds a maker may have a lease before another gets it; by default half of wait_timeout",
    )
    sampling: SamplingSection = SamplingSection()
    model: ModelSection
    task: TaskSection
    reward: RewardSection = RewardSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    critic: CriticSection | None = Field(None, description="PPO's; by default a head on the policy")
    lora: LoraSection | None = None
    engine: EngineSection = EngineSection()
    ray: RaySection = RaySection()
    optimizer: OptimizerSection = OptimizerSection()
    warm_start: WarmStartSection | None = None
    checkpoint: CheckpointSection = CheckpointSection()
    record: RecordSection = RecordSection()
    eval: list[EvalSection] = Field(default_factory=list)
    callbacks: list[CallbackSection] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        """`model: path` and `task: name` are the same as `model: {path: …}` and `task: {source: …}`."""
        if isinstance(given, dict):
            given = dict(given)
            for section, key in SHORT_FORMS.items():
                if isinstance(given.get(section), str):
                    given[section] = {key: given[section]}
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        self._check_eval_names()
        self._check_best([section.name for section in self.eval])
        if self.is_supervised:
            self._refuse_what_has_no_meaning(_DETACHED_ONLY)
            return self
        if measuring := next((section for section in self.eval if section.kind == "loss"), None):
            raise ValueError(f"eval {measuring.name}: kind loss is for supervised algorithms; here evals generate")
        if self.algorithm.name != "ppo":
            self._refuse_what_has_no_meaning(("critic",))
        group = self.sampling.group_size
        if group < 2 and self.algorithm.name not in ("ppo", "reinforce_pp"):
            raise ValueError("sampling.group_size must be at least 2: completions of one prompt are compared")
        if self.train_batch_size % group:
            raise ValueError(
                f"train_batch_size={self.train_batch_size} does not hold whole groups of sampling.group_size={group}"
            )
        self._check_trainers()
        if self.lease_timeout is not None and self.lease_timeout >= self.wait_timeout:
            raise ValueError(
                f"lease_timeout={self.lease_timeout:g} must be less than wait_timeout={self.wait_timeout:g}: "
                f"a hung maker is to be replaced before the trainer gives up waiting"
            )
        if self.prompts_per_step % self.prompts_per_lease:
            raise ValueError(
                f"lease_prompts={self.lease_prompts} does not divide the {self.prompts_per_step} prompts of a batch"
            )
        return self

    def _check_eval_names(self) -> None:
        names = [section.name for section in self.eval]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two evals are called {twice.pop()!r}: give each a name of its own")
        if taken := next((name for name in names if name in TRAININGS_OWN), None):
            raise ValueError(f"an eval cannot be called {taken}: training has metrics of that name")
        for one in names:
            if longer := next((name for name in names if name.startswith(f"{one}.")), None):
                raise ValueError(f"evals {one!r} and {longer!r} would have scores of one name: rename one of them")

    def _check_best(self, evals: list[str]) -> None:
        """A metric that no eval brings would never be best of anything, and nobody would notice."""
        best = self.checkpoint.best
        if best is None or "." not in best or best.partition(".")[0] in (*evals, *TRAININGS_OWN):
            return
        near = did_you_mean(best.partition(".")[0], evals)
        known = f" (they are {', '.join(evals)})" if evals else ": there is none"
        raise ValueError(f"checkpoint.best is {best}, and no eval is called that{near}{known}")

    def _check_trainers(self) -> None:
        if self.trainers > 1 and self.runtime != "ray":
            raise ValueError(f"trainers={self.trainers} needs processes of their own: set runtime: ray")
        if self.prompts_per_step % self.trainers:
            raise ValueError(
                f"the {self.prompts_per_step} groups of a batch do not divide among trainers={self.trainers}: "
                f"make train_batch_size a multiple of {self.trainers * self.sampling.group_size}"
            )

    def _refuse_what_has_no_meaning(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            section: BaseModel = self
            *path, last = key.split(".")
            for part in path:
                section = getattr(section, part)
            if getattr(section, last) != type(section).model_fields[last].default:
                raise ValueError(f"{key} has no meaning for algorithm {self.algorithm.name}: leave it out")

    @property
    def is_supervised(self) -> bool:
        return self.algorithm.name in SUPERVISED

    @property
    def prompts_per_step(self) -> int:
        return self.train_batch_size // self.sampling.group_size

    @property
    def prompts_per_lease(self) -> int:
        """What was asked for, or the largest divisor of a batch's prompts that is at most a quarter of them."""
        if self.lease_prompts is not None:
            return self.lease_prompts
        prompts = self.prompts_per_step
        return next(size for size in range(max(1, prompts // 4), 0, -1) if prompts % size == 0)

    @property
    def folder(self) -> Path:
        return self.output_dir / self.name
