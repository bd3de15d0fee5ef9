"""Places each callback: in the run's driver, with the trainers, or with each maker."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from ..callbacks import EarlyStopping, JsonlMetrics, build_callback
from ..config import DetachedConfig, ExperimentConfig, RunConfig
from ..config.sections import TRAINING_PREFIXES
from ..data.results import LogContext
from ..data.state import LoopState
from ..errors import CallbackConfigError, HookError
from ..lifecycle.copies import PackedState, return_states
from ..lifecycle.functions import ListeningFunction
from ..lifecycle.hooks import (
    BaseCallback,
    Callback,
    EveryMoment,
    MakerCallback,
    TrainerCallback,
    may_change_experience,
)
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.moments import MOMENTS, EventName, Scope
from ..lifecycle.placement import Placement
from ..lifecycle.policy import Priority
from ..lifecycle.roles import make_callback
from ..rewards.identity import identity
from ..spelling import did_you_mean

FIRST_TRAINER = "trainer_0"


class TrainerListeners(Protocol):
    """The callbacks in the process of trainer rank 0."""

    manager: CallbackManager

    def add(self, callback: BaseCallback) -> None:
        """Register a callback for this run."""

    def process_state(self) -> dict[str, Any]:
        """For checkpoints: the state of these callbacks, and of this process's random streams, unless the driver saves
        it."""


@dataclass
class Listeners:
    """The callbacks of a run by where they live: in the driver's manager, with each maker, with the trainers.

    Those for other processes are callbacks or factories; `fresh` makes the instance there.
    """

    manager: CallbackManager
    makers: list[Any]
    """Those that live with each maker."""
    trainer: list[Any]
    """Those that live with trainer rank 0, if that is another process; else they are in the manager."""
    every_trainer: list[Any]
    """Those that live with every trainer, if these are other processes; else they are in the manager."""
    _added: list[BaseCallback | ListeningFunction]
    ctx: LogContext
    """The run's context for loggers; `state.ctx` is the same object."""
    trainer_apart: bool = False
    """Whether the trainer is another process."""

    def add(self, callback: BaseCallback | ListeningFunction) -> None:
        """Register a callback or a function for this run only, as the manager may be the user's and outlive it."""
        self.manager.add(callback)
        self._added.append(callback)

    def process_state(self) -> dict[str, Any]:
        """Empty: in the driver's process the record saves it."""
        return {}

    def place(self, callback: BaseCallback) -> None:
        """Put a callback where it lives: with the makers, with trainers in another process, or else in the manager."""
        if isinstance(callback, MakerCallback):
            self.makers.append(callback)
        elif self.trainer_apart and isinstance(callback, TrainerCallback):
            (self.every_trainer if callback.all_ranks else self.trainer).append(callback)
        else:
            self.add(callback)

    def return_copies(self, states: Mapping[str, Sequence[PackedState]]) -> None:
        """Return the state of copies to the instances, by the actors' names; that of trainer rank 0 becomes the
        instance's own."""
        first = [one for one in (*self.trainer, *self.every_trainer) if isinstance(one, BaseCallback)]
        others = [one for one in self.every_trainer if isinstance(one, BaseCallback)]
        makers = [one for one in self.makers if isinstance(one, BaseCallback)]
        found: dict[int, dict[str, PackedState]] = {id(one): {} for one in (*first, *makers)}
        for actor, packed in states.items():
            theirs = first if actor == FIRST_TRAINER else others if actor.startswith("trainer_") else makers
            for callback, state in zip(theirs, packed, strict=False):  # an actor that died has none
                found[id(callback)][actor] = state
        for callback in (*first, *makers):
            return_states(callback, found[id(callback)], own=FIRST_TRAINER)

    def note_shared(self, makers: Mapping[str, Sequence[BaseCallback]]) -> None:
        """After a run in one process, set `actor_copies` to the instances that each trainer and maker used."""
        for callback in self.manager.callbacks:
            if isinstance(callback, TrainerCallback):
                vars(callback)["actor_copies"] = {FIRST_TRAINER: callback}
        for place, given in enumerate(self.makers):
            if isinstance(given, BaseCallback):
                vars(given)["actor_copies"] = {name: callbacks[place] for name, callbacks in makers.items()}

    def experience_hooks(self) -> dict[str, str]:
        """Hooks that may change experience, by name, each with a digest of its source."""
        makers = [one if isinstance(one, BaseCallback | type) else make_callback(one) for one in self.makers]
        readers = self.manager.readers("maker.make_experience_end", "experience")
        hooks = [one for one in makers if may_change_experience(one if isinstance(one, type) else type(one))]
        hooks += [one for one in readers if not isinstance(one, BaseCallback)]
        found: dict[str, str] = {}
        for hook in hooks:
            name = getattr(hook, "__name__", type(hook).__name__)
            found[name if name not in found else f"{name} ({len(found) + 1})"] = identity(hook)
        return found

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was added for this run."""
        for callback in self._added:
            self.manager.remove(callback)
        self._added.clear()


def place_callbacks(config: RunConfig, callbacks: Callbacks, ctx: LogContext | None = None) -> Listeners:
    """Place all callbacks, including the configured ones and the record. Use it in a `with`, which restores a manager
    of the user's. Without `ctx`, the context of an experiment's run, the run is standalone."""
    trainer_apart = isinstance(config, DetachedConfig) and config.runtime == "ray"
    configured = [build_callback(section.model_dump()) for section in config.callbacks]
    given, others = CallbackManager.split(callbacks)
    placement = Placement.assign(others)
    here = placement.driver if trainer_apart else placement.in_one_process
    for callback in [*(given.callbacks if given is not None else ()), *others, *configured]:
        if isinstance(callback, EarlyStopping):
            _check_watched(callback.metric, [section.name for section in config.eval])
    manager = given or CallbackManager()
    listeners = Listeners(
        manager,
        placement.makers,
        placement.trainer,
        placement.every_trainer,
        [],
        ctx or standalone_context(config),
        trainer_apart,
    )
    with ExitStack() as on_error:
        on_error.enter_context(listeners)  # an error removes the callbacks added before it
        listeners.add(_SetContext(listeners.ctx))
        for callback in here:
            if given is None:
                manager.add(callback)
            elif isinstance(callback, ListeningFunction):
                listeners.add(callback)
            else:
                listeners.add(make_callback(callback))  # the manager is the user's, and outlives the run
        listeners.add(JsonlMetrics(required=True))
        for callback in configured:
            listeners.place(callback)
        for callback in [*manager.callbacks, *others]:
            if isinstance(callback, BaseCallback):
                vars(callback).pop("actor_copies", None)  # of an earlier run
        on_error.pop_all()
    return listeners


def standalone_context(config: RunConfig) -> LogContext:
    """The context of a plain run, which is an experiment of one."""
    experiment = ExperimentConfig.of_one(config)
    return LogContext(config.folder, experiment, config.name, config, extras={"standalone": True})


def _check_watched(metric: str, evals: Sequence[str]) -> None:
    """Raise if it is an eval's metric and the eval's name is misspelt; other metrics are not known yet."""
    name, point, _ = metric.partition(".")
    if point and name not in (*evals, *TRAINING_PREFIXES) and (near := did_you_mean(name, evals)):
        raise CallbackConfigError(f"early stopping watches {metric!r}, and no eval is named {name!r}{near}")


class _SetContext(Callback):
    """Sets the state's context before other callbacks read it."""

    priority = Priority.METRICS + 1
    uses_asyncio = False

    def __init__(self, ctx: LogContext) -> None:
        self._ctx = ctx

    def on_train_start(self, state: LoopState) -> None:
        state.ctx = self._ctx


