"""Batches, rows of checkpoints and artifacts of one training loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass
class TrainingBatch:
    """The batch of one optimizer step: data, the loss by name and its settings."""

    data: Any
    loss_fn: str = ""
    loss_fn_config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class ManifestRow:
    """One checkpoint: a line of `checkpoints.jsonl`.

    `batch` is the index of the last step done, so `step_<n>` has `batch == n - 1`.
    Keys that this version does not know survive a round trip in `extra`.
    """

    name: str
    batch: int
    epoch: int
    state_path: str | None = None
    sampler_path: str | None = None
    final: bool = False
    step: int = 0
    policy_version: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The row as it is written, unknown keys included."""
        known = asdict(self)
        return {**known.pop("extra"), **known}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> ManifestRow:
        known = {f.name for f in fields(cls)} - {"extra"}
        return cls(
            **{key: value for key, value in row.items() if key in known},
            extra={key: value for key, value in row.items() if key not in known},
        )


@dataclass
class LoopArtifacts:
    """The artifacts of a finished loop, for `on_train_end` and the run's result."""

    run_dir: Path | None
    manifest_path: Path | None = None
    checkpoints: list[ManifestRow] = field(default_factory=list)
    total_requested_steps: int = 0
    train_seconds: float = 0.0
    steps_run: int = 0
    stop_reason: str | None = None
    stopped_by: str | None = None
    callback_errors: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            **asdict(self),
            "run_dir": None if self.run_dir is None else str(self.run_dir),
            "manifest_path": None if self.manifest_path is None else str(self.manifest_path),
            "checkpoints": [row.as_dict() for row in self.checkpoints],
        }
