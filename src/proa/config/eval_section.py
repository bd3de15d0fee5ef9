"""The section `eval`: what scores the weights, while they are trained and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from .sections import FolderName, Section, mistake
from .yaml_text import ConfigError

IN_THE_LOOP = ("kind", "run_every", "baseline", "apart")
"""Keys of evals that run while a model is trained; a benchmark after training has no use for them."""


class BenchmarkSection(Section):
    """A benchmark of final weights: completions of a task's prompts and their scores, or the user's own function."""

    name: FolderName = Field(description="its name, in metrics as <name>.<metric>")
    source: str | None = Field(None, description="data to evaluate on; by default the test split of the task")
    split: str | None = Field(None, description="of a dataset that has several, e.g. test")
    columns: dict[str, str] | None = Field(
        None, description="what columns are called in the data; by default what task.columns says, {} for none"
    )
    count: int = Field(512, ge=1, description="prompts to evaluate on")
    metric: str | None = Field(
        None, description="dotted path of a scoring function; by default that of its task, or the run's reward"
    )
    max_new_tokens: int | None = Field(None, ge=1, description="by default that of sampling")
    samples: int = Field(1, ge=1, description="completions of each prompt; with several, pass@k and mean@k")
    temperature: float | None = Field(None, ge=0, description="by default 0, which is greedy; with several samples 1")
    correct_at: float = Field(1.0, description="a completion with at least this reward counts as correct")
    breakdown: list[str] = Field(default_factory=list, description="columns to break scores down by")
    tags: list[str] = Field(default_factory=list, description="words to find its results by")
    evaluator: str | None = Field(
        None, description="dotted path of a function, async or not, that is called with the policy and returns numbers"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_keys_of_the_loop(cls, given: Any) -> Any:
        keys = [key for key in IN_THE_LOOP if key not in cls.model_fields]
        unused = next((key for key in keys if isinstance(given, Mapping) and key in given), None)
        if unused is not None:
            raise mistake(
                f"benchmark {given.get('name')}: {unused} is for evals in the loop, and this one scores the final "
                f"weights, once. Leave {unused} out, or add an eval to the run, which may have the same name",
                unused,
            )
        return given

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"eval {self.name}: with temperature 0 all {self.samples} samples would be the same")
        return self

    def check_data(self, *, has_test_split: bool) -> None:
        """Raise if there is nothing to evaluate on; the task may have data that is not trained on."""
        if self.source is None and self.evaluator is None and not has_test_split:
            raise ConfigError(f"eval {self.name} has no data of its own: give source, what is held out of training")

    @property
    def sampling_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0


class EvalSection(BenchmarkSection):
    """A benchmark of the weights while they are trained, or their loss on data."""

    kind: Literal["auto", "generate", "loss"] = Field(
        "auto", description="score greedy completions, or compute the loss on data; auto follows the algorithm"
    )
    run_every: int = Field(0, ge=0, description="steps between evals; 0 evaluates at the end only")
    baseline: bool = Field(True, description="also before the first step")
    apart: bool = Field(
        False,
        description="score a copy of the weights in the background, while training continues to the next checkpoint",
    )

    @model_validator(mode="after")
    def _check_apart(self) -> Self:
        if self.apart and self.kind == "loss":
            raise ValueError(f"eval {self.name}: apart is for evals that generate, not for kind loss")
        return self
