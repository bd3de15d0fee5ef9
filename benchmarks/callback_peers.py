"""The dispatchers of other libraries, each driven through its own code: `make(count, busy) -> fire`.

An idle listener is one that is registered and does not handle the measured event, in whatever way the
library knows: it leaves the hook alone, or listens to another event.
"""
# mypy: disable-error-code="import-not-found, import-untyped, misc, no-any-return, no-untyped-def, unused-ignore"

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import Any, TypeAlias
from unittest.mock import MagicMock

Fire: TypeAlias = Callable[[], object]
MakePeer: TypeAlias = Callable[..., Fire]


class MissingPeerError(Exception):
    """The library is not installed, or does not work in this environment."""


PEERS: dict[str, MakePeer] = {}


def peer(name: str) -> Callable[[MakePeer], MakePeer]:
    """Register a peer; whatever goes wrong while it is set up means that it is left out, with the reason."""

    def register(make: MakePeer) -> MakePeer:
        @functools.wraps(make)
        def or_missing(count: int, *, busy: bool) -> Fire:
            try:
                fire = make(count, busy)
                fire()
            except Exception as error:
                raise MissingPeerError(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}") from error
            return fire

        PEERS[name] = or_missing
        return or_missing

    return register


@peer("transformers")
def transformers(count: int, busy: bool) -> Fire:
    from transformers import TrainerCallback, TrainerControl, TrainerState
    from transformers.trainer_callback import CallbackHandler
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()

    class Busy(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): ...

    class Idle(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs): ...

    handler = CallbackHandler([], None, None, None, None)
    handler.callbacks = [Busy() if busy else Idle() for _ in range(count)]
    args, state, control = types.SimpleNamespace(), TrainerState(), TrainerControl()
    return lambda: handler.on_step_end(args, state, control)


@peer("lightning")
def lightning(count: int, busy: bool) -> Fire:
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.trainer.call import _call_callback_hooks

    class Busy(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): ...

    class Idle(Callback):
        def on_train_epoch_end(self, trainer, pl_module): ...

    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.callbacks = [Busy() if busy else Idle() for _ in range(count)]
    trainer.strategy._lightning_module = LightningModule()
    return lambda: _call_callback_hooks(trainer, "on_train_batch_end", None, None, 0)


class _EmptyTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torchvision where it cannot be installed: every module is there, every name is a mock."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module) -> None:
        module.__getattr__ = lambda name: MagicMock(name=name)


@peer("composer")
def composer(count: int, busy: bool) -> Fire:
    try:
        import torchvision  # noqa: F401
    except Exception:  # Composer's models want it, its dispatcher does not
        sys.meta_path.insert(0, _EmptyTorchvision())
    import torch
    from composer.core import Callback, Engine, Event, State
    from composer.devices import DeviceCPU
    from composer.loggers import Logger

    class Busy(Callback):
        def batch_end(self, state, logger): ...

    class Idle(Callback):
        def epoch_end(self, state, logger): ...

    callbacks = [Busy() if busy else Idle() for _ in range(count)]
    state = State(
        model=torch.nn.Linear(1, 1), rank_zero_seed=0, run_name="bench", device=DeviceCPU(), max_duration="1ep",
        callbacks=callbacks, dataloader=[0], dataloader_label="train",
    )  # fmt: skip
    engine = Engine(state, Logger(state))
    return lambda: engine.run_event(Event.BATCH_END)


@peer("ignite")
def ignite(count: int, busy: bool) -> Fire:
    from ignite.engine import Engine, Events

    engine = Engine(lambda engine, batch: None)
    for _ in range(count):
        engine.add_event_handler(Events.ITERATION_COMPLETED if busy else Events.EPOCH_COMPLETED, lambda engine: None)
    return lambda: engine.fire_event(Events.ITERATION_COMPLETED)


@peer("torchtnt")
def torchtnt(count: int, busy: bool) -> Fire:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchtnt.framework._callback_handler import CallbackHandler
        from torchtnt.framework.callback import Callback

    class Busy(Callback):
        def on_train_step_end(self, state, unit): ...

    class Idle(Callback):
        def on_train_epoch_end(self, state, unit): ...

    handler = CallbackHandler([Busy() if busy else Idle() for _ in range(count)])
    state, unit = MagicMock(), MagicMock()
    return lambda: handler.on_train_step_end(state, unit)


@peer("keras")
def keras(count: int, busy: bool) -> Fire:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras.callbacks import Callback, CallbackList

    class Busy(Callback):
        def on_train_batch_end(self, batch, logs=None): ...

    class Idle(Callback):
        def on_epoch_end(self, epoch, logs=None): ...

    callbacks = CallbackList([Busy() if busy else Idle() for _ in range(count)])
    callbacks.on_train_begin()
    logs = {"loss": 1.0}
    return lambda: callbacks.on_train_batch_end(0, logs)


@peer("stable-baselines3")
def stable_baselines3(count: int, busy: bool) -> Fire:
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList

    class Listener(BaseCallback):  # the hook is abstract: an idle listener overrides it with nothing, too
        def _on_step(self) -> bool:
            return True

    callbacks = CallbackList([Listener() for _ in range(count)])
    callbacks.init_callback(MagicMock(num_timesteps=0))
    model = types.SimpleNamespace(num_timesteps=0, get_env=lambda: None)
    for callback in [callbacks, *callbacks.callbacks]:
        callback.model = model  # a mock would be dearer than what is measured
    return callbacks.on_step


@peer("rllib")
def rllib(count: int, busy: bool) -> Fire:
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.callbacks.utils import make_callback

    class Busy(RLlibCallback):
        def on_train_result(self, *, algorithm, metrics_logger=None, result, **kwargs): ...

    class Idle(RLlibCallback):
        def on_evaluate_start(self, **kwargs): ...

    callbacks = [Busy() if busy else Idle() for _ in range(count)]
    kwargs: dict[str, Any] = {"algorithm": None, "metrics_logger": None, "result": {}}
    return lambda: make_callback("on_train_result", callbacks, kwargs=kwargs)


@peer("xaytune")
def xaytune(count: int, busy: bool) -> Fire:
    from xaytune.trainer.callbacks import CallbackManager, TrainState

    manager, state = CallbackManager(), TrainState()
    for _ in range(count):
        manager.on("step_end" if busy else "epoch_end")(lambda state: None)
    return lambda: manager.fire("step_end", state)
