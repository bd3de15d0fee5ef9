"""What came of a run of an experiment, in its folder: `arm.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..config.sections import EvalSection
from ..data.loop import LoopArtifacts, ManifestRow
from ..data.results import ArmResult, RunResult
from ..record.durable import Disk
from ..record.evals import eval_result
from ..record.run_folder import decode_numbers, json_text, read_json
from .plan import PlannedRun

ARM_NAME = "arm.json"


def save_arm(arm: ArmResult, folder: Path, benchmarks: Sequence[EvalSection]) -> None:
    """Write it down, at once and whole, with what it was benchmarked by. The run's configuration is beside it, in
    `config.json`. What a hook left in it that JSON has no form for is told in words: it should not cost the run."""
    content = {**arm_dict(arm), "benchmarks": _told(benchmarks)}
    Disk().replace_file(folder / ARM_NAME, json_text(content, stringify=True).encode("utf-8"))


def arm_dict(arm: ArmResult) -> dict[str, Any]:
    """Plain values only, ready for JSON."""
    kept = {f.name: getattr(arm, f.name) for f in fields(arm) if f.name not in ("run_config", "run_result", "evals")}
    run = arm.run_result
    told = None
    if run is not None:
        artifacts = None if run.artifacts is None else run.artifacts.as_dict()
        told = {**{f.name: getattr(run, f.name) for f in fields(run)}, "artifacts": artifacts}
    return {**kept, "evals": [asdict(result) for result in arm.evals], "run_result": told}


def load_arm(run: PlannedRun, benchmarks: Sequence[EvalSection]) -> ArmResult | None:
    """What was written down of a planned run; None if it has not come so far, or was benchmarked by something else."""
    try:
        content = read_json(run.config.folder / ARM_NAME)
    except FileNotFoundError:
        return None
    if content.pop("benchmarks") != _told(benchmarks):
        return None
    evals = [eval_result(result) for result in content.pop("evals")]
    told = content.pop("run_result")
    result = None if told is None else _run_result(told)
    numbers = {key: decode_numbers(content[key]) for key in ("metrics", "eval_metrics", "eval_breakdowns")}
    return ArmResult(**{**content, **numbers}, run_config=run.config, evals=evals, run_result=result)


def _told(benchmarks: Sequence[EvalSection]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = json.loads(json_text({"": [one.model_dump(mode="json") for one in benchmarks]}))[""]
    return written


def _run_result(content: dict[str, Any]) -> RunResult:
    metrics = decode_numbers(content["metrics"])
    return RunResult(**{**content, "metrics": metrics, "artifacts": _artifacts(content["artifacts"])})


def _artifacts(content: dict[str, Any] | None) -> LoopArtifacts | None:
    if content is None:
        return None
    paths = {key: None if content[key] is None else Path(content[key]) for key in ("run_dir", "manifest_path")}
    rows = [ManifestRow.from_dict(row) for row in content["checkpoints"]]
    return LoopArtifacts(**{**content, **paths, "checkpoints": rows})
