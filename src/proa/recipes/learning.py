"""Supervised recipes from one configuration: SFT, DPO and reward models, with record, evals and LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config import ConfigError, RunConfig
from ..config.run_config import EvalSection
from ..data.state import LoopState, TrainState
from ..lifecycle.manager import Callbacks
from ..loop import Evaluator
from ..policy.adapter_layout import AdapterOverBase
from ..policy.lora import adapter_layout, adapter_weights, base_weights, has_lora
from ..policy.models import random_numbers_from, weights_digest
from ..policy.optimizer import OptimizerSettings
from ..policy.reference import reference_of
from ..policy.reward_model import reward_model_from, save_reward_model
from ..policy.whole import all_parameters
from ..record.run_folder import RunFolder
from ..spelling import did_you_mean
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.preferences import load_preferences
from .evaluation import evaluator_for
from .fit_dpo import fit_dpo
from .fit_reward_model import fit_reward_model
from .fit_sft import fit_sft
from .given import Given, configured
from .job import carry_out, state_summary
from .material import load_material, load_training_task, prepare_lora, save_policy
from .placing import place_callbacks


def sft(config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Any) -> TrainState:
    """Supervised fine-tuning on prompts and answers, or on conversations.

    `algorithm.params`: `answer_column`, `train_on_prompt`, `every_answer`, `packing`, `max_length`.
    """
    return learn(config, "sft", callbacks=callbacks, **changes)


def dpo(config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Any) -> TrainState:
    """Direct preference optimisation on pairs of completions.

    `algorithm.params`: `beta`, `loss` (`sigmoid` or `ipo`), `label_smoothing`, `reference_free`, `max_length`.
    """
    return learn(config, "dpo", callbacks=callbacks, **changes)


def reward_model(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Any
) -> TrainState:
    """A reward model from pairs of completions; `model/` is a folder for `AutoModelForSequenceClassification`.

    `algorithm.params`: `max_length`.
    """
    return learn(config, "reward_model", callbacks=callbacks, **changes)


def learn(
    config: RunConfig | Path | str | None = None,
    its_algorithm: str | None = None,
    /,
    *,
    callbacks: Callbacks = None,
    **changes: Any,
) -> TrainState:
    """Run a supervised recipe as configured (a `RunConfig`, a YAML file, or keywords alone)."""
    settled, given = configured(config, its_algorithm, changes)
    return carry_out(settled, SupervisedRun(settled, given, callbacks))


_SETTINGS = {
    "sft": ("answer_column", "train_on_prompt", "every_answer", "packing", "max_length"),
    "dpo": ("beta", "loss", "label_smoothing", "reference_free", "max_length"),
    "reward_model": ("max_length",),
}


class SupervisedRun:
    """One run's parts. What is wrong with model, data or callbacks is found when it is built."""

    def __init__(self, config: RunConfig, given: Given, callbacks: Callbacks) -> None:
        self.config = config
        self.kind = config.algorithm.name
        _check_settings(config)
        self.manager, makers_own = place_callbacks(config, callbacks)
        if makers_own:
            raise ConfigError(f"{self.kind} has no makers: a MakerCallback would never be called")
        self.data: Any = load_training_task(config, given) if self.kind == "sft" else _pairs(config, given)
        self.material = load_material(config, given)
        self.model: PreTrainedModel = self.material.model
        self.state: LoopState | None = None

    def train(self, folder: RunFolder) -> TrainState:
        torch.set_num_threads(self.config.threads)
        if self.kind == "reward_model":
            self.material.model = self.model = reward_model_from(self.model, seed=self.config.seed)
        prepare_lora(self.config, self.material, folder.path)
        self.manager.on("train_start")(self._remember)
        common: dict[str, Any] = {
            "steps": self.config.total_steps,
            "batch_size": self.config.train_batch_size,
            "epochs": self.config.train_epochs,
            "optimizer": _optimizer_settings(self.config),
            "token_budget": self.config.optimizer.token_budget,
            "seed": self.config.seed,
            "callbacks": self.manager,
            "evaluators": self._generating_evaluators(),
            "output_dir": self.config.folder,
            **self.config.algorithm.params,
        }
        state = _FITS[self.kind](self, common)
        self._save(folder.path)
        return state

    def summary(self) -> dict[str, Any]:
        if self.state is None:
            return {}
        return {
            **state_summary(self.state, [section.name for section in self.config.eval], self.manager.errors),
            "weights_digest": weights_digest(all_parameters(self.model)),
        }

    def _remember(self, state: LoopState) -> None:
        self.state = state

    # -- the three kinds -----------------------------------------------------------------------------

    def _fit_sft(self, common: dict[str, Any]) -> LoopState:
        section, rows = self._held_out(_eval_rows)
        return fit_sft(
            self.model, self.material.tokenizer, self.data, eval_rows=rows, **_named(section), **common
        )  # fmt: skip

    def _fit_dpo(self, common: dict[str, Any]) -> LoopState:
        section, pairs = self._held_out(_eval_pairs)
        # An adapter that has learned already is not the reference: the base under it is.
        reference = reference_of(self.model) if has_lora(self.model) and not common.get("reference_free") else None
        return fit_dpo(
            self.model,
            self.material.tokenizer,
            self.data,
            reference=reference,
            eval_pairs=pairs or (),
            **_named(section),
            **common,
        )

    def _fit_reward_model(self, common: dict[str, Any]) -> LoopState:
        section, pairs = self._held_out(_eval_pairs)
        if has_lora(self.model):
            _score_of(self.model).requires_grad_(True)  # a head that was drawn is not to be kept as it is
        return fit_reward_model(
            self.model, self.material.tokenizer, self.data, eval_pairs=pairs or (), **_named(section), **common
        )  # fmt: skip

    def _save(self, folder: Path) -> None:
        if self.kind != "reward_model":
            save_policy(self.config, self.material, folder, folder / "model")
        elif has_lora(self.model):
            save_reward_model(_merged(self.model, self.config.seed), self.material.tokenizer, folder / "model")
        else:
            save_reward_model(self.model, self.material.tokenizer, folder / "model")

    # -- evals ---------------------------------------------------------------------------------------

    def _held_out(self, load: Callable[[EvalSection, RunConfig], Any]) -> tuple[EvalSection | None, Any]:
        sections = [section for section in self.config.eval if section.kind != "generate"]
        if len(sections) > 1:
            raise ConfigError(f"one eval of kind loss is enough: {sections[0].name} and {sections[1].name} are two")
        return (sections[0], load(sections[0], self.config)) if sections else (None, None)

    def _generating_evaluators(self) -> list[Evaluator]:
        sections = [section for section in self.config.eval if section.kind == "generate"]
        if sections and self.kind == "reward_model":
            raise ConfigError(f"eval {sections[0].name}: a reward model generates nothing; set its kind to loss")
        return [evaluator_for(section, self.config, self.material, self._steps_done) for section in sections]

    def _steps_done(self) -> int:
        return self.state.global_step if self.state is not None else 0


