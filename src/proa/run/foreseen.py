"""The first line of a run, with folder, algorithm and device, and all checks that need no torch, whose import takes
seconds.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from ..callbacks.registry import check_kind
from ..config import ConfigError, DetachedConfig, RunConfig, SupervisedConfig
from ..config.algorithm_outlines import OUTLINES
from ..config.sections import AUTO, GIVEN
from ..config.supervised_settings import SUPERVISED, SFTSettings
from ..dotted import DottedPathError, check_module
from ..errors import UnknownNameError
from ..policy.hub import HubError, is_hub_name, is_offline, local_folder, no_folder
from ..record.run_folder import check_unused
from ..record.run_lock import is_locked, lock
from ..registry import Registry
from ..tasks import load_examples, load_task
from ..tasks.builtin import BUILTIN
from ..tasks.preferences import load_preferences
from ..tasks.sources import check_there as check_source_there
from ..visible import print_visible
from ..vllm_arguments import check_arguments
from .naming import settle_name

NO_TOKENIZER = (
    "a model made from configuration has no tokenizer: give model.tokenizer, a folder or a name of the Hub, or "
    "tokenizer= in Python"
)
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of GPU drivers: NVIDIA's, WSL's and AMD's."""
_ALGORITHMS = Registry("algorithm", "proa.algorithms", dict.fromkeys(OUTLINES, ""), UnknownNameError)
_ENGINES = Registry("engine", "proa.engines", dict.fromkeys(("native", "hf", "vllm"), ""), UnknownNameError)
"""Names only, as the objects need torch."""
_SMALL = 2**20
"""Files up to this many bytes are read a second time, so that mistakes in them are reported at once."""
_FEW = 10_000
"""And lists up to this many rows."""


def foresee(
    config: RunConfig, *, overwrite: bool, data: Any = None, has_tokenizer: bool = False
) -> tuple[RunConfig, str]:
    """Raise all errors that can be found without torch, and print the first line. Returns the configuration with its
    name, and the line. `data` was given beside the configuration, and `has_tokenizer` says that a tokenizer was."""
    config = settle_name(config, overwrite=overwrite)
    if not overwrite:
        if is_locked(config.folder):
            with lock(config.folder):  # raises, naming the process that holds it
                pass
        check_unused(config.folder)
    _check_folder(config.folder)
    check_there(config)
    _check_small_data(config, data)
    for one in config.eval:
        one.check_data(has_test_split=config.task.source in BUILTIN)
    if not has_tokenizer:
        _check_tokenizer(config)
    return config, announce(config) if config.progress else ""


def check_there(config: RunConfig) -> None:
    """Raise for a folder, a file, an algorithm, a kind of callbacks, a module or a GPU that does not exist."""
    path = config.model.path
    if path is not None and GIVEN not in path and not Path(path).exists() and not is_hub_name(path):
        raise HubError(no_folder(path))
    for model in (path, config.model.tokenizer):
        if model is not None and GIVEN not in model and is_offline():
            local_folder(model, trust_remote_code=config.model.trust_remote_code)  # which looks into the cache
    if GIVEN not in config.task.source:
        check_source_there(config.task.source)
    for one in config.eval:
        if one.source is not None and GIVEN not in one.source:
            check_source_there(one.source)
    if config.model.device.startswith("cuda") and not _on_ray(config) and not may_have_gpu():
        raise ConfigError(f"model.device is {config.model.device}, and there is no GPU here that torch can use")
    if path is not None and Path(path).is_dir():
        check_model_folder(Path(path))
    _ALGORITHMS.check(config.algorithm.name, others=SUPERVISED)
    if GIVEN not in config.engine.kind:
        _ENGINES.check(config.engine.kind)
    if isinstance(config, DetachedConfig) and config.engine.kind == "vllm" and config.engine.address is None:
        engine = config.engine
        check_arguments(engine.options, slots=engine.slots, cache_tokens=engine.cache_tokens)
    for callback in config.callbacks:
        check_kind(callback.kind)
    for what, dotted in _dotted_paths(config):
        if dotted is None or GIVEN in dotted:
            continue
        try:
            check_module(dotted)
        except DottedPathError as error:
            raise ConfigError(f"{what} {error}") from error


