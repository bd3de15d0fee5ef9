"""Loads models from a Hugging Face folder or a configuration, saves them, and computes the digest of their weights."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    configuration_utils,
    modeling_rope_utils,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from ..errors import SettingError
from ..private_files import private_writing
from ..spelling import did_you_mean
from .adapter_layout import AdapterError, AdapterOverBase
from .folder_files import named_configurations, named_weights, outside
from .generation_settings import check_generation_file, make_savable
from .hub import local_folder, no_folder
from .saved_adapter import SAFETENSORS_ALONE, SavedAdapter, is_adapter_folder, read_adapter

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError, StrictDataclassError,
)  # fmt: skip
"""transformers' errors for a folder with broken or too deeply nested files."""
_ONE_AT_A_TIME = threading.Lock()  # the generator and the default dtype are shared by all threads


class ModelError(SettingError):
    """A model cannot be loaded or built."""


class SavesItself(Protocol):
    """A tokenizer that can be saved into a model's folder."""

    def save_pretrained(self, save_directory: str, /) -> Any: ...


def load_model(
    source: str | PathLike[str] | Mapping[str, Any],
    *,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A causal language model from a Hugging Face folder, or from a configuration with weights drawn from `seed`.

    A folder may also be an adapter's: the model is then its base with the adapter merged in.

    Dropout is 0 in the model and in its configuration, so no step is random, even in training mode. Weights are drawn
    on the CPU and in float32 at least, independent of device and dtype but for rounding, and without changing the state
    of torch's global generator.

    >>> tiny = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    >>> model = load_model({**tiny, "num_attention_heads": 2, "vocab_size": 10, "eos_token_id": 2}, seed=1)
    >>> model.config.num_hidden_layers
    1
    """
    check_dtype(dtype)
    if not isinstance(source, Mapping):
        source = local_folder(source, trust_remote_code=trust_remote_code)
    with seeded_torch(seed):
        if isinstance(source, Mapping):
            model: Any = _draw_model(source, _DTYPES[dtype])
        elif is_adapter_folder(Path(source)):
            model = _from_adapter_folder(Path(source), dtype, trust_remote_code)
        else:
            model = _from_folder(Path(source), _DTYPES[dtype], trust_remote_code)
    return cast(PreTrainedModel, model.to(device).eval())


def check_dtype(name: str) -> None:
    """Raise unless models can be loaded in this dtype."""
    if name not in _DTYPES:
        raise ModelError(f"no dtype {name!r}; one of {', '.join(_DTYPES)}{did_you_mean(name, _DTYPES)}")


def read_dtype(name: str) -> torch.dtype:
    """The dtype of that name; raises for one in which models are not loaded."""
    check_dtype(name)
    return _DTYPES[name]


def outline_model(
    source: str | PathLike[str] | Mapping[str, Any], *, dtype: str = "float32", trust_remote_code: bool = False
) -> PreTrainedModel:
    """The model that `load_model` would load, without its weights: its configuration, and layers with names and shapes.

    Enough to find most mistakes, without reading weights. The dtype is only checked to exist.
    """
    check_dtype(dtype)
    if not isinstance(source, Mapping):
        source = local_folder(source, trust_remote_code=trust_remote_code)
    if isinstance(source, Path) and is_adapter_folder(source):
        try:
            source = read_adapter(source).base_folder()
        except AdapterError as error:
            raise ModelError(str(error)) from error
    with _ONE_AT_A_TIME, torch.device("meta"):
        if isinstance(source, Mapping):
            return _from_configuration(source, _DTYPES[dtype])
        config = _folder_configuration(Path(source), trust_remote_code)
        options = {"dtype": _DTYPES[dtype], "trust_remote_code": trust_remote_code}
        try:
            model = cast(PreTrainedModel, _AUTO_MODEL.from_config(config, **options))
        except (*_UNBUILDABLE, *UNREADABLE) as error:
            raise ModelError(f"{source} does not load as a causal language model: {error}") from error
    if (Path(source) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source, local_files_only=True)
    return model


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Inside, torch's global generator is seeded; afterwards its state is restored."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def merged_model(saved: SavedAdapter, base: Path, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    """The base with the adapter merged in, rounded once to the dtype; without an adapter."""
    noted = _noted_dtype(saved) or "float32"
    exact = _from_folder(base, _DTYPES[noted], trust_remote_code)
    layout = saved.layout_in(exact)
    check_base(saved, model_weights(exact), noted)
    wide = _cast(model_weights(exact), torch.promote_types(_DTYPES[noted], _DTYPES[dtype]))
    weights = AdapterOverBase(wide, layout).merged(saved.tensors)
    model = exact if dtype == noted else _from_folder(base, _DTYPES[dtype], trust_remote_code)
    for name, weight in model_weights(model).items():
        weight.copy_(weights[name])
    return model


def check_base(saved: SavedAdapter, weights: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Raise for an adapter whose noted base is another than these weights, which are of this `dtype`."""
    if saved.base_digest is None:
        return
    noted = _noted_dtype(saved) or dtype
    if noted != dtype:  # the same base may have been loaded in another dtype
        weights = _cast(weights, _DTYPES[noted])
    if weights_digest(weights) != saved.base_digest:
        advice = "" if noted == dtype else f", or it must be loaded in {noted} as it was then, not in {dtype}"
        raise AdapterError(f"{saved.folder} is an adapter for another base: these weights are not those noted{advice}")


def _noted_dtype(saved: SavedAdapter) -> str | None:
    if saved.base_dtype is not None and saved.base_dtype not in _DTYPES:
        raise AdapterError(f"{saved.folder} notes a base in {saved.base_dtype!r}, which is not a dtype of a model")
    return saved.base_dtype


def _cast(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in weights.items()}


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Inside, transformers shows no progress bars for folders that it reads or writes."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def save_model(model: PreTrainedModel, tokenizer: SavesItself | None, folder: str | PathLike[str]) -> None:
    """Write a plain Hugging Face folder: configuration, safetensors and, if there is one, the tokenizer.

    Like all files of a run it is readable by its owner only; `export_model` writes one to share.
    """
    _check_savable(model, folder)
    with private_writing(Path(folder)):
        export_model(model, tokenizer, folder)


def export_model(model: PreTrainedModel, tokenizer: SavesItself | None, folder: str | PathLike[str]) -> None:
    """Write the same folder with the permissions of the user's umask."""
    _check_savable(model, folder)
    make_savable(model)  # for a model made or changed in Python
    with without_progress_bars():
        model.save_pretrained(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def _check_savable(model: PreTrainedModel, folder: str | PathLike[str]) -> None:
    if Path(folder).exists() and not Path(folder).is_dir():  # transformers would only log it, and save nothing
        raise ModelError(f"cannot save a model in {folder}: it is a file")
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers would save the adapter alone
        raise ModelError(
            "this model has an adapter: save_adapter saves it, and merge_adapter_folder then a plain model"
        )


def model_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, tied weights once, as a Hugging Face folder names them.

    The tensors are the model's own, not copies: they change as it trains.
    """
    weights: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:  # a tied weight is one object under several names; the first is the folder's
            seen.add(id(tensor))
            weights[name] = tensor.detach()
    return weights


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes in name order: equal exactly if every bit is.

    >>> weights_digest({"a": torch.zeros(2), "b": torch.ones(1)})[:8]
    '7f5f9e7a'
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


_BOTH = "{} is both a model's and an adapter's folder; keep them apart to say which is meant"
_AUTO_MODEL: Any = AutoModelForCausalLM  # its methods are not typed


def _draw_model(source: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    model = _from_configuration(source, torch.promote_types(dtype, torch.float32))
    if model.dtype != dtype:
        for parameter in model.parameters():  # buffers, such as those of rotary embeddings, stay exact
            parameter.data = parameter.data.to(dtype)
        model.config.dtype = dtype
    return model


def _from_configuration(source: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    config = _configuration(dict(source))
    _remove_randomness(config)
    try:
        model = cast(PreTrainedModel, _AUTO_MODEL.from_config(config, dtype=dtype))
    except _UNBUILDABLE as error:
        raise ModelError(
            f"no {config.model_type} model has this configuration: {type(error).__name__}: {error}"
        ) from error
    make_savable(model)
    return model


_UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""transformers' errors for inconsistent sizes, and for missing packages."""


def _configuration(keys: dict[str, Any]) -> PreTrainedConfig:
    model_type = keys.pop("model_type", None)
    if model_type is None:
        raise ModelError("the model's configuration has no model_type; write for example model_type: llama")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        near = did_you_mean(str(model_type), MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        raise ModelError(f"transformers has no causal language model of model_type {model_type!r}{near}")
    try:
        config: PreTrainedConfig = AutoConfig.for_model(model_type, **keys)
    except (*_UNBUILDABLE, StrictDataclassError) as error:
        raise ModelError(f"no {model_type} model has this configuration: {error}") from error
    _refuse_unknown(keys, config)
    return config


def _refuse_unknown(keys: Mapping[str, Any], config: PreTrainedConfig, inside: str = "") -> None:
    """Raise for keys that nothing reads, which transformers would keep and ignore.

    A default configuration has most keys that are read. Others may still be read by the model, like the `head_dim` of a
    Qwen3-MoE, or by an older form of the configuration, like Gemma's `sliding_window_pattern`.
    """
    known = set(type(config)().to_dict()) | set(config.attribute_map)
    also_read = set(cast(Any, GenerationConfig)().to_dict()) | _NOTES
    kept = config.to_dict()
    unknown = [key for key in keys if key in kept and key not in known | also_read and not _is_read(key, config)]
    if unknown:
        hint = next(filter(None, (did_you_mean(key, known) for key in unknown)), "")
        several, them = ("s", "them") if len(unknown) > 1 else ("", "it")
        names = ", ".join(repr(inside + key) for key in unknown)
        raise ModelError(
            f"a {config.model_type} configuration has no key{several} {names}{hint or f'; leave {them} out'}"
        )
    for name in config.sub_configs:
        if isinstance(keys.get(name), Mapping):
            _refuse_unknown(keys[name], getattr(config, name), f"{inside}{name}.")


_NOTES = {"_name_or_path", "auto_map", "task_specific_params", "torch_dtype"}
"""Keys in saved folders that describe the folder."""


def _is_read(key: str, config: PreTrainedConfig) -> bool:
    """Whether the code of the architecture, or of every configuration in transformers, names the key."""
    own = type(config).__module__
    modules = [sys.modules[own], configuration_utils, modeling_rope_utils]
    with suppress(ImportError):  # building the model reports the missing package
        modules.append(importlib.import_module(own.replace(".configuration_", ".modeling_")))
    named = re.compile(rf"""(config\.|kwargs\.|["']){re.escape(key)}\b""")
    return any(named.search(inspect.getsource(module)) for module in modules)


def _from_adapter_folder(folder: Path, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    if (folder / "config.json").is_file():
        raise ModelError(_BOTH.format(folder))
    try:
        saved = read_adapter(folder)
        return merged_model(saved, saved.base_folder(), dtype, trust_remote_code)
    except AdapterError as error:
        raise ModelError(str(error)) from error


def check_weights_files(folder: Path, auto_class: str) -> None:
    """Raise for a folder from which transformers would unpickle something, which `use_safetensors` does not fully
    prevent, or whose JSON names files elsewhere."""
    if is_adapter_folder(folder):  # transformers would silently load the adapter, even from a pickle
        raise ModelError(_BOTH.format(folder))
    named = list(named_weights(folder))
    present = (("the folder", path.name) for path in sorted(folder.glob("*.safetensors")))
    _refuse_outside(folder, [*named, *named_configurations(folder), *present])
    pickled = [name for _, name in named if not name.endswith(_SAFE)]
    if not any(folder.glob("*.safetensors")):
        pickled += sorted(path.name for kind in _PICKLED for path in folder.glob(kind))
    if pickled:
        raise ModelError(
            f"{folder} has its weights in {pickled[0]}, which is pickled: {SAFETENSORS_ALONE}. If you trust it, "
            f"convert it once: transformers.{auto_class}.from_pretrained({str(folder)!r})"
            ".save_pretrained(ANOTHER_FOLDER)"
        )


def check_tokenizer_files(folder: Path) -> None:
    """Raise for a folder whose JSON names tokenizer files elsewhere."""
    _refuse_outside(folder, named_configurations(folder))


def _refuse_outside(folder: Path, named: Iterable[tuple[str, str]]) -> None:
    for whence, name in named:
        if why := outside(folder, name):
            raise ModelError(f"{folder}: {whence} names {name!r}, which {why}: a folder's files must lie in it")


_SAFE = (".safetensors", ".safetensors.index.json")
_PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def _from_folder(folder: Path, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    config = _folder_configuration(folder, trust_remote_code)
    local = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        with without_progress_bars():
            model, report = _AUTO_MODEL.from_pretrained(
                folder, config=config, dtype=dtype, output_loading_info=True, use_safetensors=True, **local
            )
    except UNREADABLE as error:
        raise ModelError(f"{folder} does not load as a causal language model: {error}") from error
    if missing := sorted(report["missing_keys"]):  # transformers would draw them at random, with a warning
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights, {missing[0]} the first of them")
    make_savable(model)
    return cast(PreTrainedModel, model)


def _folder_configuration(folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration in a model's folder, after checking its files."""
    if not folder.is_dir():
        raise ModelError(no_folder(folder))
    if (folder / "run.json").is_file():
        raise ModelError(f"{folder} is a run's folder: its model is {folder / 'model'}")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is not a model folder: it has no config.json")
    check_weights_files(folder, "AutoModelForCausalLM")
    check_generation_file(folder)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
        _remove_randomness(config)
    except UNREADABLE as error:
        raise ModelError(f"{folder} does not load as a causal language model: {error}") from error
    return config


def _remove_randomness(config: PreTrainedConfig) -> None:
    """Set every dropout, layer drop and router jitter to 0."""
    text = config.get_text_config()
    for name, value in list(vars(text).items()):
        if isinstance(value, PreTrainedConfig):  # in MPT and DBRX those of the layers are separate
            _remove_randomness(value)
        elif ("drop" in name or "jitter" in name) and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(text, name, type(value)(0))  # MPT's must be integers
    if config.model_type == "rwkv":
        cast(Any, config).rescale_every = 0  # else evaluation divides weights in place, which would be saved
