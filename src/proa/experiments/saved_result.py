"""The result of one run of an experiment, in its folder: `arm.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..config.eval_section import IN_THE_LOOP, BenchmarkSection
from ..data.loop import LoopArtifacts, ManifestRow
from ..data.results import ArmResult, RunResult
from ..record.checkpoint_files import absolute_row, relative_row
from ..record.durable import Disk
from ..record.evals import eval_result
from ..record.run_folder import decode_numbers, json_text, read_json
from .plan import PlannedRun

ARM_NAME = "arm.json"


def save_arm(arm: ArmResult, folder: Path, benchmarks: Sequence[BenchmarkSection]) -> None:
    """Write the result atomically, with the configuration of its benchmarks; that of the run is beside it, in
    `config.json`. Objects that a hook left in it are written as text, so that they cannot fail the run."""
    content = {**arm_dict(arm), "benchmarks": _benchmark_content(benchmarks)}
    Disk().replace_file(folder / ARM_NAME, json_text(content, stringify=True).encode("utf-8"))


def arm_dict(arm: ArmResult) -> dict[str, Any]:
    """The result as JSON."""
    kept = {f.name: getattr(arm, f.name) for f in fields(arm) if f.name not in ("run_config", "run_result", "evals")}
    run = arm.run_result
    run_content = None
    if run is not None:
        artifacts = None if run.artifacts is None else _artifacts_dict(run.artifacts)
        run_content = {**{f.name: getattr(run, f.name) for f in fields(run)}, "artifacts": artifacts}
    return {**kept, "evals": [asdict(result) for result in arm.evals], "run_result": run_content}


def load_arm(run: PlannedRun, benchmarks: Sequence[BenchmarkSection]) -> ArmResult | None:
    """The saved result of a planned run; None if there is none yet, or if the benchmarks have changed."""
    try:
        content = read_json(run.config.folder / ARM_NAME)
    except FileNotFoundError:
        return None
    if _used_keys(content.pop("benchmarks")) != _benchmark_content(benchmarks):
        return None
    evals = [eval_result(result) for result in content.pop("evals")]
    run_content = content.pop("run_result")
    result = None
    if run_content is not None:
        changes = {
            "metrics": decode_numbers(run_content["metrics"]),
            "artifacts": _load_artifacts(run_content["artifacts"], run.config.folder),
        }
        result = RunResult(**{**run_content, **changes})
    numbers = {key: decode_numbers(content[key]) for key in ("metrics", "eval_metrics", "eval_breakdowns")}
    return ArmResult(**{**content, **numbers}, run_config=run.config, evals=evals, run_result=result)


def _benchmark_content(benchmarks: Sequence[BenchmarkSection]) -> list[dict[str, Any]]:
    """The configuration of benchmarks as it is after writing and reading."""
    written: list[dict[str, Any]] = json.loads(json_text({"": [one.model_dump(mode="json") for one in benchmarks]}))[""]
    return written


def _used_keys(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the keys of evals in the loop, which version 0.1 wrote of benchmarks too."""
    return [{key: value for key, value in one.items() if key not in IN_THE_LOOP} for one in written]


def _artifacts_dict(artifacts: LoopArtifacts) -> dict[str, Any]:
    """The artifacts as they are written: paths of checkpoints are relative, as in the manifest, so that an experiment's
    folder can be moved."""
    content, folder = artifacts.as_dict(), artifacts.run_dir
    rows = artifacts.checkpoints if folder is None else [relative_row(row, folder) for row in artifacts.checkpoints]
    return {**content, "checkpoints": [row.as_dict() for row in rows]}


def _load_artifacts(content: dict[str, Any] | None, folder: Path) -> LoopArtifacts | None:
    if content is None:
        return None
    paths = {key: None if content[key] is None else Path(content[key]) for key in ("run_dir", "manifest_path")}
    rows = [absolute_row(ManifestRow.from_dict(row), folder.absolute()) for row in content["checkpoints"]]
    return LoopArtifacts(**{**content, **paths, "checkpoints": rows})
