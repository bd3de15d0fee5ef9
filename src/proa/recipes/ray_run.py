"""A detached run on Ray: the same two sides, each built in an actor of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import ConfigError, RunConfig
from ..data.state import TrainState
from ..errors import SettingError
from ..lifecycle.hooks import BaseCallback
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.placement import refuse_unportable
from ..policy.adapter_layout import AdapterLayout, AdapterOverBase
from ..policy.lora import base_weights, has_lora
from ..policy.saved_adapter import read_adapter
from ..policy.whole import WholeWeights
from ..record.live import LiveFile
from ..record.run_folder import RunFolder
from ..roles.maker import ExperienceMakerHolder, Store
from ..roles.replicas import Replicas
from ..roles.weights import Keep, WeightStore
from ..runtime.local import Supervision
from ..runtime.ray.cluster import cluster, pickled
from ..runtime.ray.driver import RayRuntime
from ..runtime.ray.makers import Limits
from ..runtime.ray.places import RaySettings, check_options
from ..runtime.ray.trainer_host import TrainerParts
from .given import Given
from .maker_side import MakerSide
from .material import Material, load_material, load_training_task, lora_settings
from .placing import fresh, place_callbacks
from .trainer_side import TrainerSide

BASE_VERSION = -1
"""With LoRA, the weights that adapters go over, published once."""


class RayRun:
    """The driver's part of a run on Ray. What is wrong is found when it is built, here, before anything is started."""

    def __init__(self, config: RunConfig, given: Given, callbacks: Callbacks) -> None:
        self.config = config
        self.given = given
        _check_devices(config)
        here = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
        side = TrainerSide(here, given)
        MakerSide(here, given, task=side.task, material=side.material, longest_prompt=side.stream.longest)
        self.listeners = place_callbacks(config, callbacks, trainer_apart=True)
        travelling = [*self.listeners.makers, *self.listeners.trainer, *self.listeners.every_trainer]
        refuse_unportable(travelling, pickled)
        self._runtime: RayRuntime | None = None

    def train(self, folder: RunFolder) -> TrainState:
        config = self.config
        # Actors may have another working directory.
        absolute = config.model_copy(update={"output_dir": config.output_dir.resolve()})
        namespace = f"proa-{config.name}-{uuid.uuid4().hex[:8]}"
        folder.update(ray={"namespace": namespace})
        listeners = self.listeners
        with cluster(config.ray.address, namespace):
            self._runtime = runtime = RayRuntime(
                _BuildTrainer(
                    absolute,
                    self.given,
                    folder.path.resolve(),
                    tuple(listeners.trainer),
                    tuple(listeners.every_trainer),
                ),
                _BuildMaker(absolute, self.given, tuple(listeners.makers)),
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
                    supervision=Supervision(lease_timeout=config.lease_timeout or config.wait_timeout / 2),
                    min_makers=config.ray.min_makers,
                    max_restarts=config.ray.max_restarts,
                ),
                patience=config.wait_timeout,
                backend=_backend(config),
                output_dir=config.folder,
                live=LiveFile(folder.path),
            )
            runtime.run(config.total_steps, config.update_steps, config.train_epochs)
        return runtime.state

    @property
    def began(self) -> bool:
        return self._runtime is not None

    def summary(self) -> dict[str, Any]:
        if self._runtime is None:
            return {}
        state = self._runtime.state
        known = self._runtime.summary or ({"steps_run": state.global_step} if state.global_step else {})
        return known | {"callback_errors": self.listeners.manager.errors}

    def close(self) -> None:
        self.listeners.leave()


def _check_devices(config: RunConfig) -> None:
    """Options that Ray knows; and it hides GPUs from actors that did not ask for any."""
    for role, options in (("trainer", config.ray.trainer), ("maker", config.ray.maker)):
        try:
            check_options(options)
        except SettingError as error:
            raise ConfigError(f"ray.{role}: {error}") from None
    if config.model.device.partition(":")[0] != "cuda":
        return
    for role, options in (("trainer", config.ray.trainer), ("maker", config.ray.maker)):
        if not options.get("num_gpus"):
            raise ConfigError(
                f"model.device is {config.model.device}, and on Ray each actor says what it takes: "
                f"set ray.{role}, e.g. {{num_gpus: 1}}, or a share of one, {{num_gpus: 0.25}}"
            )


def _backend(config: RunConfig) -> str:
    """NCCL where every trainer has a GPU of its own; it cannot serve two that share one."""
    whole = config.ray.trainer.get("num_gpus", 0) >= 1
    return "cpu:gloo,cuda:nccl" if whole and config.model.device.startswith("cuda") else "gloo"


@dataclass(frozen=True)
class _BuildTrainer:
    """Builds a trainer's side, in its actor."""

    config: RunConfig
    given: Given
    folder: Path
    callbacks: tuple[Any, ...]
    of_every_rank: tuple[Any, ...]

    def __call__(self, link: BaseCallback | None, keep: Keep, replicas: Replicas) -> TrainerParts:
        side = TrainerSide(self.config, self.given)
        everywhere = [fresh(callback) for callback in self.of_every_rank]
        if replicas.rank:
            side.prepare(self.folder, replicas)
            manager = CallbackManager(everywhere)
            return TrainerParts(side.assemble_other(replicas, manager), None, None, dict)
        self._check_folder()
        side.prepare(self.folder, replicas)
        store = WeightStore(wait_timeout=self.config.wait_timeout, keep=keep)
        if has_lora(side.material.model):
            store.publish(BASE_VERSION, base_weights(side.material.model))
        own = [fresh(callback) for callback in self.callbacks]
        manager = CallbackManager([*([link] if link is not None else []), *own, *everywhere])
        trainer, book = side.assemble_first(replicas, store, manager, self.folder)
        return TrainerParts(trainer, book, store, lambda: side.summary(manager.errors))

    def _check_folder(self) -> None:
        if not (self.folder / "run.json").is_file():
            raise ConfigError(
                f"the trainer is on another machine, and {self.folder} is not there: output_dir must be a folder that "
                f"all machines share"
            )


@dataclass(frozen=True)
class _BuildMaker:
    """Builds a maker, in its actor."""

    config: RunConfig
    given: Given
    callbacks: tuple[Any, ...]

    @contextmanager
    def __call__(self, name: str, store: Store, link: BaseCallback | None) -> Iterator[ExperienceMakerHolder]:
        config = self.config
        torch.set_num_threads(config.threads)
        material = load_material(config, self.given)
        side = MakerSide(config, self.given, task=load_training_task(config, self.given), material=material)
        callbacks = [*([link] if link is not None else []), *(fresh(callback) for callback in self.callbacks)]
        with side.scorer as scorer:
            yield side.make(name, scorer, callbacks, _over_base(config, material, store, name))


def _over_base(config: RunConfig, material: Material, store: Store, name: str) -> WholeWeights | None:
    if config.lora is None:
        return None
    if config.lora.path is not None:
        layout: AdapterLayout = read_adapter(config.lora.path).layout_in(material.model)
    else:
        layout = lora_settings(config.lora).layout(material.model)
    base = store.fetch(BASE_VERSION, owner=name)
    base.check()
    return AdapterOverBase({n: tensor.clone() for n, tensor in base.tensors.items()}, layout).merged
