"""A supervised run from its configuration: SFT, DPO or a reward model, with record, evals and LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..actors.interruption import Interruption
from ..config import ConfigError, RunConfig
from ..config.run_config import EvalSection
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
from ..spelling import did_you_mean
from ..supervised.dpo import fit_dpo
from ..supervised.reward_model import fit_reward_model
from ..supervised.sft import Examples, fit_sft
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
_TEXT, _YES_OR_NO, _NUMBER, _WHOLE = "a text", "true or false", "a number", "a whole number above 0"
_SETTINGS = {
    "sft": {
        "answer_column": _TEXT, "train_on_prompt": _YES_OR_NO, "every_answer": _YES_OR_NO, "packing": _YES_OR_NO,
        "max_length": _WHOLE,
    },
    "dpo": {
        "beta": _NUMBER, "loss": _TEXT, "label_smoothing": _NUMBER, "reference_free": _YES_OR_NO, "max_length": _WHOLE,
    },
    "reward_model": {"max_length": _WHOLE},
}  # fmt: skip
"""What `algorithm.params` may hold, and what each is."""


class SupervisedRun:
    """One run's parts. What is wrong with model, data or callbacks is found when it is built."""

    def __init__(self, config: RunConfig, given: Given, listeners: Listeners) -> None:
        self.config = config
        self.listeners = listeners
        self.manager = listeners.manager
        self.kind = config.algorithm.name
        _check_settings(config)
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
            **_named(self.eval_section),
            "eval_report": self._report_scores,
            **self.config.algorithm.params,
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
        tokenizer, params = self.material.tokenizer, self.config.algorithm.params
        if self.kind == "sft":
            chosen = {name: params[name] for name in ("answer_column", "every_answer") if name in params}
            examples = Examples(self.data, tokenizer, **chosen)

        def tokens(place: int) -> Any:
            try:
                if self.kind == "sft":
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
        elif self.kind == "dpo" and not has_lora(self.model) and not self.config.algorithm.params.get("reference_free"):
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
        return fit_sft(self.model, self.material.tokenizer, self.data, eval_rows=self.eval_data, **common)

    def _fit_dpo(self, common: dict[str, Any]) -> LoopState:
        # An adapter that has learned already is not the reference: the base under it is.
        reference = reference_of(self.model) if has_lora(self.model) and not common.get("reference_free") else None
        return fit_dpo(
            self.model,
            self.material.tokenizer,
            self.data,
            reference=reference,
            eval_pairs=self.eval_data or (),
            **common,
        )

    def _fit_reward_model(self, common: dict[str, Any]) -> LoopState:
        return fit_reward_model(
            self.model, self.material.tokenizer, self.data, eval_pairs=self.eval_data or (), **common
        )  # fmt: skip

    def _save(self, run_folder: Path, model: PreTrainedModel, into: Path) -> None:
        if self.kind != "reward_model":
            save_policy(self.config, replace(self.material, model=model), run_folder, into)
        else:
            plain = _merged(model, self.config.seed) if has_lora(model) else model
            save_reward_model(plain, self.material.tokenizer, into)

    # -- evals ---------------------------------------------------------------------------------------

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


def _check_settings(config: RunConfig) -> None:
    kind = config.algorithm.name
    if kind not in _SETTINGS:
        raise ConfigError(f"algorithm {kind} is not supervised: use proa train, or the recipe of its name")
    known = _SETTINGS[kind]
    for name, value in config.algorithm.params.items():
        if name not in known:
            raise ConfigError(f"{kind} has no setting {name!r}{did_you_mean(name, known)} (it has: {', '.join(known)})")
        if not _is(known[name], value):
            hint = " (a text: in YAML write 0.1, or 1.0e-1 with the point)" if isinstance(value, str) else ""
            raise ConfigError(f"algorithm.params.{name} must be {known[name]}, not {value!r}{hint}")


def _is(kind: str, value: Any) -> bool:
    if kind == _YES_OR_NO or isinstance(value, bool):
        return kind == _YES_OR_NO and isinstance(value, bool)
    if kind == _WHOLE:
        return value is None or (isinstance(value, int) and value > 0)
    return isinstance(value, str if kind == _TEXT else int | float)


def training_data(config: RunConfig, given: Given) -> Any:
    """Rows with answers, or pairs."""
    return load_training_task(config, given) if config.algorithm.name == "sft" else _pairs(config, given)


def _pairs(config: RunConfig, given: Given) -> Any:
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


def _held_out(config: RunConfig, kind: str) -> tuple[EvalSection | None, Any]:
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


def _eval_rows(section: EvalSection, config: RunConfig) -> Task:
    source = eval_source(section, config)
    if source in BUILTIN:
        return builtin_task(source, "test", section.count)
    task = load_task(source, prompt_column=config.task.prompt_column)
    return Task(task.name, task.rows[: section.count], task.reward)


def _eval_pairs(section: EvalSection, config: RunConfig) -> Any:
    return load_preferences(eval_source(section, config))[: section.count]


def _named(section: EvalSection | None) -> dict[str, Any]:
    if section is None:
        return {}
    return {"eval_name": section.name, "eval_every": section.run_every, "eval_baseline": section.baseline}


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