class ToDriver(EveryMoment):
    """Forwards a maker's moments to the functions in the run's own manager."""

    thread_safe = True  # the driver's manager locks each of its listeners
    uses_asyncio = False
    forwards = True

    def __init__(self, driver: CallbackManager) -> None:
        self._driver = driver

    def wants(self, event: EventName, item: str | None) -> bool:
        return self._driver.wants(event, item)

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        if MOMENTS[event].scope is Scope.MAKER:
            self._driver.fire(event, *payload.values())


def fresh(given: Any) -> BaseCallback:
    """A callback for one actor: made by a factory, or the given instance. Makers in threads share the instance, under a
    lock; an actor on Ray has a pickled copy."""
    made: BaseCallback = given if isinstance(given, BaseCallback) else given()
    return made


def fresh_for_maker(given: Any) -> BaseCallback:
    """A callback for one of several makers in one process: a copy of the instance if it is `per_maker`."""
    made = fresh(given)
    if made is not given or not isinstance(made, MakerCallback) or not made.per_maker:
        return made
    try:
        return copy.deepcopy(made)
    except Exception as error:
        name = type(made).__name__
        raise HookError(
            f"{name} has per_maker = True and cannot be copied for each maker ({type(error).__name__}: {error}): open "
            f"what cannot be copied in the first hook instead, or pass a factory, e.g. functools.partial({name}, ...)"
        ) from error
