"""Builds callbacks from `{kind, params}`, as configuration files name them.

A kind may be the dotted path of a user's class, or of a function that makes a callback:

    callbacks:
      - kind: my_module.MyCallback
        params: {every: 10}

Other packages add kinds through the entry point group `proa.callbacks`:

    [project.entry-points."proa.callbacks"]
    my_logger = "my_package.loggers:MyLogger"
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import CallbackConfigError, ProaError
from ..lifecycle.hooks import BaseCallback, may_change_experience
from ..rewards.dotted import DottedPathError, resolve
from ..spelling import did_you_mean

ENTRY_POINT_GROUP = "proa.callbacks"

Factory = Callable[..., BaseCallback]

_SHIPPED = {
    "console": "console:ConsoleProgress",
    "csv": "metric_files:CsvMetrics",
    "early_stopping": "early_stopping:EarlyStopping",
    "jsonl": "metric_files:JsonlMetrics",
    "maker_performance": "performance:ExperienceMakerPerformanceEvaluator",
    "tensorboard": "tensorboard:TensorBoardLogger",
    "tracer": "tracer:EventTracer",
    "trackio": "trackio:TrackioLogger",
    "trainer_performance": "performance:TrainerPerformanceEvaluator",
    "wandb": "wandb:WandbLogger",
}
_registered: dict[str, Factory] = {}


def build_callback(spec: Mapping[str, Any]) -> BaseCallback:
    """The callback that `{"kind": …, "params": {…}}` describes.

    >>> build_callback({"kind": "early_stopping", "params": {"metric": "loss", "patience": 5}}).patience
    5
    """
    kind, params = _parse(spec)
    factory = _factory(kind)
    _check_params(kind, factory, params)
    try:
        callback = factory(**params)
    except ProaError:
        raise
    except Exception as error:  # a constructor may raise anything
        raise CallbackConfigError(f"callback kind {kind!r}: {type(error).__name__}: {error}") from error
    if not isinstance(callback, BaseCallback):
        raise CallbackConfigError(f"callback kind {kind!r} made {callback!r}, which is not a callback")
    return callback


def check_callback(spec: Mapping[str, Any]) -> None:
    """Raise if `build_callback` would. Proa's own callbacks are built and dropped; others may have side effects when
    they are built, so only the names of their parameters are checked."""
    kind, params = _parse(spec)
    if kind in _SHIPPED:
        build_callback(spec)
    else:
        _check_params(kind, _factory(kind), params)


def _parse(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    wrong = CallbackConfigError(f"a callback is given as {{kind: …, params: {{…}}}}, not as {spec!r}")
    if not isinstance(spec, Mapping) or spec.keys() - {"kind", "params"}:
        raise wrong
    kind, params = spec.get("kind"), spec.get("params") or {}
    if not isinstance(kind, str) or not isinstance(params, Mapping):
        raise wrong
    return kind, dict(params)


def changes_experience(spec: Mapping[str, Any]) -> bool:
    """Whether the callback may change experience, and so the result of training."""
    kind, params = _parse(spec)
    factory = _factory(kind)
    made = factory if isinstance(factory, type) else type(factory(**params))
    return may_change_experience(made)


def register_callback(kind: str, factory: Factory) -> None:
    """Add a kind from code; packages do it by entry point."""
    if kind in callback_kinds():
        raise CallbackConfigError(f"callback kind {kind!r} is taken")
    _registered[kind] = factory


def callback_kinds() -> dict[str, str]:
    """All kinds and their origin, without importing any."""
    shipped = {kind: f"proa.callbacks.{target.partition(':')[0]}" for kind, target in _SHIPPED.items()}
    plugins = {name: point.value for name, point in _plugins().items() if name not in shipped}
    registered = {kind: getattr(factory, "__module__", "?") for kind, factory in _registered.items()}
    return {**shipped, **plugins, **registered}


def _factory(kind: str) -> Factory:
    if kind in _registered:
        return _registered[kind]
    if kind in _SHIPPED:
        module, _, name = _SHIPPED[kind].partition(":")
        shipped: Factory = getattr(importlib.import_module(f".{module}", __package__), name)
        return shipped
    plugin = _plugins().get(kind)
    if plugin is None:
        return _user_factory(kind)
    try:
        loaded: Factory = plugin.load()
    except Exception as error:
        raise CallbackConfigError(f"callback kind {kind!r} ({plugin.value}) could not be loaded: {error}") from error
    return loaded


def _user_factory(kind: str) -> Factory:
    """The class, or function that makes a callback, at a user's dotted path."""
    if not any(mark in kind for mark in ":."):
        known = callback_kinds()
        raise CallbackConfigError(
            f"unknown callback kind {kind!r}{did_you_mean(kind, known)} (known: {', '.join(sorted(known))}; your own: "
            f"'package.module:Class')"
        )
    try:
        found = resolve(kind)
    except DottedPathError as error:
        raise CallbackConfigError(f"callback kind {error}") from error
    if isinstance(found, BaseCallback):
        raise CallbackConfigError(f"callback kind {kind!r} is a callback object: name its class")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, BaseCallback)):
        raise CallbackConfigError(
            f"callback kind {kind!r} is not a callback: derive a class from Callback, TrainerCallback or "
            f"MakerCallback, or name a function that makes one"
        )
    factory: Factory = found
    return factory


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _check_params(kind: str, factory: Factory, params: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some types written in C have no signature
        return
    names = {p.name for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in () if takes_any else params.keys() - names:
        raise CallbackConfigError(
            f"callback kind {kind!r} has no parameter {name!r}{did_you_mean(name, names)} "
            f"(it has: {', '.join(sorted(names))})"
        )
    try:
        signature.bind(**params)
    except TypeError as error:
        raise CallbackConfigError(f"callback kind {kind!r}: {error}") from None
