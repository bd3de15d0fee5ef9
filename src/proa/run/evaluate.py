"""Scores a model in a folder: after a run, or by `proa eval`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..config import RunConfig
from ..config.eval_section import BenchmarkSection
from ..evals.evaluation import build_eval
from ..evals.scoring import At, Scored
from ..numerics import compute_alike
from ..policy.adapter_folder import load_adapter
from ..policy.lora_policy import LoraPolicy
from ..policy.policy import Policy
from ..policy.saved_adapter import CONFIG_FILE, read_adapter
from .automatic import resolve_automatic
from .given import Given
from .loading import load_policy


def evaluate_folder(
    folder: Path,
    section: BenchmarkSection,
    config: RunConfig,
    *,
    version: int = 0,
    steps: int = 0,
    any_length: bool = False,
) -> Scored:
    """The scores of the model in a folder, plain or an adapter, as a run of that configuration would take them."""
    config = resolve_automatic(config, Given())
    compute_alike(config.threads, device=config.model.device, deterministic=config.deterministic)
    policy = load_folder(folder, config)
    scored = build_eval(section, config, policy, any_length=any_length).score(At(steps, version))
    return replace(scored, result=replace(scored.result, step=None))


def load_folder(folder: Path, config: RunConfig) -> Policy:
    """The model in a folder, plain or an adapter over its base, as a run of that configuration would load it."""
    is_adapter = (folder / CONFIG_FILE).is_file()
    path = str(read_adapter(folder).base_folder()) if is_adapter else str(folder)
    model = config.model.model_copy(update={"path": path, "config": None, "tokenizer": str(folder)})
    plain = load_policy(config.model_copy(update={"model": model, "lora": None}), Given())
    if not is_adapter:
        return plain
    load_adapter(plain.model, folder)
    return LoraPolicy(plain.model, plain.tokenizer, plain.end_ids)
