"""The files of one checkpoint: valid paths, syncing, and verification."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import xxhash

from ..data.loop import ManifestRow
from .durable import CheckpointError, Disk, format_bytes, open_file

FOLDER_NAME = "checkpoints"
LONGEST_NAME = 200
_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# A checkpoint that replaces another of the same name is in `<name>~2`; names have no tilde.
_FOLDER = re.compile(rf"({_NAME_PATTERN})(~[0-9]+)?")
_ROW_PATH = re.compile(rf"{FOLDER_NAME}/([^/]+)/(state|model)")
_ABSOLUTE_ROW_PATH = re.compile(rf"(/.*)/({FOLDER_NAME}/[^/]+/(?:state|model))")
_TEMPORARY_PREFIX = ".new-"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Size and hash of a file when it was written, to compare with what the disk returns."""

    size: int
    xxh3: str


def check_name(name: str) -> None:
    """Raise unless this can be the name of a checkpoint's folder."""
    if not re.fullmatch(_NAME_PATTERN, name) or ".." in name or len(name) > LONGEST_NAME:
        raise CheckpointError(
            f"{name!r} cannot name a checkpoint: use letters, digits, dots, dashes and underscores, "
            f"a letter or digit first, no two dots in a row, at most {LONGEST_NAME}"
        )


def temporary_name(name: str) -> str:
    """The folder that a checkpoint is written to before it is renamed."""
    return _TEMPORARY_PREFIX + name


def is_checkpoint_folder(place: str) -> bool:
    """Whether a folder's name is one that a `CheckpointManager` gives."""
    return _FOLDER.fullmatch(place.removeprefix(_TEMPORARY_PREFIX)) is not None


def folder_name(row: ManifestRow) -> str:
    """The name of a checkpoint's folder, which may differ from the checkpoint's own."""
    folders: set[str] = set()
    for path in (row.state_path, row.sampler_path):
        if path is None:
            continue
        found = _ROW_PATH.fullmatch(path)
        folder = _FOLDER.fullmatch(found[1]) if found else None
        if found is None or folder is None or folder[1] != row.name or ".." in path:
            raise CheckpointError(
                f"checkpoint {row.name}: its row names the path {path!r}, which is not in {FOLDER_NAME}/{row.name}"
            )
        folders.add(found[1])
    if len(folders) != 1:
        what = "two folders" if folders else "no folder"
        raise CheckpointError(f"checkpoint {row.name}: its row names {what}")
    return folders.pop()


def absolute_row(row: ManifestRow, run_folder: Path) -> ManifestRow:
    """The row with absolute paths, as hooks get it; the manifest has relative ones, so that a run can be moved."""
    paths = (row.state_path, row.sampler_path)
    state, sampler = (str(run_folder / path) if path and _ROW_PATH.fullmatch(path) else path for path in paths)
    return replace(row, state_path=state, sampler_path=sampler)


def relative_row(row: ManifestRow, run_folder: Path) -> ManifestRow:
    """The row with paths relative to its run's folder; those of another run stay as they are."""
    paths = (row.state_path, row.sampler_path)
    state, sampler = (path if path is None else _relative_path(path, run_folder) for path in paths)
    return replace(row, state_path=state, sampler_path=sampler)


def _relative_path(path: str, run_folder: Path) -> str:
    found = _ABSOLUTE_ROW_PATH.fullmatch(path)
    if found is None or os.path.realpath(found[1]) != os.path.realpath(run_folder):
        return path
    return found[2]


