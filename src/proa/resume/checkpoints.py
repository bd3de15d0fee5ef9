"""The content of a run's checkpoints, and the saver that writes them.

checkpoints/step_40/model/           the policy, as others load it
                    state/trainer/   loop, place, open batches, lease book, optimizers with float32 weights, critic
                    state/weights/   the published versions that open leases may name
                    state/run/       callbacks, random streams, lengths of the record's files, threads, libraries,
                                     the configuration, and digests of what the run works on
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ..actors.stop import StopRequest
from ..config import RunConfig
from ..data.loop import ManifestRow
from ..data.state import LoopState
from ..loop import Resumed, Saver
from ..policy.trainable import Trainable
from ..record.background import BackgroundSaver
from ..record.checkpoints import CheckpointManager
from ..record.durable import Disk, explain_failures
from ..record.run_folder import libraries
from ..record.run_record import RunRecord
from ..record.secrets import redact, remember
from ..record.state_files import write_state
from ..record.tree_copy import copy_tree
from ..spelling import did_you_mean
from .inputs import Inputs

log = logging.getLogger("proa.resume")

Tree = Mapping[str, Any]


class CheckpointContent(Protocol):
    """The content of a checkpoint beside its model and its loop."""

    def parts(self) -> dict[str, Tree]:
        """Parts of the state by name, each a folder of its own."""

    def run_part(self) -> Tree:
        """Entries for the part `run` from this process, if the record is in another."""


class Checkpoints(Saver):
    """Writes the checkpoints of one run."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        trained: Trainable,
        content: CheckpointContent,
        record: RunRecord,
        inputs: Inputs,
        *,
        resumed: Resumed | None = None,
        stop: StopRequest | None = None,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(config.checkpoint.save_every, stop=stop)
        self.config = config
        self.folder = folder
        self.resumed = resumed
        self._trained = trained
        self._content = content
        self._record = record
        self._inputs = inputs
        """Digests of the run's inputs, which a resumed run must share."""
        remember(config.model_dump(mode="json"))  # this may be another process than the one that made the folder
        section = config.checkpoint
        best = None if section.best is None else (section.best, section.mode)
        self._manager = CheckpointManager(folder, keep_last=section.keep, keep_best=best, disk=disk)
        self._warned_of_best = False
        self._background = BackgroundSaver(self._manager) if config.checkpoint.background else None
        _warn_unsaved_scores(config)

    @property
    def manager(self) -> CheckpointManager:
        return self._manager

    def save(self, name: str, state: LoopState) -> ManifestRow | None:
        """Write a checkpoint and return its row, or begin to write it in the background and return None."""
        self._check_best_metric(state.metrics)
        parts, trained = self._parts(), self._trained.gathered()
        row = ManifestRow(
            name,
            state.global_step - 1,
            state.epoch,
            step=state.global_step,
            policy_version=state.policy_version,
            metrics=_current_scores(state.metrics, parts["trainer"], state.global_step),
            final=name == "final",
        )
        if self._background is not None:
            snapshot, parts = trained.snapshot(), copy_tree(parts)
            self._background.save(row, lambda into: _write(into, snapshot, parts))
            return None
        row = self._manager.save(row, lambda into: _write(into, trained, parts))
        if row.final:
            self._offer(row)
        return row

    def finished(self) -> list[ManifestRow]:
        rows = self._background.finished() if self._background is not None else []
        for row in rows:
            if row.final:
                self._offer(row)
        return rows

    def drain(self) -> None:
        if self._background is not None:
            self._background.drain()

    def mark_final(self, name: str, metrics: dict[str, Any]) -> ManifestRow:
        step = self._manager.row(name).step
        row = self._manager.mark_final(name, _current_scores(metrics, self._loop_state(), step))
        self._offer(row)
        return row

    def _check_best_metric(self, metrics: Mapping[str, Any]) -> None:
        best = self.config.checkpoint.best
        if best is not None and best not in metrics and not self._warned_of_best:
            self._warned_of_best = True
            log.warning("checkpoint.best: no metric is called %s yet%s", best, did_you_mean(best, metrics))

    def _loop_state(self) -> dict[str, Any]:
        assert self.loop is not None, "a loop attaches itself before its first step"
        return self.loop.state_dict()

    def _parts(self) -> dict[str, Tree]:
        known = self._record.before_saving()
        return {
            "trainer": self._loop_state(),
            **self._content.parts(),
            "run": {
                **known,
                **self._content.run_part(),
                "threads": torch.get_num_threads(),
                "libraries": libraries(),
                "config": redact(self.config.model_dump(mode="json")),
                "inputs": self._inputs.as_dict(),
            },
        }

    def _offer(self, row: ManifestRow) -> None:
        """Offer the final weights in the fixed folder `model/`."""
        assert row.sampler_path is not None, "every checkpoint here has a model"
        beside, place = self.folder / ".model.new", self.folder / "model"
        shutil.rmtree(beside, ignore_errors=True)
        with explain_failures(str(place), self.folder):
            shutil.copytree(self.folder / row.sampler_path, beside, copy_function=_link)  # the same files, not copies
            self._trained.mend_copy(beside)
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)


class SavingParticipant(Saver):
    """Takes part in saving on other ranks than the first: the model may be spread over all."""

    def __init__(self, save_every: int, trained: Trainable) -> None:
        super().__init__(save_every)
        self._trained = trained

    def save(self, name: str, state: LoopState) -> None:
        assert self.loop is not None, "a loop attaches itself before its first step"
        self.loop.state_dict()
        self._trained.gathered()


def _write(into: Path, trained: Trainable, parts: Mapping[str, Tree]) -> None:
    trained.save(into / "model")
    for name, tree in parts.items():
        (into / "state").mkdir(exist_ok=True, mode=0o700)
        write_state(into / "state" / name, tree)


def _current_scores(metrics: Mapping[str, Any], loop: Tree, step: int) -> dict[str, Any]:
    """Metrics without the scores of evals that last ran at another step, with other weights."""
    evaluated_at: Mapping[str, int] = loop.get("after", {}).get("evaluated_at", {})
    others = tuple(f"{name}." for name, at in evaluated_at.items() if at != step)
    return {name: value for name, value in metrics.items() if not name.startswith(others)}


def _warn_unsaved_scores(config: RunConfig) -> None:
    """Warn if `checkpoint.best` is an eval that runs at steps which are not saved."""
    best, every = config.checkpoint.best, config.checkpoint.save_every
    section = next((one for one in config.eval if best is not None and best.startswith(f"{one.name}.")), None)
    if section is None:
        return
    if section.run_every == 0:
        log.warning(
            "checkpoint.best: eval %s comes at the end only, and so no other checkpoint has a score", section.name
        )
    elif every == 0 or section.run_every % every:
        log.warning(
            "checkpoint.best: eval %s comes every %d steps and checkpoints %s: the best is found among the checkpoints "
            "whose own weights were evaluated. For a checkpoint at each eval, set checkpoint.save_every to %d",
            section.name, section.run_every, f"every {every}" if every else "at the end only", section.run_every,
        )  # fmt: skip


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
