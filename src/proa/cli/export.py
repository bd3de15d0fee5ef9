"""`proa export`: a trained adapter and its base as one plain model folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers.utils import logging as transformers_logging

from ..config import ConfigError
from ..policy.adapter_folder import merge_adapter_folder
from ..policy.saved_adapter import is_adapter_folder
from ..visible import print_visible
from .exit_codes import exit_code


def export(source: str, folder: str, base: str | None, trust_remote_code: bool) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def work() -> int:
        model, target = _find_model(Path(source)), Path(folder)
        if model is None:
            raise ConfigError(f"{source} is neither a run's folder with a model nor an adapter folder")
        if target.exists():
            raise ConfigError(f"{target} exists already: give a folder that does not")
        if not is_adapter_folder(model):
            shutil.copytree(model, target)
            print_visible(f"{model} has no adapter: copied to {target} unchanged")
            return 0
        merge_adapter_folder(model, target, base_folder=base, trust_remote_code=trust_remote_code)
        print_visible(f"merged into {target}: AutoModelForCausalLM.from_pretrained({folder!r})")
        return 0

    return exit_code(work, paths=[source, folder, base])


def _find_model(source: Path) -> Path | None:
    for folder in (source / "model", source):
        is_plain = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        if is_adapter_folder(folder) or is_plain:
            return folder
    return None
