"""Copies each checkpoint to another place, in the background, so that a run outlives its machine."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..data.loop import LoopArtifacts, ManifestRow
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import ErrorPolicy, Priority
from ..private_files import make_private_folder
from ..record.durable import CheckpointError
from ..record.run_folder import read_json
from ..record.secrets import expand_environment, redact_values
from ..record.stores import AddressError, FolderStore, FsspecStore, open_store
from ..record.uploaded_run import OtherRunError, RunIdentity, UploadedRun, What
from ..spelling import did_you_mean
from .deliveries import Deliveries, Delivery, RefusedError

log = logging.getLogger("proa.callbacks")

STAGING_NAME = ".uploads"
"""Links to the files of checkpoints that wait for their upload, in the run's folder: pruning does not remove those."""
CLAIM_SECONDS = 10.0
"""How long the start of training waits to find out whether the address is another run's."""


class CheckpointUpload(Callback):
    """Copies each checkpoint to `<to>/<run's name>`, a folder or an fsspec address. `proa resume` continues from there.

    `what` is `both` (model and state) or `sampler` (the model alone, from which no run can resume); `keep` is how many
    of the newest stay there (None: all); `final_only` uploads the final one alone. One upload may take `timeout`
    seconds with all its retries; at the end of training `drain` seconds are left for what is not done. `options` are
    for fsspec's file system. Failures are counted in `callback_errors` and never affect the run.

    `to` and `options` may refer to environment variables, as `${NAME}`.
    """

    priority = Priority.LOGGING
    error_policy = ErrorPolicy.DISABLE
    uses_asyncio = False
    first_delay = 1.0

    def __init__(
        self,
        to: str | Path,
        *,
        what: What = "both",
        keep: int | None = 2,
        final_only: bool = False,
        timeout: float = 3600.0,
        drain: float = 300.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if what not in get_args(What):
            raise CallbackConfigError(
                f"callback kind 'upload': what must be both or sampler, not {what!r}"
                f"{did_you_mean(str(what), get_args(What))}. A run resumes from model and state together"
            )
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise CallbackConfigError(f"callback kind 'upload': keep must be at least 1, or null for all, not {keep!r}")
        for name, seconds in (("timeout", timeout), ("drain", drain)):
            if not seconds > 0:
                raise CallbackConfigError(f"callback kind 'upload': {name} must be above 0 seconds, not {seconds!r}")
        self._to = expand_environment("to", str(to)).rstrip("/")
        self._options = {
            key: expand_environment(f"options.{key}", value) if isinstance(value, str) else value
            for key, value in (options or {}).items()
        }
        self._what: What = what
        self._keep = keep
        self._final_only = final_only
        self._timeout = timeout
        self._drain = drain
        self._check_address()
        self._target: _Target | None = None
        self._deliveries: Deliveries | None = None

    @property
    def background_failures(self) -> int:
        return self._deliveries.failed if self._deliveries is not None else 0

    @property
    def first_background_failure(self) -> str:
        return self._deliveries.first_failure if self._deliveries is not None else ""

    # -- hooks ---------------------------------------------------------------------------------------------

    def on_train_start(self, state: LoopState) -> None:
        if state.output_dir is None:
            raise CallbackConfigError("callback kind 'upload' needs a run with an output_dir")
        folder = Path(state.output_dir).absolute()
        store = open_store(f"{self._to}/{folder.name}", self._options)
        if isinstance(store, FolderStore):
            _check_apart(store.folder, folder)
        shutil.rmtree(folder / STAGING_NAME, ignore_errors=True)  # left by a process that was killed
        same_run = self._target is not None and self._target.folder == folder
        self._deliveries = Deliveries(
            "upload",
            timeout=self._timeout,
            first_delay=self.first_delay,
            before=self._deliveries if same_run else None,
        )
        self._target = _Target(
            UploadedRun(store, what=self._what, keep=self._keep),
            folder,
            _identity(folder),
            state.global_step if state.resumed_from else None,
        )
        self._target.claim_within(CLAIM_SECONDS)

    def on_checkpoint(self, state: LoopState, row: ManifestRow) -> None:
        if row.final or not self._final_only:
            self._submit(row)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        if self._deliveries is None or self._target is None:
            return  # training did not begin
        final = next((row for row in artifacts.checkpoints if row.final), None) if artifacts is not None else None
        if final is not None and state.exception is None:
            self._submit(final)  # with the scores and the record of the end, also if its files are there already
        self._deliveries.drain(self._drain)
        shutil.rmtree(self._target.folder / STAGING_NAME, ignore_errors=True)

    def _submit(self, row: ManifestRow) -> None:
        if self._deliveries is not None and self._target is not None:  # else training could not begin
            upload = _Upload(self._target, row, _stage(row, self._target.folder))
            self._deliveries.submit(upload, most_waiting=self._keep)

    def _check_address(self) -> None:
        """Find a mistake in the address before the run starts, without connecting."""
        store = open_store(self._to, self._options)
        if isinstance(store, FsspecStore):
            try:
                store.check()
            except AddressError as error:
                raise CallbackConfigError(f"callback kind 'upload': {error}") from None
        elif self._options:
            raise CallbackConfigError(
                f"callback kind 'upload': options are for fsspec addresses, and {self._to} is a path"
            )


@dataclass(frozen=True)
class _Target:
    """Where the checkpoints of one run go, and which run it is."""

    copy: UploadedRun
    folder: Path
    """The run's own."""
    identity: RunIdentity
    resumed_step: int | None

    def claim_within(self, seconds: float) -> None:
        """Raise if the address is another run's. If it cannot be reached now training begins, and uploads try again."""
        refused: list[OtherRunError] = []

        def claim() -> None:
            try:
                self.copy.claim(self.identity, self.resumed_step)
            except OtherRunError as error:
                refused.append(error)
            except Exception as error:
                log.warning("upload: %s cannot be used yet: %s", self.copy.store.shown, redact_values(str(error)))

        thread = threading.Thread(target=claim, name="proa upload", daemon=True)
        thread.start()
        thread.join(seconds)
        if refused:
            raise CallbackConfigError(f"callback kind 'upload': {refused[0]}")

    def upload(self, row: ManifestRow, files: Path, until: float) -> None:
        try:
            self.copy.claim(self.identity, self.resumed_step)
            self.copy.add(row, files, self.folder, until)
        except (OtherRunError, CheckpointError) as error:
            raise RefusedError(str(error)) from error
        except FileNotFoundError as error:
            if files.is_dir():
                raise
            raise RefusedError(f"its files were removed before they were uploaded: {error}") from error


class _Upload(Delivery):
    """One checkpoint on its way."""

    def __init__(self, target: _Target, row: ManifestRow, files: Path) -> None:
        self._target = target
        self._row = row
        self._files = files

    def __str__(self) -> str:
        return f"the upload of checkpoint {self._row.name}"

    def attempt(self, until: float) -> None:
        self._target.upload(self._row, self._files, until)

    def supersedes(self, earlier: Delivery) -> bool:
        return isinstance(earlier, _Upload) and earlier._row.name == self._row.name

    def end(self) -> None:
        if self._files.parent.name == STAGING_NAME:
            shutil.rmtree(self._files, ignore_errors=True)


def _check_apart(target: Path, run_folder: Path) -> None:
    run, copy = run_folder.resolve(), target.resolve()
    if copy.is_relative_to(run) or run.is_relative_to(copy):
        raise CallbackConfigError(
            f"callback kind 'upload': {target} is not apart from the run's own folder {run_folder}: give `to` another "
            f"folder, on another disk if possible"
        )


def _identity(folder: Path) -> RunIdentity:
    """Of the run in a folder; a loop of the user's own may have no header."""
    try:
        return RunIdentity.of(read_json(folder / "run.json"))
    except FileNotFoundError:
        return RunIdentity(None, None)


def _stage(row: ManifestRow, run_folder: Path) -> Path:
    """A folder with the checkpoint's files that stays until they are uploaded: links to them, where the file system has
    links, and otherwise the checkpoint itself."""
    path = row.state_path or row.sampler_path
    if path is None:
        raise CheckpointError(f"checkpoint {row.name} has no files to upload")
    source, staging = (run_folder / path).parent, run_folder / STAGING_NAME
    make_private_folder(staging)
    number = 1
    while (target := staging / f"{source.name}-{number}").exists():
        number += 1
    try:
        shutil.copytree(source, target, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(target, ignore_errors=True)
        return source
    return target
