"""What is in a run's checkpoints, and who writes them.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config import RunConfig
from ..data.loop import ManifestRow
from ..data.state import LoopState
from ..loop import Resumed, Saver
from ..loop.after_step import LoopStateDict
from ..policy.lora import has_lora
from ..policy.snapshot import snapshot_of
from ..record.background import BackgroundSaver
from ..record.checkpoints import CheckpointManager
from ..record.copied import copied
from ..record.durable import told_with
from ..record.run_folder import libraries
from ..record.run_record import RunRecord
from ..record.secrets import redact, remember
from ..record.state_files import write_state
from ..spelling import did_you_mean
from .inputs import Inputs

log = logging.getLogger("proa.recipes")

Tree = Mapping[str, Any]


@dataclass
class Checkpoints:
    """Writes the checkpoints of one run."""

    config: RunConfig
    folder: Path
    model: PreTrainedModel
    save_model: Callable[[PreTrainedModel, Path], None]
    """Writes a model as others load it: this one, or a snapshot of it."""
    record: RunRecord
    inputs: Inputs
    """What the run works on: whoever goes on from a checkpoint must have the same."""
    asked_to_leave: Callable[[], str] = str
    more: Callable[[], dict[str, Tree]] = dict
    """Parts of the state beside the loop's own, by name."""
    of_this_process: Callable[[], Tree] = dict
    """What of the part `run` only this process knows, where the driver is another."""
    manager: CheckpointManager = field(init=False)

    def __post_init__(self) -> None:
        remember(self.config.model_dump(mode="json"))  # this may be another process than the one that made the folder
        self.manager = manager_for(self.config, self.folder)
        self._loop_state: LoopStateDict = dict
        self._complained = False
        self._background = BackgroundSaver(self.manager) if self.config.checkpoint.background else None
        _warn_of_scores_without_checkpoint(self.config)

    def saver(self, resumed: Resumed | None = None) -> Saver:
        """For a loop."""
        behind = self._background
        return Saver(
            self.save,
            self.config.checkpoint.save_every,
            finished=self._finished,
            drain=behind.drain if behind is not None else lambda: None,
            mark_final=self._mark_final,
            attach=self._attach,
            resumed=resumed,
            asked_to_leave=self.asked_to_leave,
            manager=self.manager,
        )

    def save(self, name: str, state: LoopState) -> ManifestRow | None:
        """Write a checkpoint, or begin to; its row, if it is there already."""
        self._look_for_best(state.metrics)
        parts = self._parts()
        row = ManifestRow(
            name,
            state.global_step - 1,
            state.epoch,
            step=state.global_step,
            policy_version=state.policy_version,
            metrics=_without_other_steps(state.metrics, parts["trainer"], state.global_step),
            final=name == "final",
        )
        if self._background is not None:
            model, parts = snapshot_of(self.model), copied(parts)
            self._background.save(row, lambda into: self._write(into, model, parts))
            return None
        row = self.manager.save(row, lambda into: self._write(into, self.model, parts))
        if row.final:
            self._offer(row)
        return row

    def _look_for_best(self, metrics: Mapping[str, Any]) -> None:
        best = self.config.checkpoint.best
        if best is not None and best not in metrics and not self._complained:
            self._complained = True
            log.warning("checkpoint.best: no metric is called %s yet%s", best, did_you_mean(best, metrics))

    def _parts(self) -> dict[str, Tree]:
        told = self.record.before_saving()
        return {
            "trainer": self._loop_state(),
            **self.more(),
            "run": {
                **told,
                **self.of_this_process(),
                "threads": torch.get_num_threads(),
                "libraries": libraries(),
                "config": redact(self.config.model_dump(mode="json")),
                "inputs": self.inputs.as_dict(),
            },
        }

    def _write(self, into: Path, model: PreTrainedModel, parts: Mapping[str, Tree]) -> None:
        self.save_model(model, into / "model")
        for name, tree in parts.items():
            (into / "state").mkdir(exist_ok=True, mode=0o700)
            write_state(into / "state" / name, tree)

    def _finished(self) -> list[ManifestRow]:
        rows = self._background.finished() if self._background is not None else []
        for row in rows:
            if row.final:
                self._offer(row)
        return rows

    def _mark_final(self, name: str, metrics: dict[str, Any]) -> ManifestRow:
        step = self.manager.row(name).step
        row = self.manager.mark_final(name, _without_other_steps(metrics, self._loop_state(), step))
        self._offer(row)
        return row

    def _attach(self, loop_state: LoopStateDict) -> None:
        self._loop_state = loop_state

    def _offer(self, row: ManifestRow) -> None:
        """The final weights under a name that never changes, `model/`."""
        assert row.sampler_path is not None, "every checkpoint here has a model"
        beside, place = self.folder / ".model.new", self.folder / "model"
        shutil.rmtree(beside, ignore_errors=True)
        with told_with(str(place), self.folder):
            if has_lora(self.model):  # an adapter says where its base lies, seen from its own folder
                self.save_model(self.model, beside)
            else:  # the same files, not copies of them
                shutil.copytree(self.folder / row.sampler_path, beside, copy_function=_link)
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)


def _without_other_steps(metrics: Mapping[str, Any], loop: Tree, step: int) -> dict[str, Any]:
    """Metrics without the scores of evals whose last was at another step: those are of other weights than these."""
    evaluated_at: Mapping[str, int] = loop.get("after", {}).get("evaluated_at", {})
    others = tuple(f"{name}." for name, at in evaluated_at.items() if at != step)
    return {name: value for name, value in metrics.items() if not name.startswith(others)}


def _warn_of_scores_without_checkpoint(config: RunConfig) -> None:
    """The best of a metric can only be one that was saved: say so where evals come at steps that are not."""
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


def manager_for(config: RunConfig, folder: Path) -> CheckpointManager:
    """The checkpoints of a run, kept as it is configured."""
    section = config.checkpoint
    best = None if section.best is None else (section.best, section.mode)
    return CheckpointManager(folder, keep_last=section.keep, keep_best=best)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
