"""Engines by their names in the configuration, and your own.

An engine of your own is a class, or a function, that takes a `ModelDescription` and, by keyword, its settings, and
returns an `Engine`. A run takes it as an object (`recipes.grpo(engine=MyEngine)`), by dotted path
(`engine: my_module:MyEngine`), or by a name that a package adds:

    [project.entry-points."proa.engines"]
    my_engine = "my_package.engines:MyEngine"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from transformers import PreTrainedModel

from ..dotted import name_of
from ..errors import ProaError, SettingError, UnknownNameError
from ..policy.lora_policy import as_policy
from ..policy.models import load_model, outline_model
from ..registry import Registry
from ..spelling import did_you_mean
from .description import ModelDescription
from .protocol import Engine

EngineFactory: TypeAlias = Callable[..., Engine]
"""Makes an engine from a `ModelDescription` and its settings by keyword."""
ENGINES = Registry(
    "engine",
    "proa.engines",
    {
        "native": "proa.engines.native:NativeEngine",
        "hf": "proa.engines.hf:HFEngine",
        "vllm": "proa.engines.vllm:VLLMEngine",
    },
    UnknownNameError,
)


def find_engine(kind: str | EngineFactory) -> EngineFactory:
    """The factory of the engine that a configuration names, after importing its module."""
    factory: Any = ENGINES.find(kind) if isinstance(kind, str) else kind
    if not callable(factory):
        raise SettingError(
            f"engine {kind!r} is {type(factory).__name__}, not a class or a function that makes one: each maker has an "
            "engine of its own"
        )
    return cast("EngineFactory", factory)


def check_engine(kind: str | EngineFactory, model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
    """Raise if there is no such engine, if it lacks one of these settings, or if its own methods `check` and
    `check_settings` reject the model's configuration or the settings. The weights are not read."""
    factory = find_engine(kind)
    _check_settings(kind, factory, settings)
    check = getattr(factory, "check", None)
    if check is not None:
        check(model.config)
    check_settings = getattr(factory, "check_settings", None)
    if check_settings is not None:
        check_settings(**settings)


def make_engine(kind: str | EngineFactory, description: ModelDescription, settings: Mapping[str, Any]) -> Engine:
    """An engine without weights; `settings` are the ones that were set, by name."""
    factory = find_engine(kind)
    _check_settings(kind, factory, settings)
    try:
        engine = factory(description, **settings)
    except ProaError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise SettingError(f"engine {_name(kind)!r} could not be made: {type(error).__name__}: {error}") from error
    missing = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(engine, name)]
    if missing:
        raise SettingError(
            f"engine {_name(kind)!r} has no {', '.join(missing)}: what an engine must have is in proa.engines.Engine"
        )
    return engine


def _check_settings(kind: str | EngineFactory, factory: EngineFactory, settings: Mapping[str, Any]) -> None:
    taken = inspect.signature(factory).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return
    known = list(taken)[1:]
    for name in settings:
        if name not in known:
            near = did_you_mean(name, known) or f" (it has: {', '.join(known) or 'none'})"
            raise SettingError(f"engine {_name(kind)!r} has no setting {name!r}{near}")


def _name(kind: str | EngineFactory) -> str:
    return kind if isinstance(kind, str) else name_of(kind)


def build_engine(
    kind: str | EngineFactory,
    model: PreTrainedModel | str | Path | Mapping[str, Any],
    *,
    end_ids: Collection[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Engine:
    """An engine with the weights of a Hugging Face folder, or with a copy of a model's, as version 0.

    From a configuration (`{"model_type": …}`) it has no weights before the first `load`. From a model with a LoRA
    adapter it has the base's, and `load` brings the merged adapter. `end_ids` are the tokens that end a completion.
    `dtype` and `device` are by default the model's own, or float32 on the CPU for one that is loaded here. The settings
    are the engine's own: `slots`, the most sequences decoded at once, for `native`, `hf` and `vllm`; `cache_tokens`,
    the size of its cache, for `native` and `vllm`; `options`, vLLM's own arguments, for `vllm`.
    """
    if isinstance(model, Mapping):
        outlined = outline_model(model)
        description = ModelDescription.of(outlined, end_ids=end_ids, dtype=dtype, device=device or "cpu")
        return make_engine(kind, description, settings)
    if not isinstance(model, PreTrainedModel):
        model = load_model(model)
    engine = make_engine(
        kind, ModelDescription.of(model, end_ids=end_ids, dtype=dtype, device=device), settings
    )  # fmt: skip
    policy = as_policy(model)
    engine.load(policy.published_base() or policy.whole(), 0)
    return engine
