"""A supervised run from its configuration: SFT, DPO or a reward model, with record, evals and LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..actors.interruption import Interruption
from ..config import ConfigError, SupervisedConfig
from ..config.sections import EvalSection
from ..config.supervised_settings import DPOSettings, SFTSettings
from ..data.results import EvalResult
from ..data.state import LoopState, TrainState
from ..evals.evaluation import eval_source, evaluator_for
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import Priority
from ..loop import Evaluator, Saver
from ..policy.adapter_layout import AdapterOverBase
from ..policy.lora import adapter_layout, adapter_weights, base_weights, has_lora
from ..policy.models import random_numbers_from, weights_digest
from ..policy.reference import reference_of
from ..policy.reward_model import reward_model_from, save_reward_model
from ..policy.whole import all_parameters
from ..record.run_folder import RunFolder
from ..resume.checkpoints import Checkpoints
from ..resume.inputs import Inputs, Rows, architecture_of, row_tokens, tokenizer_digest
from ..resume.resuming import Resumption, load_policy, other_start, restore_process, start_digest
from ..supervised.dpo import fit_dpo
from ..supervised.reward_model import fit_reward_model
from ..supervised.sft import Examples, fit_sft
from ..supervised.training import HeldOut
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.preferences import load_preferences, tokenise_pair
from ..tasks.task import TaskError
from .driver_record import DriverRecord
from .given import Given
from .job import state_summary
from .material import BASE_NAME, load_material, load_training_task, prepare_lora, save_policy
from .placing import Listeners
from .step_record import TakeLoopSpans

TRIED_ROWS = 256
"""Rows that a checkpoint is bound to as tokens; the others as they are written, beside the tokenizer."""


class SupervisedRun:
    """One run's parts. What is wrong with model, data or callbacks is found when it is built."""

    def __init__(self, config: SupervisedConfig, given: Given, listeners: Listeners) -> None:
        self.config = config
        self.listeners = listeners
        self.manager = listeners.manager
        self.kind = config.algorithm.name
        self.settings = config.algorithm.settings()
        self.data: Any = training_data(config, given)
        self.eval_section, self.eval_data = _held_out(config, self.kind)
        self.material = load_material(config, given)
        self.model: PreTrainedModel = self.material.model
        self.inputs = self._inputs()
        self.state: LoopState | None = None
        self._record: DriverRecord | None = None
        self._optimizer: Optimizer | None = None
        self._given = given.evaluators
        self.evaluators = self._generating_evaluators()
        if self.listeners.makers:
            raise ConfigError(f"{self.kind} has no makers: a MakerCallback would never be called")

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> TrainState:
        torch.set_num_threads(self.config.threads)
        self._prepare(folder.path, resumption)
        self._optimizer = optimizer = Optimizer(
            self.model.named_parameters(),
            _optimizer_settings(self.config),
            self.config.total_steps * self.config.train_epochs,
        )
        self._record = DriverRecord(folder.path, self.manager, self.listeners.context(folder.path))
        self.listeners.add(_Remember(self))
        saver = self._saver(folder.path, resumption, optimizer, self._record, lambda: interruption.reason)
        common: dict[str, Any] = {
            "steps": self.config.total_steps,
            "batch_size": self.config.train_batch_size,
            "epochs": self.config.train_epochs,
            "optimizer": optimizer,
            "token_budget": self.config.optimizer.token_budget,
            "seed": self.config.seed,
            "callbacks": self.manager,
            "evaluators": self.evaluators,
            "saver": saver,
            "output_dir": self.config.folder,
            "settings": self.settings,
            "held_out": self._held_out_data(),
        }
        with self._record.finishing():
            return _FITS[self.kind](self, common)

    def _inputs(self) -> Inputs:
        rows: Sequence[Any] = self.data.rows if isinstance(self.data, Task) else self.data
        return Inputs(
            rows=Rows.of(row_tokens(self._row_tokens(), rows, TRIED_ROWS), rows, len(rows)),
            tokenizer=tokenizer_digest(self.material.tokenizer),
            architecture=architecture_of(self.model),
        )

    def _row_tokens(self) -> Callable[[int], Any]:
        """Makes tokens of the row at a place, as training will; what is wrong with one is told there."""
        tokenizer, settings = self.material.tokenizer, self.settings
        if isinstance(settings, SFTSettings):
            # What is learned of a row is not part of it, nor how long it may be.
            examples = Examples(self.data, tokenizer, replace(settings, train_on_prompt=False, max_length=None))

        def tokens(place: int) -> Any:
            try:
                if isinstance(settings, SFTSettings):
                    return [examples[place].sequences, examples[place].action_mask]
                return tokenise_pair(self.data[place], tokenizer, where="")
            except TaskError as error:
                return str(error)

        return tokens

    def _saver(
        self,
        folder: Path,
        resumption: Resumption | None,
        optimizer: Optimizer,
        record: DriverRecord,
        asked_to_leave: Callable[[], str],
    ) -> Saver:
        """Writes its checkpoints, and knows which one it goes on from."""
        start = self._start_digest(resumption)
        checkpoints = Checkpoints(
            self.config,
            folder,
            self.model,
            lambda model, into: self._save(folder, model, into),
            record,
            self.inputs,
            asked_to_leave=asked_to_leave,
            more=lambda: {"optimizer": optimizer.state_dict(), **self._trained()},
            of_this_process=lambda: {"start_digest": start},
        )
        resumed = None
        if resumption is not None:
            restore_process(resumption, self.manager)
            resumed = replace(resumption.loop(), restore=lambda: self._go_on(resumption, optimizer))
        saver = checkpoints.saver(resumed)
        if not self.config.record.spans:
            return saver
        spans = TakeLoopSpans(record)
        self.listeners.add(spans)
        return spans.saving(saver)

    def _prepare(self, folder: Path, resumption: Resumption | None) -> None:
        """The model as it is before the first step."""
        if resumption is not None and (folder / BASE_NAME).is_dir():
            load_policy(self.model, folder / BASE_NAME, trust_remote_code=self.config.model.trust_remote_code)
        if self.kind == "reward_model":
            self.material.model = self.model = reward_model_from(self.model, seed=self.config.seed)
        prepare_lora(self.config, self.material, folder, is_new=resumption is None)
        if self.kind == "reward_model" and has_lora(self.model):
            _score_of(self.model).requires_grad_(True)  # a head that was drawn is not to be kept as it is

    def _start_digest(self, resumption: Resumption | None) -> str:
        """Of what the run began with, where that is the reference, or lies under an adapter that is saved merged; a run
        that goes on must begin with the same. (Other adapters say themselves what they are over.)"""
        if self.kind == "reward_model" and has_lora(self.model):
            digest = self.material.base_digest or ""
        elif isinstance(self.settings, DPOSettings) and not (self.settings.reference_free or has_lora(self.model)):
            digest = start_digest(self.model)
        else:
            return ""
        before = digest if resumption is None else resumption.part("run")["start_digest"]
        if before not in ("", digest):  # a run of version 0.1 noted none for an adapter
            raise other_start()
        return digest

    def _trained(self) -> dict[str, dict[str, Any]]:
        """What is trained, where `model/` is not just that: a reward model is saved merged, and padded."""
        if self.kind != "reward_model":
            return {}
        named = self.model.named_parameters()
        return {"trained": {name: parameter.detach() for name, parameter in named if parameter.requires_grad}}

    def _go_on(self, resumption: Resumption, optimizer: Optimizer) -> None:
        """Weights and optimizer as they were. DPO has asked the model of the start about every pair by now."""
        if self.kind == "reward_model":
            own = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, tensor in resumption.part("trained").items():
                    own[name].copy_(tensor)
        else:
            load_policy(self.model, resumption.model, trust_remote_code=self.config.model.trust_remote_code)
        optimizer.load_state_dict(resumption.part("optimizer"))

    @property
    def began(self) -> bool:
        return self.state is not None

    def summary(self) -> dict[str, Any]:
        if self.state is None or self._optimizer is None:
            return {}
        return {
            **state_summary(self.state, [section.name for section in self.config.eval], self.manager.errors),
            "weights_digest": weights_digest(all_parameters(self.model) | self._optimizer.masters),
        }

    # -- the three kinds -----------------------------------------------------------------------------

    def _fit_sft(self, common: dict[str, Any]) -> LoopState:
        return fit_sft(self.model, self.material.tokenizer, self.data, **common)

    def _fit_dpo(self, common: dict[str, Any]) -> LoopState:
        # An adapter that has learned already is not the reference: the base under it is.
        takes_base = has_lora(self.model) and not common["settings"].reference_free
        reference = reference_of(self.model) if takes_base else None
        return fit_dpo(self.model, self.material.tokenizer, self.data, reference=reference, **common)

    def _fit_reward_model(self, common: dict[str, Any]) -> LoopState:
        return fit_reward_model(self.model, self.material.tokenizer, self.data, **common)

    def _save(self, run_folder: Path, model: PreTrainedModel, into: Path) -> None:
        if self.kind != "reward_model":
            save_policy(self.config, replace(self.material, model=model), run_folder, into)
        else:
            plain = _merged(model, self.config.seed) if has_lora(model) else model
            save_reward_model(plain, self.material.tokenizer, into)

    # -- evals ---------------------------------------------------------------------------------------

    def _held_out_data(self) -> HeldOut[Any] | None:
        section = self.eval_section
        if section is None or not self.eval_data:
            return None
        return HeldOut(self.eval_data, section.name, section.run_every, section.baseline, self._report_scores)

    def _generating_evaluators(self) -> list[Evaluator]:
        sections = [section for section in self.config.eval if not _is_measured(section)]
        generating = [section for section in sections if section.evaluator is None]
        if generating and self.kind == "reward_model":
            raise ConfigError(f"eval {generating[0].name}: a reward model generates nothing; set its kind to loss")
        return [
            evaluator_for(
                section, self.config, self.material, self._state, self._report_eval, self._given.get(section.name)
            )
            for section in sections
        ]

    def _state(self) -> LoopState:
        return self.state if self.state is not None else LoopState()

    def _report_scores(self, name: str, metrics: dict[str, float], seconds: float) -> None:
        section = next(one for one in self.config.eval if one.name == name)
        source = section.source or self.config.task.source
        step = self._state().global_step - 1
        self._report_eval(EvalResult(name, source, metrics, {}, seconds, step, list(section.tags)), [])

    def _report_eval(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        assert self._record is not None, "evals come while it trains"
        self._record.report_eval(result, predictions)


class _Remember(Callback):
    """Keeps the state of a run that is going on, so that its header can say how far it came."""

    priority = Priority.METRICS
    uses_asyncio = False

    def __init__(self, run: SupervisedRun) -> None:
        self._run = run

    def on_train_start(self, state: LoopState) -> None:
        self._run.state = state


_FITS: Mapping[str, Callable[[SupervisedRun, dict[str, Any]], LoopState]] = {
    "sft": SupervisedRun._fit_sft,
    "dpo": SupervisedRun._fit_dpo,
    "reward_model": SupervisedRun._fit_reward_model,
}


def training_data(config: SupervisedConfig, given: Given) -> Any:
    """Rows with answers, or pairs."""
    return load_training_task(config, given) if config.algorithm.name == "sft" else _pairs(config, given)


def _pairs(config: SupervisedConfig, given: Given) -> Any:
    if given.data is None and config.task.source in BUILTIN:
        raise ConfigError(
            f"the task {config.task.source} has prompts and answers, and {config.algorithm.name} learns from pairs: "
            "give a file of prompt, chosen and rejected"
        )
    pairs = load_preferences(config.task.source if given.data is None else given.data)
    return pairs[: config.task.count]


def _is_measured(section: EvalSection) -> bool:
    """Whether it is a loss on data as it is, rather than of completions or by a function of one's own."""
    return section.kind != "generate" and section.evaluator is None


def _held_out(config: SupervisedConfig, kind: str) -> tuple[EvalSection | None, Any]:
    """The eval that measures on data as it is, and its data."""
    sections = [section for section in config.eval if _is_measured(section)]
    if not sections:
        return None, None
    if len(sections) > 1:
        raise ConfigError(f"one eval of kind loss is enough: {sections[0].name} and {sections[1].name} are two")
    for key in ("metric", "max_new_tokens", "apart"):
        if getattr(sections[0], key) not in (None, False):
            raise ConfigError(f"eval {sections[0].name}: {key} is for evals that generate; set its kind to generate")
    return sections[0], (_eval_rows if kind == "sft" else _eval_pairs)(sections[0], config)


def _eval_rows(section: EvalSection, config: SupervisedConfig) -> Task:
    source = eval_source(section, config)
    if source in BUILTIN:
        return builtin_task(source, "test", section.count)
    task = load_task(source, prompt_column=config.task.prompt_column)
    return Task(task.name, task.rows[: section.count], task.reward)


def _eval_pairs(section: EvalSection, config: SupervisedConfig) -> Any:
    return load_preferences(eval_source(section, config))[: section.count]


def _optimizer_settings(config: SupervisedConfig) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump(exclude={"token_budget"}))


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
