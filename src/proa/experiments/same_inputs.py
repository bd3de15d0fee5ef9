"""Finds runs whose configurations name the same data, rewards, model or algorithm, but which used different ones.

An experiment may take days and be resumed: completed arms are kept, and what they worked on may have been edited since.
Scores are not comparable then, and the configurations would not show it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import SupervisedConfig
from ..data.results import ArmResult
from ..record.checkpoints import CheckpointError, CheckpointManager
from ..resume.inputs import Inputs
from ..resume.resuming import Resumption
from ..tasks.builtin import BUILTIN


def differing_inputs(arms: Sequence[ArmResult]) -> list[str]:
    """A sentence for each run whose inputs differ from those of an earlier run with the same configuration of them."""
    first: dict[str, tuple[str, Inputs]] = {}
    found: list[str] = []
    for arm in (arm for arm in arms if arm.status == "completed"):
        inputs = _saved_inputs(arm)
        if inputs is None:
            continue
        for configured, own in _parts(arm, inputs):
            name, expected = first.setdefault(configured, (arm.name, own))
            if differences := expected.differences(own):
                found.append(f"{arm.name} did not work on the same inputs as {name}: {'; '.join(differences)}")
    return found


def _parts(arm: ArmResult, inputs: Inputs) -> list[tuple[str, Inputs]]:
    """The inputs in parts, each with the configuration that it follows from, as text."""
    config = arm.run_config.model_dump(mode="json")
    is_supervised = isinstance(arm.run_config, SupervisedConfig)
    model = Inputs(tokenizer=inputs.tokenizer, architecture=inputs.architecture, end_ids=inputs.end_ids)
    parts = [(f"model {config['model']}", model)]
    if not is_supervised:
        rewards = Inputs(rewards=inputs.rewards, reward_model=inputs.reward_model)
        parts.append((f"reward {[config['reward'], config['task']['source']]}", rewards))
        parts.append((f"algorithm {config['algorithm']['name']}", Inputs(algorithm=inputs.algorithm)))
        parts.append((f"callbacks {config['callbacks']}", Inputs(hooks=inputs.hooks)))
    if arm.run_config.task.source not in BUILTIN:  # the rows of a built-in task follow from the seed
        kind = [config["algorithm"]["name"], config["algorithm"]["params"]] if is_supervised else []
        parts.append((f"task {[config['task'], inputs.tokenizer, kind]}", Inputs(rows=inputs.rows)))
    return parts


def _saved_inputs(arm: ArmResult) -> Inputs | None:
    """The inputs recorded in the last checkpoint; None if there is no checkpoint or no record."""
    try:
        row = CheckpointManager(arm.run_config.folder).latest()
        if row is None or row.state_path is None:
            return None
        bound = Resumption(arm.run_config.folder, row).bound_to
    except (CheckpointError, OSError):
        return None
    return None if bound is None else bound[1]