_FITS: Mapping[str, Callable[[SupervisedRun, dict[str, Any]], LoopState]] = {
    "sft": SupervisedRun._fit_sft,
    "dpo": SupervisedRun._fit_dpo,
    "reward_model": SupervisedRun._fit_reward_model,
}


def _check_settings(config: RunConfig) -> None:
    kind = config.algorithm.name
    if kind not in _SETTINGS:
        raise ConfigError(f"algorithm {kind} is not supervised: use proa train, or the recipe of its name")
    for name in config.algorithm.params:
        if name not in _SETTINGS[kind]:
            known = _SETTINGS[kind]
            raise ConfigError(f"{kind} has no setting {name!r}{did_you_mean(name, known)} (it has: {', '.join(known)})")


def _pairs(config: RunConfig, given: Given) -> Any:
    pairs = load_preferences(config.task.source if given.data is None else given.data)
    return pairs[: config.task.count]


def _eval_rows(section: EvalSection, config: RunConfig) -> Task:
    source = _source(section, config)
    if source in BUILTIN:
        return builtin_task(source, "test", section.count, config.seed)
    task = load_task(source, prompt_column=config.task.prompt_column)
    return Task(task.name, task.rows[: section.count], task.reward)


def _eval_pairs(section: EvalSection, config: RunConfig) -> Any:
    return load_preferences(_source(section, config))[: section.count]


def _source(section: EvalSection, config: RunConfig) -> str:
    source = section.source or config.task.source
    if section.source is None and source not in BUILTIN:
        raise ConfigError(f"eval {section.name} has no data of its own: give source, what is held out of training")
    return source


def _named(section: EvalSection | None) -> dict[str, Any]:
    return {} if section is None else {"eval_name": section.name, "eval_every": section.run_every}


def _optimizer_settings(config: RunConfig) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump(exclude={"token_budget", "share_prompts"}))


def _score_of(model: PreTrainedModel) -> torch.nn.Module:
    score: torch.nn.Module = model.get_submodule("score")
    return score


def _merged(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A plain reward model that computes what one with an adapter does."""
    weights = AdapterOverBase(base_weights(model), adapter_layout(model)).merged(adapter_weights(model))
    with random_numbers_from(seed):  # drawn only to be replaced
        plain: Any = type(model)(model.config)
    plain.load_state_dict(weights)
    merged: PreTrainedModel = plain.to(model.device, model.dtype).eval()
    return merged
