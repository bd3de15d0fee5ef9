"""Supervised recipes by name. Each takes what `start` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from ..config import RunConfig
from ..data.state import LoopState
from ..lifecycle.manager import Callbacks
from .arguments import SupervisedArguments
from .starting import start


def sft(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[SupervisedArguments]
) -> LoopState:
    """Supervised fine-tuning on prompts and answers, or on conversations.

    `algorithm.params`: `answer_column`, `train_on_prompt`, `every_answer`, `packing`, `max_length`.
    """
    return start(config, "sft", callbacks=callbacks, **changes)


def dpo(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[SupervisedArguments]
) -> LoopState:
    """Direct preference optimisation on pairs of completions.

    `algorithm.params`: `beta`, `loss` (`sigmoid` or `ipo`), `label_smoothing`, `reference_free`, `max_length`.
    """
    return start(config, "dpo", callbacks=callbacks, **changes)


def reward_model(
    config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Unpack[SupervisedArguments]
) -> LoopState:
    """A reward model from pairs of completions; `model/` is a folder for `AutoModelForSequenceClassification`.

    `algorithm.params`: `max_length`.
    """
    return start(config, "reward_model", callbacks=callbacks, **changes)
