"""A detached run on Ray: the same two sides, each built in an actor of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig
from ..data.state import TrainState
from ..lifecycle.hooks import BaseCallback
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.placement import refuse_unportable
from ..policy.adapter_layout import AdapterLayout, AdapterOverBase
from ..policy.lora import base_weights, has_lora
from ..policy.saved_adapter import read_adapter
from ..policy.whole import WholeWeights
from ..record.run_folder import RunFolder
from ..roles.maker import ExperienceMakerHolder, Store
from ..roles.weights import Keep, WeightStore
from ..runtime.local import Supervision
from ..runtime.ray.cluster import cluster, pickled
from ..runtime.ray.driver import RayRuntime, RaySettings
from ..runtime.ray.hosts import TrainerParts
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
        side = TrainerSide(config, given)
        MakerSide(config, given, task=side.task, material=side.material, longest_prompt=side.stream.longest)
        self.listeners = place_callbacks(config, callbacks, trainer_apart=True)
        refuse_unportable([*self.listeners.makers, *self.listeners.trainer], pickled)
        self._summary: dict[str, Any] = {}
        self._runtime: RayRuntime | None = None

    def train(self, folder: RunFolder) -> TrainState:
        config = self.config
        # Actors may have another working directory.
        absolute = config.model_copy(update={"output_dir": config.output_dir.resolve()})
        self._runtime = runtime = RayRuntime(
            _BuildTrainer(absolute, self.given, folder.path.resolve(), tuple(self.listeners.trainer)),
            _BuildMaker(absolute, self.given, tuple(self.listeners.makers)),
            makers=config.makers,
            manager=self.listeners.manager,
            settings=RaySettings(
                namespace=f"proa-{config.name}",
                trainer_resources=config.ray.trainer,
                maker_resources=config.ray.maker,
                min_makers=config.ray.min_makers,
                max_restarts=config.ray.max_restarts,
            ),
            supervision=Supervision(lease_timeout=config.lease_timeout or config.wait_timeout / 2),
            patience=config.wait_timeout,
            output_dir=config.folder,
        )
        with cluster(config.ray.address, f"proa-{config.name}"):
            self._summary = runtime.run(config.total_steps, config.update_steps, config.train_epochs)
        return runtime.state

    @property
    def began(self) -> bool:
        return self._runtime is not None

    def summary(self) -> dict[str, Any]:
        known = self._summary or (self._runtime.summary() if self._runtime else {})
        return known | ({"callback_errors": self.listeners.manager.errors} if known else {})

    def close(self) -> None:
        self.listeners.leave()


@dataclass(frozen=True)
class _BuildTrainer:
    """Builds the trainer's side, in its actor."""

    config: RunConfig
    given: Given
    folder: Path
    callbacks: tuple[Any, ...]

    def __call__(self, link: BaseCallback, keep: Keep) -> TrainerParts:
        side = TrainerSide(self.config, self.given)
        side.prepare(self.folder)
        store = WeightStore(wait_timeout=self.config.wait_timeout, keep=keep)
        if has_lora(side.material.model):
            store.publish(BASE_VERSION, base_weights(side.material.model))
        manager = CallbackManager([link, *(fresh(callback) for callback in self.callbacks)])
        trainer, book = side.assemble(store, manager, self.folder)
        return TrainerParts(trainer, book, store, lambda: side.summary(manager.errors))


@dataclass(frozen=True)
class _BuildMaker:
    """Builds a maker, in its actor."""

    config: RunConfig
    given: Given
    callbacks: tuple[Any, ...]

    @contextmanager
    def __call__(self, name: str, store: Store) -> Iterator[ExperienceMakerHolder]:
        config = self.config
        torch.set_num_threads(config.threads)
        material = load_material(config, self.given)
        side = MakerSide(config, self.given, task=load_training_task(config, self.given), material=material)
        callbacks = [fresh(callback) for callback in self.callbacks]
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
