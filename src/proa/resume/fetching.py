"""Fetches a run from an address to continue it here: its newest complete checkpoint, and what that needs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ..data.loop import ManifestRow
from ..private_files import make_private_folder
from ..record.checkpoint_files import FOLDER_NAME, folder_name, seal
from ..record.checkpoints import CheckpointError, CheckpointManager, UnknownCheckpointError
from ..record.durable import Disk, explain_failures
from ..record.evals import steps_before
from ..record.manifest import MANIFEST_NAME, manifest_text
from ..record.reading import RunNotFoundError
from ..record.run_folder import LOCK_NAME, START_NAME, BrokenRecordError, RunFolderError, check_unused, read_json
from ..record.run_record import RECORD_FILES
from ..record.stores import AddressError, FileStore, check_relative, is_url, open_store
from ..record.uploaded_run import (
    HEADER_FILES,
    RESULT_FOLDERS,
    UPLOAD_NAME,
    UPLOADED,
    RunIdentity,
    read_rows,
)
from ..spelling import did_you_mean

log = logging.getLogger("proa.resume")

ATTEMPTS = 3
"""How often a file is requested before an address counts as unreachable."""

Result = TypeVar("Result")


def is_address(text: str | Path) -> bool:
    """Whether this is the address of a run, not the name of a checkpoint.

    >>> is_address("s3://bucket/runs/sorting"), is_address("../backup/sorting"), is_address("step_40")
    (True, True, False)
    """
    return isinstance(text, Path) or is_url(text) or os.sep in text


def is_uploaded(address: str | Path) -> bool:
    """Whether a run must be fetched from this address to be resumed: a URL, or an uploaded copy."""
    return is_url(str(address)) or (Path(address) / UPLOAD_NAME).is_file()


@dataclass(frozen=True)
class RemoteRun:
    """A run at an address: what must be known before its files are fetched."""

    store: FileStore
    config: dict[str, Any]
    header: dict[str, Any]
    rows: list[ManifestRow]

    @classmethod
    def find(cls, address: str | Path) -> RemoteRun:
        """The run at an address; raises if there is none."""
        store = open_store(address)
        config, header = (_read_object(store, name) for name in HEADER_FILES)
        return cls(store, config, header, _again(lambda: read_rows(store)))

    @property
    def default_folder(self) -> Path:
        """The folder in which the run began."""
        name, output_dir = self.config.get("name"), self.config.get("output_dir")
        if not isinstance(name, str) or not isinstance(output_dir, str) or Path(name).name != name:
            raise BrokenRecordError(f"{self.store.shown}/config.json is broken: it has no name and output_dir")
        return Path(output_dir) / name

    def fetch(self, folder: Path, checkpoint: str | None = None) -> ManifestRow:
        """Make `folder` the run's folder, with the newest whole checkpoint or the named one; its row.

        The folder appears once it is complete and verified. One that already has this run is used as it is, unless it
        is behind.
        """
        candidates = self._candidates(checkpoint)
        if (folder / "run.json").exists():
            return self._existing(folder, candidates[0])
        check_unused(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            made = Path(temporary) / folder.name
            make_private_folder(made)
            with explain_failures(str(folder), folder.parent):
                row = self._fetch_checkpoint(made, candidates)
                self._fetch_surroundings(made, row)
                seal(Disk(), made)
            (folder / LOCK_NAME).unlink(missing_ok=True)  # left by a process that was killed before it began
            made.rename(folder)
        return CheckpointManager(folder).row(row.name)

    def _candidates(self, checkpoint: str | None) -> list[ManifestRow]:
        """The rows to try, the best first."""
        if checkpoint is not None:
            named = [row for row in self.rows if row.name == checkpoint]
            if not named:
                names = [row.name for row in self.rows]
                raise UnknownCheckpointError(
                    f"{self.store.shown} has no checkpoint {checkpoint}{did_you_mean(checkpoint, names)} "
                    f"(known: {', '.join(names) or 'none'})"
                )
            return named
        rows = [row for row in reversed(self.rows) if row.state_path is not None]
        if rows:
            return rows
        why = (
            "its checkpoints hold a model and no state, so a run cannot resume from them"
            if self.rows
            else "it has no whole checkpoint"
        )
        raise CheckpointError(f"the run at {self.store.shown} cannot be resumed: {why}")

    def _existing(self, folder: Path, newest: ManifestRow) -> ManifestRow:
        """The newest checkpoint of a run that is already here; raises if it is another run, or behind."""
        if RunIdentity.of(read_json(folder / "run.json")) != RunIdentity.of(self.header):
            raise RunFolderError(
                f"{folder} was already used by another run: give another output_dir, or remove the folder"
            )
        here = CheckpointManager(folder).latest()
        if here is None or here.step < newest.step:
            raise RunFolderError(
                f"{folder} has this run, and is behind: its newest checkpoint is {here.name if here else 'none'}, and "
                f"at {self.store.shown} there is {newest.name}. Remove {folder} or give another output_dir"
            )
        log.warning("%s has this run already: it continues there", folder)
        return here

    def _fetch_checkpoint(self, folder: Path, candidates: list[ManifestRow]) -> ManifestRow:
        """Fetch the first complete checkpoint; others before it are reported."""
        named = {folder_name(row) for row in self.rows}
        there = {name.split("/")[1] for name in self.store.sizes(FOLDER_NAME)}
        for name in sorted(name for name in there - named if not name.startswith(".")):
            log.warning(
                "passed over: %s/%s/%s is not whole: its upload was cut off", self.store.shown, FOLDER_NAME, name
            )
        reasons = []
        for row in candidates:
            plain = replace(row, extra={key: value for key, value in row.extra.items() if key != UPLOADED})
            (folder / MANIFEST_NAME).write_bytes(manifest_text([plain]))
            try:
                self._fetch_files(folder, row)
                CheckpointManager(folder).verify(plain)
            except CheckpointError as error:
                reasons.append(f"{error}".replace(str(folder), self.store.shown))
                log.warning("passed over: %s", reasons[-1])
                shutil.rmtree(folder / FOLDER_NAME, ignore_errors=True)
            else:
                return row
        raise CheckpointError(f"there is no whole checkpoint at {self.store.shown}: {'; '.join(reasons)}")

    def _fetch_files(self, folder: Path, row: ManifestRow) -> None:
        place = f"{FOLDER_NAME}/{folder_name(row)}"
        for name in row.digests:
            check_relative(name)
            try:
                self._fetch_file(f"{place}/{name}", folder)
            except FileNotFoundError:
                raise CheckpointError(f"checkpoint {row.name} is not whole: {name} is missing") from None

    def _fetch_surroundings(self, folder: Path, row: ManifestRow) -> None:
        """Fetch the run's header and record, and its initial model if it is needed."""
        for name, content in zip(HEADER_FILES, (self.config, self.header), strict=True):
            (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        for name in RECORD_FILES:
            try:
                self._fetch_file(name, folder)
            except FileNotFoundError:
                continue  # resuming says what is missing
        for below in (START_NAME, *RESULT_FOLDERS):
            for name in self.store.sizes(below):
                check_relative(name)
                if below == START_NAME or steps_before(name) <= row.step:
                    self._fetch_file(name, folder)
        self._verify(folder, row)

    def _verify(self, folder: Path, row: ManifestRow) -> None:
        """Compare the fetched files with the digests of the upload: the initial model must be complete, while damage to
        the record is reported."""
        noted = row.extra.get(UPLOADED)
        files = noted.get("files") if isinstance(noted, Mapping) else None
        for name, expected in files.items() if isinstance(files, Mapping) else ():
            if _has_beginning(folder / name, expected):
                continue
            what = f"{self.store.shown}/{name} is damaged: it is not the file that was uploaded"
            if name.startswith(f"{START_NAME}/"):
                raise CheckpointError(f"{what}, and the run needs the model that it began with")
            log.warning("%s; the run continues, and its record has a gap", what)

    def _fetch_file(self, name: str, folder: Path) -> None:
        path = folder / name
        make_private_folder(path.parent)

        def fetch() -> None:
            with path.open("wb") as file:
                for piece in self.store.chunks(name):
                    file.write(piece)

        try:
            _again(fetch)
        except FileNotFoundError:
            path.unlink(missing_ok=True)
            raise


def _has_beginning(path: Path, expected: Any) -> bool:
    """Whether a file begins with the bytes of this size and digest."""
    try:
        with path.open("rb") as file:
            return bool(hashlib.sha256(file.read(expected["size"])).hexdigest() == expected["sha256"])
    except (OSError, KeyError, TypeError, ValueError):
        return False


def _read_object(store: FileStore, name: str) -> dict[str, Any]:
    """The object in a JSON file that every run has."""
    try:
        content = json.loads(_again(lambda: store.read(name)))
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFoundError(f"there is no run at {store.shown}: it has no {name}{_runs_below(store)}") from None
    except (ValueError, RecursionError) as error:
        raise BrokenRecordError(f"{store.shown}/{name} is broken: {error}") from error
    if not isinstance(content, dict):
        raise BrokenRecordError(f"{store.shown}/{name} is broken: it holds a {type(content).__name__}, not an object")
    return content


def _runs_below(store: FileStore) -> str:
    """The runs in the given folder, for the error message."""
    folders = {name.split("/")[0] for name in store.sizes() if name.count("/") == 1 and name.endswith("/run.json")}
    return f"; runs there: {', '.join(sorted(folders)[:20])}" if folders else ""


def _again(action: Callable[[], Result]) -> Result:
    """The result of an action on an address, which is repeated after passing errors."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except AddressError as error:
            log.info("tried again: %s", error)
    return action()
