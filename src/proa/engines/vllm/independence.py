"""Whether what comes of a request depends on others in vLLM: tried on the machine that decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..description import ModelDescription
    from .engine import VLLMEngine


def is_independent(engine: VLLMEngine, description: ModelDescription) -> bool:
    """TODO"""
    return False
