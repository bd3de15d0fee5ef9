"""The artifacts of a training loop, of either kind."""

from __future__ import annotations

from time import perf_counter

from ..data.loop import LoopArtifacts, ManifestRow
from ..data.state import LoopState
from ..lifecycle.manager import CallbackManager


def loop_artifacts(
    state: LoopState, manager: CallbackManager, checkpoints: list[ManifestRow], begun: float
) -> LoopArtifacts:
    """The artifacts of a loop, from its final state."""
    saved = state.checkpoint_mgr
    return LoopArtifacts(
        run_dir=state.output_dir,
        manifest_path=None if saved is None else saved.manifest_path,
        checkpoints=checkpoints if saved is None else saved.rows,
        total_requested_steps=state.num_steps,
        train_seconds=perf_counter() - begun,
        steps_run=state.global_step,
        stop_reason=state.stop_reason,
        stopped_by=state.stopped_by,
        callback_errors=manager.errors,
    )
