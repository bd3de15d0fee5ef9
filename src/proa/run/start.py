"""Starts a run of any kind: settles its configuration and folder, resumes or begins it, and records how it ended."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ..actors.interruption import Interruption
from ..callbacks import ConsoleProgress
from ..config import ConfigError, DetachedConfig, RunConfig, SupervisedConfig
from ..data.state import LoopState
from ..errors import ProaError
from ..lifecycle.failures import note_failure
from ..lifecycle.manager import Callbacks
from ..record.run_folder import LIVE_NAME, LOCK_NAME, WRITTEN_BEFORE_HEADER, RunFolder, check_unused, read_json
from ..record.run_lock import lock
from ..resume.configuration import LENGTH, config_changes, log_changes, saved_config
from ..resume.fetching import RemoteRun, is_address
from ..resume.inputs import Inputs
from ..resume.resuming import (
    AUTO,
    FROM_THE_BEGINNING,
    Resumption,
    clear_run,
    find_checkpoint,
    truncate_record,
    warn_changed_libraries,
)
from ..tasks.template_date import pinned, pinned_to
from ..terminal import tolerate_lost_output
from ..visible import print_visible, show_details
from .automatic import resolve_automatic, resolve_device
from .foreseen import first_line
from .given import Given, configured
from .job import Job
from .local import DetachedRun
from .naming import settle_name
from .placing import Listeners, place_callbacks
from .run_moments import RunMoments, StandaloneMoments
from .supervised import SupervisedRun

log = logging.getLogger("proa.run")


def start(
    config: RunConfig | Path | str | None = None,
    algorithm: str | None = None,
    /,
    *,
    callbacks: Callbacks = None,
    resume: str | Path | None = None,
    allow_changes: bool = False,
    overwrite: bool = False,
    **changes: Any,
) -> LoopState:
    """Run as configured (a `RunConfig`, a YAML file, or keywords alone) and return the final state.

    The run folder `<output_dir>/<name>` holds the record, and the final weights in `model/`. With `resume="auto"` a run
    in that folder continues from its newest checkpoint, and with a checkpoint's name from that one. With an address
    that checkpoints were uploaded to (a URL or a path), the run is first fetched from there. Resuming is refused if
    data, rewards or models have changed since, unless `allow_changes`. With `overwrite` a run in the folder is removed,
    once this one is known to be able to start.
    """
    if overwrite and resume is not None:
        raise ConfigError("overwrite removes the run that resume would continue: give one of them")
    settled, given = configured(config, algorithm, changes)
    return start_configured(
        settled, given, callbacks=callbacks, resume=resume, allow_changes=allow_changes, overwrite=overwrite
    )


def start_configured(
    settled: RunConfig,
    given: Given,
    *,
    callbacks: Callbacks = None,
    resume: str | Path | None = None,
    allow_changes: bool = False,
    overwrite: bool = False,
    announced: str = "",
) -> LoopState:
    """`start` with a configuration and given objects. A first line that was `announced` is not repeated."""
    if resume is not None and is_address(resume):
        remote = RemoteRun.find(resume)
        if settled.name == AUTO:
            settled = settled.model_copy(update={"name": remote.default_folder.name})
        remote.fetch(settled.folder)
        resume = AUTO
    settled = settle_name(settled, resumed=resume is not None, overwrite=overwrite)
    settled = resolve_device(settled, given, resumed=resume is not None)
    if settled.progress and first_line(settled) != announced:
        with tolerate_lost_output():
            print_visible(first_line(settled), flush=True)
    if settled.progress:
        show_details(logging.getLogger("proa.tasks"))  # how the data was recognised
    settled = resolve_automatic(settled, given, resumed=resume is not None)
    if resume == AUTO and (done := _complete(settled)) is not None:
        return done
    with place_callbacks(settled, callbacks) as listeners:
        if settled.progress and not any(isinstance(one, ConsoleProgress) for one in listeners.manager.callbacks):
            listeners.add(ConsoleProgress(every=None))
        return carry_out(
            settled,
            lambda: build_run(settled, given, listeners),
            StandaloneMoments(listeners, settled),
            resume=None if resume is None else str(resume),
            allow_changes=allow_changes,
            overwrite=overwrite,
        )


def build_run(config: RunConfig, given: Given, listeners: Listeners, journal: Sequence[Mapping[str, Any]] = ()) -> Job:
    """Build a run for `carry_out`; `journal` is that of a run to repeat."""
    if isinstance(config, SupervisedConfig):
        return SupervisedRun(config, given, listeners)
    assert isinstance(config, DetachedConfig), "there are two kinds"
    if config.runtime == "local":
        return DetachedRun(config, given, listeners, journal)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("runtime ray needs the package ray: pip install 'proa[ray]'")
    from .on_ray import RayRun  # slow to import, and optional

    return RayRun(config, given, listeners, journal)


def carry_out(
    config: RunConfig,
    build: Callable[[], Job],
    moments: RunMoments,
    *,
    resume: str | None = None,
    interruption: Interruption | None = None,
    patience: float = 0.0,
    allow_changes: bool = False,
    overwrite: bool = False,
    now: datetime | None = None,
) -> LoopState:
    """Build the run, create its folder, train, and leave a header that says how it ended.

    `resume` is `"auto"` or a checkpoint's name: a run in the folder is resumed, even a complete one, for what its
    `moments` do after training. Errors in a configuration are found before training starts, when no moment has fired,
    and leave no folder. `interruption` is shared by several runs in sequence; `patience` is how many seconds to wait
    for another process to release the folder. With `allow_changes` a run continues though its data, rewards or models
    have changed. With `overwrite` a run in the folder is removed. `now` is the time that chat templates see, by default
    when the run began.
    """
    is_resumed = resume is not None and (config.folder / "run.json").exists()
    interruption = interruption or Interruption()
    interruption.grace = config.checkpoint.grace
    with (
        lock(config.folder, patience),
        tolerate_lost_output(),
        interruption.listening(),
        pinned_to(now or template_start(config.folder)),
    ):
        replaces = overwrite and (config.folder / "run.json").is_file()
        if not is_resumed:
            _remove_unfinished_start(config.folder)
            if not replaces:
                check_unused(config.folder)
        saved = saved_config(config.folder) if is_resumed else {}
        resumption = find_checkpoint(config.folder, resume or AUTO) if is_resumed else None
        moments.note_resumption(resumption)
        # Without a checkpoint it begins again, so its configuration may change.
        bound = None if resumption is None else resumption.bound_to
        changes = {} if resumption is None else config_changes(saved, config, bound[0] if bound is not None else None)
        job = build()
        if replaces:  # only now, as a mistake in the new configuration must not cost the old run
            clear_run(config.folder)
            for name in ("run.json", "config.json"):
                (config.folder / name).unlink(missing_ok=True)
        if resumption is not None:
            _compare_inputs(resumption, job.inputs, allow_changes)
        folder = (
            _reopen_folder(config, resumption, changes) if is_resumed else _create_folder(config, replaces=replaces)
        )
        with (
            moments.around_experiment(folder),
            _ending(job, folder, moments, is_new=not is_resumed),
            moments.around_run(interruption),
        ):
            interruption.check()  # a stop may have been requested meanwhile
            state = job.train(folder, resumption, interruption)
            moments.complete(folder, state)
        return state


BEGAN = "template_time"
"""The header's key for the time that chat templates see, which is local time."""


