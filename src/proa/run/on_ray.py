"""A detached run on Ray: the same two sides, each built in an actor of its own."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from ..actors.interruption import Interruption
from ..config import ConfigError, DetachedConfig
from ..data.results import EvalResult
from ..data.state import LoopState
from ..data.versions import BASE_VERSION
from ..errors import HookError, SettingError
from ..lifecycle.hooks import BaseCallback
from ..lifecycle.manager import CallbackManager
from ..lifecycle.placement import check_portable
from ..numerics import compute_alike
from ..policy.policy import Policy, Receiver
from ..record.checkpoints import CheckpointManager
from ..record.live import LiveFile
from ..record.run_folder import RunFolder
from ..record.run_record import StepRecord
from ..resume.inputs import Inputs
from ..resume.random_state import random_state
from ..resume.resuming import (
    FROM_THE_BEGINNING,
    Resumption,
    clear_record,
    find_checkpoint,
    restore_process,
    truncate_record,
)
from ..roles.weights import WeightStore
from ..runtime.ray.cluster import cluster, pickled
from ..runtime.ray.driver import RayRuntime, TrainerDiedError
from ..runtime.ray.link import AskDriver
from ..runtime.ray.maker_host import MakerParts, RemoteStore
from ..runtime.ray.output import ActorOutputs
from ..runtime.ray.places import RaySettings, check_options
from ..runtime.ray.shelf import gpu_of
from ..runtime.ray.trainer_host import TrainerParts, TrainerTies
from ..runtime.supervisor import Limits
from ..tasks.template_date import pin, pinned
from .checks import check_portable_algorithm
from .driver_record import DriverRecord
from .given import Given
from .job import engine_entry, first_errors_entry, performance_entry
from .loading import check_device, load_policy, load_training_task, read_device
from .maker_side import MakerSide
from .placing import Listeners, fresh
from .trainer_side import Surroundings, TrainerSide

log = logging.getLogger("proa.run")


class RayRun:
    """The driver's part of a run on Ray.

    The constructor raises for errors in the configuration, before anything is started, without loading the policy.
    Errors that only the weights or the actors' machines show (damaged weights, a missing GPU) are found by an actor
    before training begins, and leave no folder either.
    """

    def __init__(
        self, config: DetachedConfig, given: Given, listeners: Listeners, journal: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.config = config
        self.listeners = listeners
        self.given = given
        self.journal = tuple(journal)
        _check_devices(config)
        check_portable_algorithm(config, pickled)
        on_cpu = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
        side = TrainerSide(on_cpu, given, outline=True)
        makers = MakerSide(on_cpu, given, task=side.task, policy=side.policy, longest_prompt=side.longest_prompt)
        self.inputs = replace(makers.complete_inputs(side.inputs), hooks=listeners.experience_hooks())
        travelling = [*self.listeners.makers, *self.listeners.trainer, *self.listeners.every_trainer]
        check_portable(travelling, pickled)
        _check_gradient_readers(listeners.manager)
        self._runtime: RayRuntime | None = None
        self._record: DriverRecord | None = None

    def train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> LoopState:
        try:
            return self._train(folder, resumption, interruption)
        finally:
            if self._runtime is not None:
                self.listeners.return_copies(self._runtime.copies)

    def _train(self, folder: RunFolder, resumption: Resumption | None, interruption: Interruption) -> LoopState:
        config, manager = self.config, self.listeners.manager
        first_state = manager.state_dict()
        name = f"proa-{config.name}-{uuid.uuid4().hex[:8]}"
        with interruption.polling(), cluster(config.ray.address, name):
            interruption.listen_again()
            for attempt in range(config.ray.trainer_restarts + 1):
                namespace = f"{name}-{attempt}"  # names of actors that died may not be free yet
                folder.update(ray={"namespace": namespace})
                if resumption is not None:
                    restore_process(resumption, manager, partly=True)
                self._runtime = runtime = self._new_runtime(folder, namespace, resumption, interruption)
                runtime.state.checkpoint_mgr = CheckpointManager(folder.path)  # to read and remove; rank 0 saves
                assert self._record is not None, "it is made with the runtime"
                try:
                    with self._record.finishing():
                        runtime.run(config.total_steps, config.update_steps, config.train_epochs)
                    break
                except TrainerDiedError as died:
                    if attempt == config.ray.trainer_restarts or interruption.reason:
                        raise
                    resumption = self._after_death(folder, died, first_state)
        return runtime.state

    def _after_death(self, folder: RunFolder, died: TrainerDiedError, first_state: dict[str, Any]) -> Resumption | None:
        """The checkpoint to resume from, after removing everything later from the record."""
        resumption = find_checkpoint(folder.path)
        if resumption is None:
            clear_record(folder.path)
            self.listeners.manager.load_state_dict(first_state)
        else:
            truncate_record(resumption)
        place = FROM_THE_BEGINNING if resumption is None else resumption.row.name
        log.warning("%s; the run continues from %s", died, place)
        folder.note_resumed(checkpoint=place, reason=str(died))
        return resumption

    def _new_runtime(
        self, folder: RunFolder, namespace: str, resumption: Resumption | None, interruption: Interruption
    ) -> RayRuntime:
        config, listeners = self.config, self.listeners
        # Actors may have another working directory.
        absolute = config.model_copy(update={"output_dir": config.output_dir.resolve()})
        if resumption is not None:
            resumption = replace(resumption, folder=resumption.folder.resolve())
        self._record = record = DriverRecord(folder.path, listeners.manager, listeners.ctx)
        return RayRuntime(
            _BuildTrainer(
                absolute,
                self.given,
                folder.path.resolve(),
                tuple(listeners.trainer),
                tuple(listeners.every_trainer),
                resumption,
                self.journal,
                self.inputs,
                pinned(),
            ),
            _BuildMaker(absolute, self.given, tuple(listeners.makers), pinned()),
            makers=config.makers,
            trainers=config.trainers,
            manager=listeners.manager,
            settings=RaySettings(
                namespace=namespace,
                trainer_resources=config.ray.trainer,
                maker_resources=config.ray.maker,
                placement=config.ray.placement,
            ),
            limits=Limits(
                lease_timeout=config.lease_seconds,
                min_makers=config.ray.min_makers,
                max_restarts=config.ray.max_restarts,
            ),
            patience=config.wait_timeout,
            backend=_backend(config),
            output_dir=config.folder,
            live=LiveFile(folder.path),
            services={
                "before_saving": record.before_saving,
                "write_step": record.write_step,
                "report_eval": record.report_eval,
            },
            interruption=interruption,
            outputs=ActorOutputs(is_shown=config.ray.log_to_driver),
            makers_have_copies=any(isinstance(callback, BaseCallback) for callback in listeners.makers),
        )

    def summary(self) -> dict[str, Any]:
        if self._runtime is None:
            return {}
        state = self._runtime.state
        known = self._runtime.summary or ({"steps_run": state.global_step} if state.global_step else {})
        errors = Counter(self.listeners.manager.errors) + Counter(self._runtime.callback_errors)
        engine = engine_entry(self.config.engine.kind, self._runtime.independent_engines)
        first = first_errors_entry([self.listeners.manager])
        performance = performance_entry(self._runtime.performance)
        return known | {"callback_errors": dict(errors), **first, **engine, **performance}


def _check_devices(config: DetachedConfig) -> None:
    """Raise for an unknown device or option, or for actors without GPUs, which Ray hides unless requested."""
    device = read_device(config.model.device)
    for role, options in (("trainer", config.ray.trainer), ("maker", config.ray.maker)):
        try:
            check_options(options)
        except SettingError as error:
            raise ConfigError(f"ray.{role}: {error}") from None
    if device.type != "cuda":
        return
    for role, options in (("trainer", config.ray.trainer), ("maker", config.ray.maker)):
        if not options.get("num_gpus"):
            raise ConfigError(
                f"model.device is {config.model.device}, and on Ray each actor says what it takes: "
                f"set ray.{role}, e.g. {{num_gpus: 1}}, or a share of one, {{num_gpus: 0.25}}"
            )


def _check_gradient_readers(manager: CallbackManager) -> None:
    """Raise for a function in the driver that reads gradients, which stay with the trainer."""
    for reader in manager.readers("gradients_ready", "gradients"):
        if not isinstance(reader, BaseCallback):
            raise HookError(
                f"{getattr(reader, '__name__', reader)} listens to 'gradients_ready' in the driver, and gradients stay "
                f"with the trainer: derive a class from TrainerCallback with on_gradients_ready(gradients), and log "
                f"what is of interest with self.log(name, value)"
            )


def _backend(config: DetachedConfig) -> str:
    """NCCL if every trainer has a GPU of its own, as two that share one cannot use it; otherwise gloo."""
    whole = config.ray.trainer.get("num_gpus", 0) >= 1
    return "cpu:gloo,cuda:nccl" if whole and config.model.device.startswith("cuda") else "gloo"


class _RemoteRecord:
    """The run's record, for the trainer in its actor."""

    def __init__(self, ask: AskDriver) -> None:
        self._ask = ask

    def before_saving(self) -> dict[str, Any]:
        state: dict[str, Any] = self._ask("before_saving")
        return state

    def write_step(self, record: StepRecord) -> None:
        self._ask("write_step", record)

    def report_eval(self, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        self._ask("report_eval", result, predictions)


class _ActorListeners:
    """The callbacks in the trainer's actor."""

    def __init__(self, manager: CallbackManager) -> None:
        self.manager = manager

    def add(self, callback: BaseCallback) -> None:
        self.manager.add(callback)

    def process_state(self) -> dict[str, Any]:
        return {"trainer_callbacks": self.manager.state_dict(), "trainer_random": random_state()}


@dataclass(frozen=True)
class _BuildTrainer:
    """Builds a trainer's side, in its actor."""

    config: DetachedConfig
    given: Given
    folder: Path
    callbacks: tuple[Any, ...]
    every_rank: tuple[Any, ...]
    resumption: Resumption | None
    journal: tuple[Mapping[str, Any], ...]
    inputs: Inputs
    began: datetime | None

    def __call__(self, ties: TrainerTies) -> TrainerParts:
        pin(self.began)
        side = TrainerSide(self.config, self.given)
        # Read again: files edited since the driver read them, or different on this machine, are an error.
        self.inputs.refuse_differences(replace(side.inputs, hooks=self.inputs.hooks))
        side.inputs = self.inputs
        everywhere = [fresh(callback) for callback in self.every_rank]
        if ties.replicas.rank == 0 and not (self.folder / "run.json").is_file():
            raise ConfigError(
                f"the trainer is on another machine, and {self.folder} is not there: output_dir must be a folder that "
                f"all machines share"
            )
        side.prepare(self.folder, ties.replicas, resumed=self.resumption is not None)
        if ties.replicas.rank:
            manager = CallbackManager(everywhere)
            self._restore(manager)
            side.policy.published_base()  # every rank takes part; rank 0 publishes it
            other = side.assemble_participant(ties.replicas, manager, self.resumption)
            copies = [callback for callback in self.every_rank if isinstance(callback, BaseCallback)]
            return TrainerParts(other, None, None, lambda: {"callback_errors": manager.errors}, copies)
        return self._first(ties, side, everywhere)

    def _first(self, ties: TrainerTies, side: TrainerSide, everywhere: list[BaseCallback]) -> TrainerParts:
        assert ties.link is not None, "rank 0 has both"
        assert ties.ask_driver is not None
        store = WeightStore(wait_timeout=self.config.wait_timeout, shelf=ties.shelf)
        if (base := side.policy.published_base()) is not None:
            store.publish(BASE_VERSION, base)
        manager = CallbackManager([ties.link, *(fresh(callback) for callback in self.callbacks), *everywhere])
        around = Surroundings(
            self.folder,
            store,
            _ActorListeners(manager),
            _RemoteRecord(ties.ask_driver),
            ties.replicas,
            self.resumption,
            journal=self.journal,
        )
        trainer, book = side.assemble_first(around)
        self._restore(manager)
        copies = [one for one in (*self.callbacks, *self.every_rank) if isinstance(one, BaseCallback)]
        return TrainerParts(trainer, book, store, lambda: side.summary(manager.errors), copies)

    def _restore(self, manager: CallbackManager) -> None:
        if self.resumption is not None:
            restore_process(self.resumption, manager, partly=True, random="trainer_random")


@dataclass(frozen=True)
class _BuildMaker:
    """Builds a maker, in its actor."""

    config: DetachedConfig
    given: Given
    callbacks: tuple[Any, ...]
    began: datetime | None

    @contextmanager
    def __call__(self, name: str, store: RemoteStore, link: BaseCallback | None) -> Iterator[MakerParts]:
        config = self.config
        device = torch.device(config.engine.device or config.model.device)
        pin(self.began)
        compute_alike(config.threads, device=config.model.device, deterministic=config.deterministic)
        check_device(str(device), "model.device" if config.engine.device is None else "engine.device")
        store.gpu = gpu_of(device)
        policy = load_policy(config, self.given, outline=True)  # the weights come from the trainer
        side = MakerSide(config, self.given, task=load_training_task(config, self.given), policy=policy)
        callbacks = [*([link] if link is not None else []), *(fresh(callback) for callback in self.callbacks)]
        with side:
            maker = side.make(name, callbacks, _receiver(policy, store, name, device))
            yield MakerParts(maker, [one for one in self.callbacks if isinstance(one, BaseCallback)])


def _receiver(policy: Policy, store: RemoteStore, name: str, device: torch.device) -> Receiver:
    """A receiver for pushed weights; with adapters it holds a copy of their base on the engine's device."""
    if policy.published_base() is None:
        return policy.receiver()
    base = store.fetch(BASE_VERSION, owner=name)
    base.check()
    return policy.receiver({key: tensor.to(device, copy=True) for key, tensor in base.tensors.items()})
