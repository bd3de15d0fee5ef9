"""Settings of this process that change what torch computes, bit for bit: noticed when user code changes them, and put
back.

Rewards, callbacks and evaluators run beside the training of a run that promises the same bits each time. One line in
them, `torch.set_num_threads(8)`, would change the result of every run that has it, and nobody would know why.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("proa.numerics")

_told: set[tuple[str, str]] = set()


class Numerics:
    """The settings as they were at one moment; `put_back` undoes what was changed since, in the same thread."""

    def __init__(self) -> None:
        self._values = {name: read() for name, (read, _) in _settings().items()}

    def put_back(self, who: str) -> None:
        """Undo changes, and say once that `who` made them."""
        for name, (read, write) in _settings().items():
            before, now = self._values[name], read()
            if now == before:
                continue
            write(before)
            if (who, name) not in _told:
                _told.add((who, name))
                log.warning(
                    "%s called %s (%s became %s), which changes the results of everything in this process: it was put "
                    "back. Threads are set by `threads`; the rest belongs before the first step, in on_train_start",
                    who, name, before, now,
                )  # fmt: skip


@contextmanager
def preserved_settings(who: str) -> Iterator[None]:
    """Inside, user code may change what it likes; afterwards it is as it was."""
    if "torch" not in sys.modules:  # what is not there has no settings, and importing it takes seconds
        yield
        return
    before = Numerics()
    try:
        yield
    finally:
        before.put_back(who)


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """By the name that a user knows it by, how each is read and written."""
    import torch

    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return {
        "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.set_default_device": (torch.get_default_device, _set_default_device),
        "torch.set_float32_matmul_precision": (_matmul_precision, torch.set_float32_matmul_precision),
        "torch.use_deterministic_algorithms": (_deterministic, _set_deterministic),
        "torch.set_flush_denormal": (_flushes_denormal, torch.set_flush_denormal),
        "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.autocast": (_autocast, _set_autocast),
        "torch.backends.cudnn.benchmark": (lambda: cudnn.benchmark, lambda to: setattr(cudnn, "benchmark", to)),
        "torch.backends.cudnn.deterministic": (
            lambda: cudnn.deterministic, lambda to: setattr(cudnn, "deterministic", to),
        ),
        "torch.backends.mkldnn.enabled": (lambda: mkldnn.enabled, lambda to: setattr(mkldnn, "enabled", to)),
    }  # fmt: skip


def _set_default_device(device: Any) -> None:
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)  # None costs nothing at each new tensor


def _matmul_precision() -> str:
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # somebody set it by torch's newer names, and the old ones do not read that
        return "highest"


def _deterministic() -> tuple[bool, bool]:
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(to: tuple[bool, bool]) -> None:
    import torch

    torch.use_deterministic_algorithms(to[0], warn_only=to[1])


def _flushes_denormal() -> bool:
    import torch

    return float(torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1.0) == 0.0


def _autocast() -> tuple[bool, bool]:
    import torch

    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _set_autocast(to: tuple[bool, bool]) -> None:
    import torch

    torch.set_autocast_enabled("cpu", to[0])
    torch.set_autocast_enabled("cuda", to[1])
