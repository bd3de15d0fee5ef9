"""What came of a run of an experiment, in its folder: `arm.json`."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..data.loop import LoopArtifacts, ManifestRow
from ..data.results import ArmResult, EvalResult, RunResult
from ..record.durable import Disk
from ..record.run_folder import as_json, read_json
from .plan import PlannedRun

ARM_NAME = "arm.json"


def save_arm(arm: ArmResult, folder: Path) -> None:
    """Write it down, at once and whole. The run's configuration is beside it, in `config.json`."""
    Disk().replace_file(folder / ARM_NAME, as_json(arm_dict(arm)).encode("utf-8"))


def arm_dict(arm: ArmResult) -> dict[str, Any]:
    """Plain values only, ready for JSON."""
    kept = {f.name: getattr(arm, f.name) for f in fields(arm) if f.name not in ("run_config", "run_result", "evals")}
    run = arm.run_result
    told = None
    if run is not None:
        artifacts = None if run.artifacts is None else run.artifacts.as_dict()
        told = {**{f.name: getattr(run, f.name) for f in fields(run)}, "artifacts": artifacts}
    return {**kept, "evals": [asdict(result) for result in arm.evals], "run_result": told}


def load_arm(run: PlannedRun) -> ArmResult | None:
    """What was written down of a planned run; None if it has not come so far."""
    try:
        content = read_json(run.config.folder / ARM_NAME)
    except FileNotFoundError:
        return None
    evals = [EvalResult(**result) for result in content.pop("evals")]
    told = content.pop("run_result")
    result = None if told is None else RunResult(**{**told, "artifacts": _artifacts(told["artifacts"])})
    return ArmResult(**content, run_config=run.config, evals=evals, run_result=result)


def _artifacts(content: dict[str, Any] | None) -> LoopArtifacts | None:
    if content is None:
        return None
    paths = {key: None if content[key] is None else Path(content[key]) for key in ("run_dir", "manifest_path")}
    rows = [ManifestRow.from_dict(row) for row in content["checkpoints"]]
    return LoopArtifacts(**{**content, **paths, "checkpoints": rows})
