"""Whether runs whose configurations name the same data and rewards did work on the same.

An experiment may take days and be begun again: arms that were complete stay as they are, and what they worked on may
have been edited since. Their scores could then not be compared, and nothing in the configurations would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config import SupervisedConfig
from ..data.results import ArmResult
from ..record.checkpoints import CheckpointError, CheckpointManager
from ..resume.inputs import Inputs
from ..resume.resuming import Resumption
from ..tasks.builtin import BUILTIN


def other_inputs(arms: Sequence[ArmResult]) -> list[str]:
    """In words, each run that worked on something else than another of which the configuration says the same."""
    first: dict[str, tuple[str, Inputs]] = {}
    found: list[str] = []
    for arm in (arm for arm in arms if arm.status == "completed"):
        inputs = _inputs_of(arm)
        if inputs is None:
            continue
        for part, says, own in _parts(arm, inputs):
            name, before = first.setdefault(f"{part} {says}", (arm.name, own))
            if differences := before.differences(own):
                found.append(f"{arm.name} did not work on what {name} did: {'; '.join(differences)}")
    return found


def _parts(arm: ArmResult, inputs: Inputs) -> list[tuple[str, Any, Inputs]]:
    """What of the inputs follows from which part of the configuration."""
    config = arm.run_config.model_dump(mode="json")
    is_supervised = isinstance(arm.run_config, SupervisedConfig)
    parts: list[tuple[str, Any, Inputs]] = []
    if not is_supervised:
        rewards = Inputs(rewards=inputs.rewards, reward_model=inputs.reward_model)
        parts.append(("reward", [config["reward"], config["task"]["source"]], rewards))
    if arm.run_config.task.source not in BUILTIN:  # whose rows follow from the seed
        kind = [config["algorithm"]["name"], config["algorithm"]["params"]] if is_supervised else []
        parts.append(("task", [config["task"], inputs.tokenizer, kind], Inputs(rows=inputs.rows)))
    return parts


def _inputs_of(arm: ArmResult) -> Inputs | None:
    """What its last checkpoint says; None if there is none that says it."""
    try:
        row = CheckpointManager(arm.run_config.folder).latest()
        if row is None or row.state_path is None:
            return None
        bound = Resumption(arm.run_config.folder, row).bound_to
    except (CheckpointError, OSError):
        return None
    return None if bound is None else bound[1]
