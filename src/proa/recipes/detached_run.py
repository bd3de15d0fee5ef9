"""Detached RL from one configuration: model, task, makers, trainer, evals, record."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import ConfigError, RunConfig
from ..data.state import TrainState
from ..lifecycle.manager import CallbackManager, Callbacks
from ..loop.interruption import Interruption
from ..policy.whole import whole_weights_over
from ..record.live import LiveFile
from ..record.run_folder import RunFolder
from ..roles.maker import ExperienceMakerHolder
from ..roles.weights import WeightStore
from ..runtime.local import LocalRuntime, Supervision
from .driver_side import DriverSide
from .given import Given, configured
from .job import Job, carry_out
from .maker_side import MakerSide
from .placing import Listeners, ToDriver, fresh, place_callbacks
from .resuming import Resumption, restore_process
from .trainer_side import Surroundings, TrainerSide


def detached(
    config: RunConfig | Path | str | None = None,
    its_algorithm: str | None = None,
    /,
    *,
    callbacks: Callbacks = None,
    resume: str | None = None,
    allow_changes: bool = False,
    **changes: Any,
) -> TrainState:
    """Run detached RL as configured (a `RunConfig`, a YAML file, or keywords alone) and return the final state.

    The run folder `<output_dir>/<name>` holds the record, and the final weights in `model/`. With `resume="auto"` a
    run that is there goes on from its newest checkpoint, and with a checkpoint's name from that one. It is refused if
    its data, rewards or models have changed since, unless `allow_changes`.
    """
    settled, given = configured(config, its_algorithm, changes)
    with place_callbacks(settled, callbacks) as listeners:
        return carry_out(
            settled, lambda: detached_job(settled, given, listeners), resume=resume, allow_changes=allow_changes
        )


def detached_job(
    config: RunConfig, given: Given, listeners: Listeners, journal: Sequence[Mapping[str, Any]] = ()
) -> Job:
    """A run put together, on the runtime that is configured; `journal` is of a run that is to be repeated."""
    if config.runtime == "local":
        return DetachedRun(config, given, listeners, journal)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("runtime ray needs the package ray: pip install 'proa[ray]'")
    from .ray_run import RayRun  # slow to import, and not everyone has it

    return RayRun(config, given, listeners, journal)


class DetachedRun:
    """One run on this machine: both sides in one process, over one copy of the model."""

    def __init__(
        self, config: RunConfig, given: Given, listeners: Listeners, journal: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.config = config
        self.journal = journal
        self.listeners = listeners
        self._makers: list[CallbackManager] = []  # of all that there were, the replaced ones too
        self.trainer_side = TrainerSide(config, given)
        self.maker_side = MakerSide(
            config,
            given,
            task=self.trainer_side.task,
            material=self.trainer_side.material,
            longest_prompt=self.trainer_side.stream.longest,
        )
        inputs = self.maker_side.add_to(self.trainer_side.inputs)
        self.inputs = self.trainer_side.inputs = replace(inputs, hooks=listeners.experience_hooks())

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> TrainState:
        config, store = self.config, WeightStore(wait_timeout=self.config.wait_timeout)
        self.trainer_side.prepare(folder.path, resumed=resumption is not None)
        driver = DriverSide(folder.path, self.listeners.manager, self.listeners.context(folder.path))
        around = Surroundings(
            folder.path,
            store,
            self.listeners.manager,
            self.listeners.add,
            driver,
            resumption=resumption,
            asked_to_leave=lambda: interruption.reason,
            journal=self.journal,
        )
        trainer, book = self.trainer_side.assemble_first(around)
        if resumption is not None:
            restore_process(resumption, self.listeners.manager)
        interruption.when_asked(trainer.interrupt)
        with driver.finishing(), self.maker_side.scorer as scorer:
            runtime = LocalRuntime(
                trainer,
                lambda name: self._maker(name, scorer),
                makers=config.makers,
                book=book,
                store=store,
                supervision=Supervision(lease_timeout=config.lease_timeout or config.wait_timeout / 2),
                watch=LiveFile(folder.path),
            )
            runtime.run(config.total_steps, config.update_steps, config.train_epochs)
        return trainer.state

    @property
    def began(self) -> bool:
        return self.trainer_side.trainer is not None

    def summary(self) -> dict[str, Any]:
        errors = sum((Counter(manager.errors) for manager in [self.listeners.manager, *self._makers]), Counter[str]())
        return self.trainer_side.summary(dict(errors))

    def _maker(self, name: str, scorer: Any) -> ExperienceMakerHolder:
        callbacks = [ToDriver(self.listeners.manager), *(fresh(callback) for callback in self.listeners.makers)]
        maker = self.maker_side.make(name, scorer, callbacks, whole_weights_over(self.trainer_side.material.model))
        self._makers.append(maker.manager)
        return maker
