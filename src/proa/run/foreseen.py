"""The first line of a run: where it writes, what it does, on which device. The command line foresees the device without
loading torch, which takes seconds.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

from ..callbacks.registry import check_kind
from ..config import ConfigError, DetachedConfig, RunConfig
from ..config.algorithm_outlines import OUTLINES
from ..config.sections import AUTO, GIVEN
from ..config.supervised_settings import SUPERVISED
from ..dotted import DottedPathError, check_module
from ..errors import UnknownNameError
from ..policy.hub import HubError, is_hub_name, no_folder
from ..record.run_folder import check_unused
from ..record.run_lock import is_locked, lock
from ..registry import Registry
from ..tasks.sources import check_there as check_source_there
from ..visible import print_visible
from .naming import settle_name

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""What the driver of a GPU makes: of NVIDIA's, under WSL, and of AMD's."""
_ALGORITHMS = Registry("algorithm", "proa.algorithms", dict.fromkeys(OUTLINES, ""), UnknownNameError)
"""Their names only: what they are needs torch."""


def foresee(config: RunConfig, *, overwrite: bool) -> tuple[RunConfig, str]:
    """Refuse what can be refused without torch, and print the first line. Returns the configuration with its name, and
    the line."""
    config = settle_name(config, overwrite=overwrite)
    if not overwrite:
        if is_locked(config.folder):
            with lock(config.folder):  # which raises, and names the process that has it
                pass
        check_unused(config.folder)
    check_there(config)
    return config, announce(config) if config.progress else ""


def check_there(config: RunConfig) -> None:
    """Raise for a folder, a file, an algorithm, a kind of callbacks, a module or a GPU that there is not: a slip need
    not wait for torch."""
    path = config.model.path
    if path is not None and GIVEN not in path and not Path(path).exists() and not is_hub_name(path):
        raise HubError(no_folder(path))
    if GIVEN not in config.task.source:
        check_source_there(config.task.source)
    if config.model.device.startswith("cuda") and not _on_ray(config) and not may_have_gpu():
        raise ConfigError(f"model.device is {config.model.device}, and there is no GPU here that torch can use")
    _ALGORITHMS.check(config.algorithm.name, others=SUPERVISED)
    for callback in config.callbacks:
        check_kind(callback.kind)
    for what, dotted in _dotted_paths(config):
        try:
            check_module(dotted)
        except DottedPathError as error:
            raise ConfigError(f"{what} {error}") from error


def _dotted_paths(config: RunConfig) -> Iterator[tuple[str, str]]:
    """What is named of the user's own code, and where."""
    yield from ((what, path) for what, path in _codes(config) if path is not None and GIVEN not in path)


def _codes(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    yield from ((f"eval {one.name}: metric", one.metric) for one in config.eval)
    yield from ((f"eval {one.name}: evaluator", one.evaluator) for one in config.eval)
    if not isinstance(config, DetachedConfig):
        return
    yield from (("reward", function) for function in config.reward.functions)
    yield from (("tool", tool) for tool in config.tools)
    yield "environment", config.environment.path
    yield "agent", config.agent


def announce(config: RunConfig) -> str:
    """Print the first line before torch is loaded; it is for `start`, which prints it again if it was not true."""
    announced = first_line(with_device(config, lambda: choose_device(config, may_have_gpu)))
    with suppress(OSError):  # the reader of a pipe has left: the run continues
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
    """Whether torch is built for GPUs and the driver of one is there. Torch itself may still find none that it can use;
    on Windows, where drivers leave no such trace, this is only known of torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "any") in ("", "-1"):
        return False
    has_driver = sys.platform == "win32" or any(Path(driver).exists() for driver in _DRIVERS)
    return has_driver and _torch_is_built_for_gpus()


def _torch_is_built_for_gpus() -> bool:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        versions = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^(cuda|hip)\b[^=]*= *['\"]", versions, flags=re.MULTILINE) is not None