def template_start(folder: Path) -> datetime:
    """When the run in a folder began, in its local time; now, if there is no run yet."""
    try:
        header = read_json(folder / "run.json")
        if isinstance(header.get(BEGAN), str):
            return datetime.fromisoformat(header[BEGAN])
        return datetime.fromtimestamp(float(header["started"]))  # as version 0.1 wrote it
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return datetime.now()


def _compare_inputs(resumption: Resumption, now: Inputs, allow_changes: bool) -> None:
    """Raise if data, rewards or models differ from the checkpoint's, or warn if that is allowed."""
    warn_changed_libraries(resumption)
    if resumption.bound_to is None:
        log.warning(
            "checkpoint %s is of a version that did not note what a run works on: whether data, rewards and models are "
            "still the same is not known", resumption.row.name,
        )  # fmt: skip
        return
    _, before = resumption.bound_to
    if not allow_changes:
        before.refuse_differences(now)
    for line in before.differences(now):
        log.warning("%s; this was allowed, and from here on it is another run than it would have been", line)


def _remove_unfinished_start(folder: Path) -> None:
    """Remove the remains of a run that was killed before it had a header, which `proa resume` would not recognise."""
    inside = [path for path in folder.iterdir() if path.name != LOCK_NAME]
    if {path.name for path in inside} <= WRITTEN_BEFORE_HEADER:
        for path in inside:
            path.unlink()


