"""A supervised run from its configuration: SFT, DPO or a reward model, with record, evals and LoRA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..actors.interruption import Interruption
from ..actors.stop import StopRequest
from ..callbacks.performance import measured_performance
from ..config import ConfigError, SupervisedConfig
from ..config.eval_section import EvalSection
from ..data.results import EvalResult
from ..data.state import LoopState
from ..evals.evaluator import PolicyEvaluator
from ..learning.optimizer import Optimizer
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import Priority
from ..numerics import compute_alike
from ..policy.computing import set_up_computing
from ..policy.models import weights_digest
from ..record.run_folder import RunFolder
from ..resume.checkpoints import Checkpoints
from ..resume.inputs import Inputs, Rows, model_architecture, row_tokens, tokenizer_digest
from ..resume.resuming import Resumption, changed_start_error, restore_process
from ..supervised.training import HeldOut
from ..tasks.chat import warn_of_unread_columns
from ..tasks.task import TaskError
from .driver_record import DriverRecord
from .given import Given
from .job import first_errors_entry, performance_entry, state_summary
from .loading import begin_training, compute_settings, optimizer_settings
from .placing import FIRST_TRAINER, Listeners
from .step_record import TakeLoopSpans
from .supervised_kinds import FitOptions, supervised_kind

TRIED_ROWS = 256
"""How many rows a checkpoint is bound to as tokens; others as they are written, together with the tokenizer."""


class SupervisedRun:
    """One run's parts. The constructor raises for unusable models, data or callbacks."""

    def __init__(self, config: SupervisedConfig, given: Given, listeners: Listeners) -> None:
        self.config = config
        self.listeners = listeners
        self.manager = listeners.manager
        self.kind = kind = supervised_kind(config, given)
        self._held_out_section = section = _measured_section(config)
        self._held_out_data = None if section is None else kind.load_held_out(section)
        kind.load_model()
        self.trained = kind.trained
        if kind.rows:
            warn_of_unread_columns(kind.rows[0].prompt, kind.rows[0].columns, self.trained.tokenizer)
        set_up_computing(self.trained.model, compute_settings(config))  # raises now if that is impossible
        self.inputs = Inputs(
            rows=Rows.of(row_tokens(self._row_tokens, kind.rows, TRIED_ROWS), kind.rows, len(kind.rows)),
            tokenizer=tokenizer_digest(self.trained.tokenizer),
            architecture=model_architecture(self.trained.model),
        )
        self.state: LoopState | None = None
        self.optimizer: Optimizer | None = None
        self._record: DriverRecord | None = None
        self.evaluators = self._generating_evaluators(given)
        if self.listeners.makers:
            raise ConfigError(f"{config.algorithm.name} has no makers: a MakerCallback would never be called")

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> LoopState:
        config = self.config
        compute_alike(config.threads, device=config.model.device, deterministic=config.deterministic)
        begin_training(self.trained, folder.path, resumed=resumption is not None)
        set_up_computing(self.trained.model, compute_settings(config))  # again, as a reward model has been replaced
        self.optimizer = Optimizer(
            self.trained.parameters(), optimizer_settings(config), config.total_steps * config.train_epochs
        )
        self._record = record = DriverRecord(folder.path, self.manager, self.listeners.ctx)
        self.listeners.add(_Remember(self))
        for evaluator in self.evaluators:
            evaluator.record = record
        checkpoints = SupervisedCheckpoints(self, folder.path, record, resumption, interruption.stop)
        if resumption is not None:
            restore_process(resumption, self.manager)
        if config.record.spans:
            self.listeners.add(TakeLoopSpans(record, checkpoints))
        options = FitOptions(
            steps=config.total_steps,
            batch_size=config.train_batch_size,
            epochs=config.train_epochs,
            optimizer=self.optimizer,
            token_budget=config.optimizer.tokens_at_once,
            overlong=config.task.overlong,
            seed=config.seed,
            callbacks=self.manager,
            evaluators=self.evaluators,
            saver=checkpoints,
            output_dir=config.folder,
        )
        try:
            with record.finishing():
                return self.kind.fit(options, self._held_out())
        finally:
            self.listeners.note_shared({})

    def _row_tokens(self, place: int) -> Any:
        """The tokens of the row at a place; an error in it is reported when it is trained on."""
        try:
            return self.kind.row_tokens(place)
        except TaskError as error:
            return str(error)

    def summary(self) -> dict[str, Any]:
        if self.state is None or self.optimizer is None:
            return {}
        measured = measured_performance(self.manager.callbacks)
        return {
            **state_summary(self.state, [section.name for section in self.config.eval], self.manager.errors),
            "weights_digest": weights_digest(self.trained.weights() | self.optimizer.masters),
            **first_errors_entry([self.manager]),
            **performance_entry({} if measured is None else {FIRST_TRAINER: measured}),
        }

    # -- evals ---------------------------------------------------------------------------------------

    def _held_out(self) -> HeldOut[Any] | None:
        section, data = self._held_out_section, self._held_out_data
        if section is None or not data:
            return None
        return HeldOut(data, section.name, section.run_every, section.baseline, self._report_scores)

    def _generating_evaluators(self, given: Given) -> list[PolicyEvaluator]:
        sections = [section for section in self.config.eval if not _is_measured(section)]
        generating = [section for section in sections if section.evaluator is None]
        if generating and not self.kind.generates:
            raise ConfigError(f"eval {generating[0].name}: a reward model generates nothing; set its kind to loss")
        return [
            PolicyEvaluator(section, self.config, self.trained, given.eval_of(section.name)) for section in sections
        ]

    def _report_scores(self, name: str, metrics: dict[str, float], seconds: float) -> None:
        section = next(one for one in self.config.eval if one.name == name)
        source = section.source or self.config.task.source
        assert self.state is not None, "evals come while it trains"
        assert self._record is not None
        step = self.state.global_step - 1
        self._record.report_eval(EvalResult(name, source, metrics, {}, seconds, step, list(section.tags)), [])


