"""A model with its tokenizer, and what ends its completions."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class Material:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_ids: list[int]
    base_digest: str | None = None
    """With LoRA, of what the adapter goes over, which does not change."""
