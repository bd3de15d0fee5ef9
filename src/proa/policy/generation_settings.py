"""Makes a model's generation settings savable: transformers loads some that it then refuses to write."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..errors import SettingError

log = logging.getLogger("proa.policy")

FILE_NAME = "generation_config.json"
_FIRST = ("do_sample", "num_beams", "use_cache", "return_dict_in_generate")
"""Settings that others depend on: `temperature` is refused without `do_sample`, not the other way round."""


class GenerationSettingsError(SettingError):
    """A model's generation settings cannot be read, or cannot be saved again."""


def check_generation_file(folder: Path) -> None:
    """Raise for a file that transformers would silently ignore, including its end-of-sequence tokens."""
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise GenerationSettingsError(f"{folder / FILE_NAME} cannot be read: {error}. Mend it, or remove it") from error
    if not isinstance(content, dict):
        raise GenerationSettingsError(f"{folder / FILE_NAME} holds no settings: it must be a JSON object")


def make_savable(model: PreTrainedModel) -> None:
    """Remove generation settings that transformers would refuse to save, with a warning.

    Such as `temperature` without `do_sample`, which has no effect anyway.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None or _problem(settings) is None:
        return
    defaults: dict[str, Any] = GenerationConfig().to_dict()  # type: ignore[no-untyped-call]
    given = {name: value for name, value in settings.to_dict().items() if value != defaults.get(name, value)}
    kept = copy.deepcopy(settings)
    for name in given:
        setattr(kept, name, defaults[name])
    if (problem := _problem(kept)) is not None:
        raise GenerationSettingsError(
            f"the model's generation settings cannot be saved, so that no checkpoint could be: {problem}. Mend its "
            f"{FILE_NAME}, or remove it"
        )
    left_out: dict[str, Any] = {}
    for name in sorted(given, key=lambda name: (name not in _FIRST, name)):
        setattr(kept, name, given[name])
        if _problem(kept) is not None:
            setattr(kept, name, defaults[name])
            left_out[name] = given[name]
    model.generation_config = kept
    log.warning(
        "the model's generation settings contradict each other, and transformers refuses to save them: left out %s",
        ", ".join(f"{name}={value!r}" for name, value in left_out.items()),
    )


def _problem(settings: GenerationConfig) -> str | None:
    """transformers' reason not to save the settings; None if it would."""
    try:
        settings.validate(strict=True)
    except (ValueError, TypeError) as error:
        return " ".join(str(error).split())
    return None
