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

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CallbackConfigError, ProaError
from ..lifecycle.hooks import BaseCallback, may_change_experience
from ..registry import Registry
from ..spelling import did_you_mean

Factory = Callable[..., BaseCallback]

_SHIPPED = {
    "console": "console:ConsoleProgress",
    "csv": "metric_files:CsvMetrics",
    "early_stopping": "early_stopping:EarlyStopping",
    "gradient_norms": "gradient_norms:GradientNorms",
    "jsonl": "metric_files:JsonlMetrics",
    "maker_performance": "performance:ExperienceMakerPerformanceEvaluator",
    "tensorboard": "tensorboard:TensorBoardLogger",
    "tracer": "tracer:EventTracer",
    "trackio": "trackio:TrackioLogger",
    "trainer_performance": "performance:TrainerPerformanceEvaluator",
    "upload": "upload:CheckpointUpload",
    "wandb": "wandb:WandbLogger",
    "webhook": "webhook:WebhookNotifier",
}
_KINDS = Registry(
    "callback kind",
    "proa.callbacks",
    {kind: f"{__package__}.{place}" for kind, place in _SHIPPED.items()},
    CallbackConfigError,
)


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


def check_kind(kind: str) -> None:
    """Raise for a kind that there is not. Nothing is imported."""
    _KINDS.check(kind)


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
    _KINDS.register(kind, factory)


def callback_kinds() -> dict[str, str]:
    """Every kind there is and where it comes from, without importing any."""
    return {kind: home.partition(":")[0] if kind in _SHIPPED else home for kind, home in _KINDS.names().items()}


def _factory(kind: str) -> Factory:
    """A class, or a function that makes a callback."""
    found = _KINDS.find(kind)
    if isinstance(found, BaseCallback):
        raise CallbackConfigError(f"callback kind {kind!r} is a callback object: name its class")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, BaseCallback)):
        raise CallbackConfigError(
            f"callback kind {kind!r} is not a callback: derive a class from Callback, TrainerCallback or "
            f"MakerCallback, or name a function that makes one"
        )
    factory: Factory = found
    return factory


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
