"""A detached run in one process: trainer and makers in threads, over one copy of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..actors.interruption import Interruption
from ..callbacks.performance import measured_performance
from ..config import DetachedConfig
from ..data.state import LoopState
from ..lifecycle.hooks import BaseCallback
from ..lifecycle.manager import CallbackManager
from ..record.live import LiveFile
from ..record.run_folder import RunFolder
from ..resume.resuming import Resumption, restore_process
from ..roles.maker import ExperienceMakerHolder
from ..roles.weights import WeightStore
from ..runtime.local import LocalRuntime
from ..runtime.supervisor import Limits
from .driver_record import DriverRecord
from .given import Given
from .job import engine_entry, first_errors_entry, performance_entry
from .maker_side import MakerSide
from .placing import FIRST_TRAINER, Listeners, ToDriver, fresh_for_maker
from .trainer_side import Surroundings, TrainerSide


class DetachedRun:
    """One run on this machine: both sides in one process, over one copy of the model."""

    def __init__(
        self, config: DetachedConfig, given: Given, listeners: Listeners, journal: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.config = config
        self.journal = journal
        self.listeners = listeners
        self._makers: dict[str, CallbackManager] = {}  # of all makers, including replaced ones
        self._maker_callbacks: dict[str, list[BaseCallback]] = {}
        self._independent_engines: list[bool] = []
        self.trainer_side = TrainerSide(config, given)
        self.maker_side = MakerSide(
            config,
            given,
            task=self.trainer_side.task,
            policy=self.trainer_side.policy,
            longest_prompt=self.trainer_side.longest_prompt,
        )
        inputs = self.maker_side.complete_inputs(self.trainer_side.inputs)
        self.inputs = self.trainer_side.inputs = replace(inputs, hooks=listeners.experience_hooks())

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> LoopState:
        config, store = self.config, WeightStore(wait_timeout=self.config.wait_timeout)
        self.trainer_side.prepare(folder.path, resumed=resumption is not None)
        record = DriverRecord(folder.path, self.listeners.manager, self.listeners.ctx)
        around = Surroundings(
            folder.path,
            store,
            self.listeners,
            record,
            resumption=resumption,
            stop=interruption.stop,
            journal=self.journal,
        )
        trainer, book = self.trainer_side.assemble_first(around)
        if resumption is not None:
            restore_process(resumption, self.listeners.manager)
        with record.finishing(), self.maker_side:
            runtime = LocalRuntime(
                trainer,
                self,
                makers=config.makers,
                book=book,
                store=store,
                limits=Limits(lease_timeout=config.lease_seconds),
                watch=LiveFile(folder.path),
            )
            try:
                runtime.run(config.total_steps, config.update_steps, config.train_epochs)
            finally:
                self.listeners.note_shared(self._maker_callbacks)
        return trainer.state

    def summary(self) -> dict[str, Any]:
        managers = {FIRST_TRAINER: self.listeners.manager, **self._makers}
        errors = sum((Counter(manager.errors) for manager in managers.values()), Counter[str]())
        found = {name: measured_performance(manager.callbacks) for name, manager in managers.items()}
        performance = {name: one for name, one in found.items() if one is not None}
        engine = engine_entry(self.config.engine.kind, self._independent_engines)
        summary = self.trainer_side.summary(dict(errors)) | first_errors_entry(managers.values())
        return summary | engine | performance_entry(performance)

    def make(self, name: str) -> ExperienceMakerHolder:
        """A maker, with its own callbacks."""
        own = self._maker_callbacks[name] = [fresh_for_maker(callback) for callback in self.listeners.makers]
        callbacks = [ToDriver(self.listeners.manager), *own]
        maker = self.maker_side.make(name, callbacks, self.trainer_side.policy.receiver())
        self._makers[name] = maker.manager
        self._independent_engines.append(maker.engine.is_independent)
        return maker