def _complete(config: RunConfig) -> LoopState | None:
    """The final state of a complete run; None of any other."""
    header = config.folder / "run.json"
    if not header.exists() or read_json(header).get("status") != "completed":
        return None
    resumption = find_checkpoint(config.folder)
    if resumption is None:
        return None
    bound = resumption.bound_to
    # The configuration may differ from that of the complete run, or ask for more steps.
    changes = config_changes(saved_config(config.folder), config, None if bound is None else bound[0])
    if LENGTH not in changes:
        return resumption.final_state(config.folder)
    if stopped_by := read_json(header).get("stopped_by"):
        raise ConfigError(
            f"{config.folder} was stopped by {stopped_by} and would stop again: to train further, start a new run "
            f"whose model.path is {config.folder / 'model'}"
        )
    return None


def _create_folder(config: RunConfig, *, replaces: bool) -> RunFolder:
    began = pinned()
    assert began is not None, "carry_out pins it"
    content = config.model_dump(mode="json")
    return RunFolder.create(config.folder, content, replaces=replaces, **{BEGAN: began.isoformat()})


def _reopen_folder(config: RunConfig, resumption: Resumption | None, changes: dict[str, tuple[Any, Any]]) -> RunFolder:
    log_changes(changes)
    if LENGTH in changes and config.optimizer.schedule != "constant":
        log.warning(
            "optimizer.schedule is %s, which follows the length: from here on the learning rate is that of a run of %d "
            "steps, and may be higher than it was in the last step", config.optimizer.schedule, config.total_steps,
        )  # fmt: skip
    if resumption is None:  # it ended before its first checkpoint, so everything is made again
        clear_run(config.folder)
    else:
        truncate_record(resumption)
    name = FROM_THE_BEGINNING if resumption is None else resumption.row.name
    described = {key: {"before": before, "now": now} for key, (before, now) in changes.items()}
    return RunFolder.reopen(config.folder, config.model_dump(mode="json"), checkpoint=name, changes=described)


NOT_SUMMED_UP = "how far it came is not in its header"


@contextmanager
def _ending(job: Job, folder: RunFolder, moments: RunMoments, *, is_new: bool) -> Iterator[None]:
    """Write into the header how the run ended; an error of a check before it began removes the folder instead."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, ProaError) and not moments.begun and is_new:
            folder.discard()
            raise
        interrupted = not isinstance(error, Exception)
        reason = "interrupted" if interrupted else f"{type(error).__name__}: {error}"
        ending = {"status": "cancelled" if interrupted else "failed", "stop_reason": reason}
        try:
            summary = job.summary()
        except BaseException as failure:  # a GPU error that ended the run, say, fails here too
            note_failure(error, NOT_SUMMED_UP, failure)
            summary = {}
        counted = {"callback_errors": moments.callback_errors}  # for a run without a summary yet
        _write_ending(folder, counted | summary | ending | {"ended": round(time.time(), 3)})
        raise
    try:
        summary = job.summary()
    except Exception as failure:
        log.error("the run is complete; %s: %s: %s", NOT_SUMMED_UP, type(failure).__name__, failure)
        summary = {}
    folder.update(**summary | {"status": "completed", "ended": round(time.time(), 3)})


def _write_ending(folder: RunFolder, entries: dict[str, Any]) -> None:
    """Write into the header how a failed run ended. If the disk is full, the live view is removed to make room; and a
    failure to write must not hide why the run ended."""
    try:
        folder.update(**entries)
    except OSError:
        try:
            (folder.path / LIVE_NAME).unlink(missing_ok=True)
            folder.update(**entries)
        except OSError as error:
            path = folder.path / "run.json"
            log.error("%s still says running, and the run is over: %s", path, error)