def _check_folder(folder: Path) -> None:
    """Raise where no folder can be made, because a file is in its place."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be used: not a directory")


def check_model_folder(folder: Path) -> None:
    """Raise if it has neither a model's configuration nor an adapter's."""
    if not any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        raise HubError(f"{folder} is not a model folder: it has no config.json")


def _check_tokenizer(config: RunConfig) -> None:
    path = config.model.path
    if config.model.tokenizer is not None:
        return
    if path is not None and (Path(path) / "config.json").is_file() and not _has_tokenizer(Path(path)):
        raise ConfigError(
            f"there is no tokenizer in {path}: name one as model.tokenizer, a folder or a name of the Hub"
        )
    if path is None and GIVEN not in config.task.source and config.task.source not in BUILTIN:
        raise ConfigError(NO_TOKENIZER)


def _has_tokenizer(folder: Path) -> bool:
    """Whether the folder may have a tokenizer of any kind, or is a run's or an adapter's, whose tokenizer is
    elsewhere."""
    kinds = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "special_tokens_map.json")
    return any(next(folder.glob(kind), None) for kind in (*kinds, "run.json", "adapter_config.json"))


def _check_small_data(config: RunConfig, given: Any) -> None:
    """Read small data, as wrong columns or lines are the most likely mistake."""
    task, source = config.task, config.task.source if given is None else given
    is_small_list = isinstance(source, list) and len(source) <= _FEW
    if not (is_small_list or (isinstance(source, str) and _is_small_file(Path(source)))):
        return
    if not isinstance(config, SupervisedConfig):
        load_task(source, columns=task.named_columns, split=task.split)
    elif isinstance(settings := config.algorithm.settings(), SFTSettings):
        columns, answer = task.named_columns, settings.answer_column
        load_examples(source, answer_column=answer, columns=columns, split=task.split)
    else:
        load_preferences(source, columns=task.named_columns, split=task.split)


def _is_small_file(file: Path) -> bool:
    return file.suffix in (".jsonl", ".json", ".csv") and file.is_file() and file.stat().st_size <= _SMALL


def _dotted_paths(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    """Where the configuration may name the user's own code, and what it names there."""
    yield from ((f"eval {one.name}: metric", one.metric) for one in config.eval)
    yield from ((f"eval {one.name}: evaluator", one.evaluator) for one in config.eval)
    if not isinstance(config, DetachedConfig):
        return
    yield from (("reward", function) for function in config.reward.functions)
    yield from (("tool", tool) for tool in config.tools)
    yield "environment", config.environment.path
    yield "agent", config.agent


def announce(config: RunConfig) -> str:
    """Print the first line before torch is loaded; `start` prints it again if it turns out otherwise."""
    announced = first_line(with_device(config, lambda: choose_device(config, may_have_gpu)))
    with suppress(OSError):  # a closed pipe must not end the run
        print_visible(f"{announced}\nloading torch, the model and the data", flush=True)
    return announced


def first_line(config: RunConfig) -> str:
    return f"{config.folder}: {config.algorithm.name} on {config.model.device} in {config.model.dtype}"


def with_device(config: RunConfig, choose: Callable[[], str]) -> RunConfig:
    """The configuration with a device for `auto`, and a dtype that suits the device."""
    device = config.model.device if config.model.device != AUTO else choose()
    dtype = config.model.dtype
    if dtype == AUTO:
        dtype = "bfloat16" if device.partition(":")[0] == "cuda" else "float32"
    return config.model_copy(update={"model": config.model.model_copy(update={"device": device, "dtype": dtype})})


def choose_device(config: RunConfig, has_gpu: Callable[[], bool]) -> str:
    """The GPU where there is one; on Ray only if its actors ask for some."""
    if _on_ray(config):
        asked = all(options.get("num_gpus") for options in (config.ray.trainer, config.ray.maker))
        return "cuda" if asked else "cpu"
    return "cuda" if has_gpu() else "cpu"


def _on_ray(config: RunConfig) -> TypeGuard[DetachedConfig]:
    return isinstance(config, DetachedConfig) and config.runtime == "ray"


def may_have_gpu() -> bool:
    """Whether torch is built for GPUs and a GPU driver exists, without importing torch, which may still find no usable
    GPU. On Windows, where drivers have no device files, only torch's build is checked."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "any") in ("", "-1"):
        return False
    has_driver = sys.platform == "win32" or any(Path(driver).exists() for driver in _DRIVERS)
    return has_driver and _has_gpu_build()


def _has_gpu_build() -> bool:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        versions = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^(cuda|hip)\b[^=]*= *['\"]", versions, flags=re.MULTILINE) is not None
