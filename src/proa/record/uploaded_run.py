"""The copy of a run at an address: a run's folder with some of its checkpoints, whole or not named.

```
upload.json           which run it is a copy of: written first, so that two runs never share an address
base/  evals/  …      what checkpoints need beside their own files, and the record
checkpoints/step_4/   the files of a checkpoint, each read back and compared with its row
checkpoints.jsonl     replaced last: from here on the checkpoint exists there
checkpoints/step_2/   pruned: first its line, then its files
```
Where an upload was cut off there are files that `checkpoints.jsonl` does not name. Readers ignore them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from ..data.loop import ManifestRow
from ..errors import ProaError
from .checkpoint_files import FOLDER_NAME, folder_name, relative_row, walk
from .durable import CheckpointError, Disk
from .evals import steps_before
from .manifest import MANIFEST_NAME, manifest_rows, manifest_text
from .run_folder import START_NAME
from .run_record import RECORD_FILES
from .state_files import StateError, read_state
from .stores import AddressError, FileStore, temporary_name

log = logging.getLogger("proa.record")

UPLOAD_NAME = "upload.json"
UPLOADED = "uploaded"
"""The key of what an uploaded row says beside the run's own."""
HEADER_FILES = ("config.json", "run.json")
RESULT_FOLDERS = ("evals", "rollouts")
"""Folders of files that are written once each, by step."""

What = Literal["both", "sampler"]


class OtherRunError(ProaError):
    """An address holds something else than a copy of this run."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What tells two runs of the same name apart: when each began."""

    started: float | None
    template_time: str | None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RunIdentity:
        """Of a run's header, or of what was written at an address."""
        return cls(content.get("started"), content.get("template_time"))

    def as_dict(self) -> dict[str, Any]:
        return {"started": self.started, "template_time": self.template_time}


