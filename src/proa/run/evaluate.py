"""Scores a model that lies in a folder: after a run, or by `proa eval`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig
from ..config.sections import EvalSection
from ..evals.benchmark import Scored
from ..evals.evaluation import At, scoring
from ..policy.adapter_folder import load_adapter
from ..policy.material import Material
from ..policy.saved_adapter import CONFIG_FILE, read_adapter
from .given import Given
from .material import load_material


def evaluate_folder(
    folder: Path,
    section: EvalSection,
    config: RunConfig,
    *,
    version: int = 0,
    steps: int = 0,
    called: Callable[..., Any] | None = None,
    any_length: bool = False,
) -> Scored:
    """The scores of the model in a folder, plain or an adapter, as a run of that configuration would take them."""
    torch.set_num_threads(config.threads)
    material = _material_in(folder, config)
    at = At(steps, version)
    scored = scoring(section, config, material, lambda: at, called, any_length=any_length)()()
    return replace(scored, result=replace(scored.result, step=None))


def _material_in(folder: Path, config: RunConfig) -> Material:
    is_adapter = (folder / CONFIG_FILE).is_file()
    path = str(read_adapter(folder).base_folder()) if is_adapter else str(folder)
    model = config.model.model_copy(update={"path": path, "config": None, "tokenizer": str(folder)})
    material = load_material(config.model_copy(update={"model": model, "lora": None}), Given())
    if is_adapter:
        load_adapter(material.model, folder)
    return material
