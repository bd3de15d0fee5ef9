"""`proa export`: a trained adapter and its base as one plain model folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from transformers.utils import logging as transformers_logging

from ..errors import ProaError
from ..policy.adapter_folder import merge_adapter_folder
from ..policy.saved_adapter import is_adapter_folder


def export(source: str, folder: str, base: str | None, trust_remote_code: bool) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    found, target = _model_in(Path(source)), Path(folder)
    if found is None:
        print(f"{source} is neither a run's folder with a model nor an adapter folder", file=sys.stderr)
        return 2
    if target.exists():
        print(f"{target} exists already: give a folder that does not", file=sys.stderr)
        return 2
    try:
        if not is_adapter_folder(found):
            shutil.copytree(found, target)
            print(f"{found} has no adapter: copied to {target} as it is")
            return 0
        merge_adapter_folder(found, target, base_folder=base, trust_remote_code=trust_remote_code)
    except (ProaError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"merged into {target}: AutoModelForCausalLM.from_pretrained({folder!r})")
    return 0


def _model_in(source: Path) -> Path | None:
    for folder in (source / "model", source):
        is_plain = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        if is_adapter_folder(folder) or is_plain:
            return folder
    return None