class UploadedRun:
    """The copy of one run. One process writes it, the one that trains."""

    def __init__(self, store: FileStore, *, what: What = "both", keep: int | None = None) -> None:
        self.store = store
        self._what = what
        self._keep = keep
        self._guard = threading.Lock()
        self._is_claimed = False
        self._rows: dict[str, ManifestRow] = {}
        self._outdated: set[str] = set()
        self._there: dict[str, int] = {}
        """The sizes of files there that do not change any more."""

    def claim(self, run: RunIdentity, resumed_step: int | None) -> None:
        """Make the address this run's, once; raise `OtherRunError` if it is another's.

        A run that resumes from a step writes the checkpoints of later steps again: those there are dropped with the
        first new one, and not before, because they may be the only ones.
        """
        with self._guard:
            if self._is_claimed:
                return
            self._check_owner(run)
            self._rows = {row.name: row for row in read_rows(self.store)}
            done = 0 if resumed_step is None else resumed_step
            self._outdated = {name for name, row in self._rows.items() if row.step > done}
            if self._outdated:
                log.warning(
                    "%s has later checkpoints of this run than the one it resumes from (%s): the next one replaces "
                    "them. To continue from them instead, stop and run proa resume with that address",
                    self.store.shown,
                    ", ".join(sorted(self._outdated)),
                )
            self._there = {
                name: size
                for folder in (*RESULT_FOLDERS, START_NAME)
                for name, size in self.store.sizes(folder).items()
                if folder == START_NAME or steps_before(name) <= done
            }
            self._is_claimed = True

    def add(self, row: ManifestRow, files: Path, run_folder: Path, until: float) -> None:
        """Copy a checkpoint, whose files are in this folder, with what it needs of the run's own; verified, by then.

        If it is there already, its row and the record are brought up to date.
        """
        with self._guard:
            row = self._part(relative_row(row, run_folder))
            known = self._rows.get(row.name)
            if known is None or known.digests != row.digests:
                if known is not None:  # its files are about to change
                    self._write_rows({name: one for name, one in self._rows.items() if name != row.name})
                self._copy_checkpoint(row, files, until)
            needed = {} if row.state_path is None else self._copy_surroundings(files, run_folder, until)
            for name in HEADER_FILES:
                if (run_folder / name).exists():
                    self.store.replace(name, Disk().chunks(run_folder / name))
            extra = {**row.extra, UPLOADED: {"at": round(time.time(), 3), "files": needed}}
            self._list(replace(row, extra=extra))

    def _check_owner(self, run: RunIdentity) -> None:
        try:
            owner = RunIdentity.of(json.loads(self.store.read(UPLOAD_NAME)))
        except FileNotFoundError:
            if self.store.sizes():
                raise OtherRunError(
                    f"{self.store.shown} is not empty, and what is there was not uploaded by this run: give `to` "
                    f"another address, or this run another name"
                ) from None
            self.store.replace(UPLOAD_NAME, [json.dumps(run.as_dict(), indent=2).encode()])
            return
        except (ValueError, AttributeError) as error:
            raise AddressError(f"{self.store.shown}/{UPLOAD_NAME} is broken: {error}") from error
        if owner != run:
            raise OtherRunError(
                f"{self.store.shown} has the checkpoints of another run of the same name: give `to` another address, "
                f"or this run another name"
            )

    def _part(self, row: ManifestRow) -> ManifestRow:
        """The row of what is copied: all of it, or the model alone."""
        if self._what == "both":
            return row
        if row.sampler_path is None:
            raise CheckpointError(f"checkpoint {row.name} has no model to upload")
        names = [name for name in row.digests if name.startswith("model/")]
        return replace(
            row,
            state_path=None,
            sizes={name: row.sizes[name] for name in names if name in row.sizes},
            digests={name: row.digests[name] for name in names},
        )

    def _copy_checkpoint(self, row: ManifestRow, files: Path, until: float) -> None:
        if not row.digests:
            raise CheckpointError(f"checkpoint {row.name} has no digests of its files, so a copy cannot be verified")
        target = f"{FOLDER_NAME}/{folder_name(row)}"
        self.store.remove(target)  # what an upload left that was cut off
        for name, digest in row.digests.items():
            found = self._copy(files / name, f"{target}/{name}", until)
            if found != (row.sizes.get(name), digest):
                raise CheckpointError(f"checkpoint {row.name}: {name} is not the file that its row names: not uploaded")

    def _copy_surroundings(self, files: Path, run_folder: Path, until: float) -> dict[str, dict[str, Any]]:
        """Copy what a resumed run needs beside the checkpoint, and its record; what is needed, with sizes and digests
        up to the checkpoint."""
        needed: dict[str, dict[str, Any]] = {}
        start = run_folder / START_NAME
        for name in walk(start)[0] if start.is_dir() else ():
            needed[f"{START_NAME}/{name}"] = self._copy_once(run_folder, f"{START_NAME}/{name}", until)
        lengths: Mapping[str, int] = {}
        with suppress(StateError, KeyError):  # of a loop that keeps no record
            lengths = read_state(files / "state" / "run")["record"]
        for name in RECORD_FILES:
            if (run_folder / name).exists():
                self.store.replace(name, _timed(Disk().chunks(run_folder / name), until))
            if lengths.get(name):
                needed[name] = _fingerprint(_first(Disk().chunks(run_folder / name), lengths[name]))
        for folder in RESULT_FOLDERS:
            for path in sorted((run_folder / folder).rglob("*.jsonl")):
                self._copy_once(run_folder, path.relative_to(run_folder).as_posix(), until)
        return needed

    def _copy_once(self, run_folder: Path, name: str, until: float) -> dict[str, Any]:
        """Copy a file that does not change any more, unless it is there; its size and digest."""
        if self._there.get(name) == (run_folder / name).stat().st_size:
            return _fingerprint(_timed(Disk().chunks(run_folder / name), until))
        size, digest = self._copy(run_folder / name, name, until)
        self._there[name] = size
        return {"size": size, "sha256": digest}

    def _copy(self, source: Path, name: str, until: float) -> tuple[int, str]:
        """Copy one file and read the copy back; its size and SHA-256."""
        read = _Hashed(_timed(Disk().chunks(source), until))
        self.store.write(name, read)
        written = _Hashed(_timed(self.store.chunks(name), until))
        for _ in written:
            pass
        if written.result != read.result:
            raise AddressError(f"{self.store.shown}/{name} does not read back as it was written")
        return read.result

    def _list(self, row: ManifestRow) -> None:
        """Name a checkpoint. Others that are outdated, or too many, are not named any more."""
        others = {name: one for name, one in self._rows.items() if name == row.name or name not in self._outdated}
        rows = {name: replace(one, final=one.final and not row.final) for name, one in others.items()} | {row.name: row}
        excess = 0 if self._keep is None else max(0, len(rows) - self._keep)
        for name in [name for name in rows if name != row.name][:excess]:
            del rows[name]
        self._write_rows(rows)
        self._outdated = set()

    def _write_rows(self, rows: dict[str, ManifestRow]) -> None:
        """Replace the manifest, then remove the files of checkpoints that it does not name any more."""
        text = manifest_text(rows.values())
        self.store.replace(MANIFEST_NAME, [text])
        if self.store.read(MANIFEST_NAME) != text:
            raise AddressError(f"{self.store.shown}/{MANIFEST_NAME} does not read back as it was written")
        before, self._rows = self._rows, rows
        kept = {folder_name(row) for row in rows.values()}
        for folder in {folder_name(row) for row in before.values()} - kept:
            self.store.remove(f"{FOLDER_NAME}/{folder}")


def read_rows(store: FileStore) -> list[ManifestRow]:
    """The checkpoints at an address, oldest first."""
    for name in (MANIFEST_NAME, temporary_name(MANIFEST_NAME)):  # the second: where replacing it was cut off
        with suppress(FileNotFoundError):
            return manifest_rows(store.read(name))
    return []


class _Hashed:
    """Pieces that are hashed while they are read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._hash = hashlib.sha256()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._hash.update(piece)
            self._size += len(piece)
            yield piece

    @property
    def result(self) -> tuple[int, str]:
        return self._size, self._hash.hexdigest()


def _fingerprint(pieces: Iterator[bytes]) -> dict[str, Any]:
    hashed = _Hashed(pieces)
    for _ in hashed:
        pass
    size, digest = hashed.result
    return {"size": size, "sha256": digest}


def _first(pieces: Iterator[bytes], length: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[:length]
        length -= len(piece)
        if length <= 0:
            return


def _timed(pieces: Iterator[bytes], until: float) -> Iterator[bytes]:
    for piece in pieces:
        if monotonic() > until:
            raise TimeoutError("its time is over")
        yield piece
