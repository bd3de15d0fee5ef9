"""Global settings that change the bits that torch computes: restored, with a warning, when user code changes them.

Rewards, callbacks and evaluators run in the process of a run that promises the same bits each time. One line in them,
`torch.set_num_threads(8)`, would change the result for no visible reason.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("proa.numerics")


def compute_alike(threads: int, *, device: str, deterministic: bool) -> None:
    """Have torch compute the same bits each time in this process: with so many threads, and on a GPU with deterministic
    kernels only. What has none there raises, and names itself."""
    import torch

    torch.set_num_threads(threads)
    if torch.device(device).type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which torch insists on
        torch.use_deterministic_algorithms(deterministic)
        # Filling new memory takes time, and nothing here reads what it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


_warned: set[tuple[str, str]] = set()
_stable = threading.RLock()
"""Held while a library changes settings of the whole process for a moment."""


@contextmanager
def changing_settings() -> Iterator[None]:
    """Inside, a library changes settings and puts them back, as vLLM does when it starts. Other threads wait before
    they compare: they would take what is set for a moment for what the user set, or restore it too early."""
    with _stable:
        yield


class Numerics:
    """A snapshot of the settings; `restore` undoes later changes, in the same thread."""

    def __init__(self) -> None:
        with _stable:
            self._values = {name: read() for name, (read, _) in _settings().items()}

    def restore(self, who: str) -> None:
        """Undo changes, and warn once that `who` made them."""
        with _stable:
            self._restore(who)

    def _restore(self, who: str) -> None:
        for name, (read, write) in _settings().items():
            before, now = self._values[name], read()
            if now == before:
                continue
            write(before)
            if (who, name) not in _warned:
                _warned.add((who, name))
                log.warning(
                    "%s called %s (%s became %s), which changes the results of everything in this process: it was "
                    "restored. Set threads with `threads`, and all else before the first step, in on_train_start",
                    who, name, before, now,
                )  # fmt: skip


@contextmanager
def preserved_settings(who: str) -> Iterator[None]:
    """Inside, user code may change any setting; afterwards all are restored."""
    if "torch" not in sys.modules:  # nothing to preserve, and importing it takes seconds
        yield
        return
    before = Numerics()
    try:
        yield
    finally:
        before.restore(who)


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How each setting is read and written, by the name that users know."""
    import torch

    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn

    def set_default_device(device: torch.device) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)  # None costs nothing at each new tensor

    def matmul_precision() -> str:
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:  # it was set by torch's newer names, which the old function does not read
            return "highest"

    def deterministic() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def set_deterministic(value: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])

    def flush_denormal() -> bool:
        return float(torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1.0) == 0.0

    def autocast() -> tuple[bool, bool]:
        return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")

    def set_autocast(value: tuple[bool, bool]) -> None:
        torch.set_autocast_enabled("cpu", value[0])
        torch.set_autocast_enabled("cuda", value[1])

    return {
        "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.set_default_device": (torch.get_default_device, set_default_device),
        "torch.set_float32_matmul_precision": (matmul_precision, torch.set_float32_matmul_precision),
        "torch.use_deterministic_algorithms": (deterministic, set_deterministic),
        "torch.set_flush_denormal": (flush_denormal, torch.set_flush_denormal),
        "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.autocast": (autocast, set_autocast),
        "torch.backends.cudnn.benchmark": (lambda: cudnn.benchmark, lambda to: setattr(cudnn, "benchmark", to)),
        "torch.backends.cudnn.deterministic": (
            lambda: cudnn.deterministic, lambda to: setattr(cudnn, "deterministic", to),
        ),
        "torch.backends.mkldnn.enabled": (lambda: mkldnn.enabled, lambda to: setattr(mkldnn, "enabled", to)),
    }  # fmt: skip