def seal(disk: Disk, folder: Path) -> dict[str, Fingerprint]:
    """Make everything in a folder private and sync it; return a fingerprint of each file."""
    fingerprints = {}
    files, folders = walk(folder)
    for name in files:
        with open_file(folder / name, os.O_RDONLY) as descriptor:
            disk.restrict(descriptor, 0o600)
            disk.sync(descriptor)
            quick, size = xxhash.xxh3_128(), 0
            while piece := disk.read(descriptor):
                quick.update(piece)
                size += len(piece)
            fingerprints[name] = Fingerprint(size, quick.hexdigest())
            if hasattr(os, "posix_fadvise"):  # reading back must reach the disk, not the page cache
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for name in reversed(folders):  # inner folders first
        with open_file(folder / name, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            disk.restrict(descriptor, 0o700)
            disk.sync(descriptor)
    return fingerprints


def read_back(disk: Disk, folder: Path, written: Mapping[str, Fingerprint]) -> tuple[dict[str, int], dict[str, str]]:
    """The size and SHA-256 of every file as read from the disk; raise if it is not what was written."""
    sizes, digests = {}, {}
    files, _ = walk(folder)
    if files != sorted(written):
        raise CheckpointError(f"{folder} does not hold the files that were written: {files}, not {sorted(written)}")
    for name in files:
        quick, strong, size = xxhash.xxh3_128(), hashlib.sha256(), 0
        for piece in disk.chunks(folder / name):
            quick.update(piece)
            strong.update(piece)
            size += len(piece)
        if Fingerprint(size, quick.hexdigest()) != written[name]:
            raise CheckpointError(f"{folder / name} does not read back as it was written: is the disk failing?")
        _check_complete(folder / name, size)
        sizes[name], digests[name] = size, strong.hexdigest()
    return sizes, digests


def complete_row(row: ManifestRow, folder: str, sizes: dict[str, int], digests: dict[str, str]) -> ManifestRow:
    """The row with the paths, sizes and digests of its files."""
    parts = {PurePosixPath(name).parts[0] for name in digests if "/" in name}
    if not parts & {"state", "model"}:
        raise CheckpointError(f"checkpoint {row.name} is empty: nothing was written to its model/ or state/")
    return replace(
        row,
        state_path=f"{FOLDER_NAME}/{folder}/state" if "state" in parts else None,
        sampler_path=f"{FOLDER_NAME}/{folder}/model" if "model" in parts else None,
        sizes=sizes,
        digests=digests,
    )


def verify(disk: Disk, run_folder: Path, row: ManifestRow) -> None:
    """Raise unless the files of a checkpoint are exactly those of its row, bit for bit."""
    name = folder_name(row)
    for folder in (run_folder / FOLDER_NAME, run_folder / FOLDER_NAME / name):
        if folder.is_symlink():
            raise CheckpointError(f"checkpoint {row.name}: {folder} is a link, and links are not followed")
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {row.name}: {folder} is missing")
    try:
        wrong = _differences(disk, run_folder / FOLDER_NAME / name, row)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"checkpoint {row.name}: {error}") from error
    if wrong:
        raise CheckpointError(f"checkpoint {row.name} does not match its row: {'; '.join(wrong)}")


def walk(folder: Path) -> tuple[list[str], list[str]]:
    """The files and the folders below a folder (itself as "."), sorted; links and devices are refused."""
    files: list[str] = []
    folders = ["."]
    for inner in folders:  # grows during the loop
        with os.scandir(folder / inner) as entries:
            for entry in entries:
                name = str(PurePosixPath(inner) / entry.name)
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    folders.append(name)
                elif stat.S_ISREG(mode):
                    files.append(name)
                else:
                    what = "a link" if stat.S_ISLNK(mode) else "not a regular file"
                    raise CheckpointError(f"{folder / name} is {what}, which a checkpoint cannot hold")
    return sorted(files), folders


def _differences(disk: Disk, folder: Path, row: ManifestRow) -> list[str]:
    files, _ = walk(folder)
    if not row.digests:
        return ["the row names no files, so nothing shows that they are whole"]
    bad_parts = {"", ".", ".."}
    wrong = [f"{name!r} leaves the folder" for name in row.digests if "\0" in name or bad_parts & {*name.split("/")}]
    if wrong:
        return wrong
    for path in (row.state_path, row.sampler_path):
        part = path.rpartition("/")[2] if path else ""
        if path and not any(name.startswith(f"{part}/") for name in row.digests):
            wrong.append(f"the row names {part}/ and no file in it")
    wrong += [f"{name} is missing" for name in sorted(row.digests.keys() - set(files))]
    wrong += [f"{name} is not in the row" for name in files if name not in row.digests]
    for name in files:
        if name in row.digests:
            wrong += _difference(disk, folder, name, row)
    return wrong


def _difference(disk: Disk, folder: Path, name: str, row: ManifestRow) -> list[str]:
    size = (folder / name).lstat().st_size
    expected = row.sizes.get(name)
    if size != expected:
        if expected is None:
            return [f"{name} has {size} bytes, and its row has no size for it"]
        return [f"{name} has {size} bytes instead of {expected}"]
    digest = hashlib.sha256()
    for piece in disk.chunks(folder / name):
        digest.update(piece)
    found = digest.hexdigest()
    if found == row.digests[name]:
        return []
    return [f"{name} has the digest {found[:12]}… instead of {str(row.digests[name])[:12]}…"]


def _check_complete(path: Path, size: int) -> None:
    """Raise if a safetensors file is shorter than its header says: not every writer notices a full disk."""
    if path.suffix != ".safetensors":
        return
    try:
        with open_file(path, os.O_RDONLY) as descriptor:
            length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
            header = json.loads(os.pread(descriptor, min(length, size), 8))
        ends = [spec["data_offsets"][1] for name, spec in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is incomplete: its header is broken") from error
    if expected != size:
        raise CheckpointError(f"{path} is incomplete: {format_bytes(size)} of {format_bytes(expected)}")
