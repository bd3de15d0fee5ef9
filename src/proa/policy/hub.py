"""Models and tokenizers of the Hugging Face Hub by name: `Qwen/Qwen3-0.6B`, optionally with `@` and a revision."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from ..errors import SettingError
from ..hub_errors import explain_hub_error

_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
"""Weights, configurations and tokenizer files; no pickles, and no code unless requested."""


class HubError(SettingError):
    """A name is neither on the Hub nor in its cache on this machine."""


def is_hub_name(source: str) -> bool:
    """Whether this has the form of a name on the Hub, with or without a revision."""
    return _NAME.fullmatch(source) is not None


def is_offline() -> bool:
    """Whether the Hub is not to be asked, and only its cache on this machine counts."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def no_folder(source: object) -> str:
    """The error message for a path that is not a folder."""
    return (
        f"no model folder {source}: give the path of a Hugging Face folder on this machine, a name of the Hub "
        "(Qwen/Qwen3-0.6B), or a configuration with a model_type"
    )


def local_folder(source: str | PathLike[str], *, trust_remote_code: bool = False) -> Path:
    """The folder of a path or of a name on the Hub; a local path takes precedence.

    A model of the Hub is downloaded to its cache, or with HF_HUB_OFFLINE only taken from there.
    """
    named = _NAME.fullmatch(str(source))
    if named is None or Path(source).exists():
        return Path(source)
    from huggingface_hub import constants, snapshot_download  # slow to import

    try:
        found = snapshot_download(
            named["name"],
            revision=named["revision"],
            allow_patterns=[*_FILES, *(["*.py"] if trust_remote_code else [])],
            local_files_only=constants.HF_HUB_OFFLINE,
        )
    except Exception as error:  # of the network, the Hub or the cache
        why = explain_hub_error(error, "model", named["name"], named["revision"])
        raise HubError(f"there is no folder {source} here; {why}") from error
    return Path(found)


def pinned_name(source: str, *, trust_remote_code: bool = False) -> str:
    """A name of the Hub with its present commit; a path unchanged."""
    named = _NAME.fullmatch(source)
    if named is None or Path(source).exists():
        return source
    return f"{named['name']}@{local_folder(source, trust_remote_code=trust_remote_code).name}"