class SupervisedCheckpoints(Checkpoints):
    """The checkpoints of a supervised run: beside the model and the loop, the optimizer."""

    def __init__(
        self,
        run: SupervisedRun,
        folder: Path,
        record: DriverRecord,
        resumption: Resumption | None,
        stop: StopRequest,
    ) -> None:
        self._run = run
        self._resumption = resumption
        self._start_digest = self._checked_start()
        resumed = None if resumption is None else resumption.loop()
        super().__init__(run.config, folder, run.trained, self, record, run.inputs, resumed=resumed, stop=stop)

    def parts(self) -> dict[str, Mapping[str, Any]]:
        assert self._run.optimizer is not None, "it is made before"
        trained = self._run.trained.extra_state()
        return {"optimizer": self._run.optimizer.state_dict(), **({"trained": trained} if trained else {})}

    def run_part(self) -> Mapping[str, Any]:
        return {"start_digest": self._start_digest}

    def restore(self) -> None:
        """Restore weights and optimizer. DPO has the reference's log-probabilities of every pair by now."""
        assert self._resumption is not None, "only a resumed loop restores"
        assert self._run.optimizer is not None
        trained = self._run.trained
        trained.load(self._resumption.model)
        if trained.extra_state():
            trained.load_extra_state(self._resumption.part("trained"))
        self._run.optimizer.load_state_dict(self._resumption.part("optimizer"))

    def _checked_start(self) -> str:
        """The digest of the initial weights, which must be the same in a resumed run."""
        digest = self._run.kind.start_digest()
        if digest and self._resumption is not None:
            before = self._resumption.part("run")["start_digest"]
            if before not in ("", digest):  # a run of version 0.1 noted none for an adapter
                raise changed_start_error()
        return digest


class _Remember(Callback):
    """Keeps the state of a run while it runs, so that its header can say how far it came."""

    priority = Priority.METRICS
    uses_asyncio = False

    def __init__(self, run: SupervisedRun) -> None:
        self._run = run

    def on_train_start(self, state: LoopState) -> None:
        self._run.state = state


def _is_measured(section: EvalSection) -> bool:
    """Whether it is a loss on the data itself, without completions and without a function of the user's."""
    return section.kind != "generate" and section.evaluator is None


def _measured_section(config: SupervisedConfig) -> EvalSection | None:
    """The eval of a loss on the data itself, if there is one."""
    sections = [section for section in config.eval if _is_measured(section)]
    if not sections:
        return None
    if len(sections) > 1:
        raise ConfigError(f"one eval of kind loss is enough: {sections[0].name} and {sections[1].name} are two")
    for key in ("metric", "max_new_tokens", "apart"):
        if getattr(sections[0], key) not in (None, False):
            raise ConfigError(f"eval {sections[0].name}: {key} is for evals that generate; set its kind to generate")
    return sections[0]
