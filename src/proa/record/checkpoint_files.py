"""The files of one checkpoint: where they may lie, what makes them last, what shows that they are whole."""

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
from .durable import CheckpointError, Disk, in_words, opened

FOLDER_NAME = "checkpoints"
LONGEST_NAME = 200
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# What replaces a checkpoint of the same name needs a folder of its own; no name has a tilde.
_PLACE = re.compile(rf"({_NAME})(~[0-9]+)?")
_ROW_PATH = re.compile(rf"{FOLDER_NAME}/([^/]+)/(state|model)")
_FRESH = ".new-"


@dataclass(frozen=True, slots=True)
class Print:
    """A file as it was when it had been written: enough to tell that the disk gives the same back."""

    size: int
    xxh3: str


def check_name(name: str) -> None:
    """Refuse what could name anything but a folder among the checkpoints."""
    if not re.fullmatch(_NAME, name) or ".." in name or len(name) > LONGEST_NAME:
        raise CheckpointError(
            f"{name!r} cannot name a checkpoint: use letters, digits, dots, dashes and underscores, "
            f"a letter or digit first, no two dots in a row, at most {LONGEST_NAME}"
        )


def fresh_place(name: str) -> str:
    """The folder that a checkpoint is written to before it has its name."""
    return _FRESH + name


def is_ours(place: str) -> bool:
    """Whether a folder among the checkpoints can be one that was made here."""
    return _PLACE.fullmatch(place.removeprefix(_FRESH)) is not None


def place_of(row: ManifestRow) -> str:
    """The folder of a checkpoint, by its name among the checkpoints."""
    places = {_place_in(row, path) for path in (row.state_path, row.sampler_path) if path is not None}
    if len(places) != 1:
        what = "two folders" if places else "no folder"
        raise CheckpointError(f"checkpoint {row.name}: its row names {what}")
    return places.pop()


def _place_in(row: ManifestRow, path: str) -> str:
    found = _ROW_PATH.fullmatch(path)
    place = _PLACE.fullmatch(found[1]) if found else None
    if found is None or place is None or place[1] != row.name or ".." in path:
        raise CheckpointError(
            f"checkpoint {row.name}: its row names the path {path!r}, which is not in {FOLDER_NAME}/{row.name}"
        )
    return found[1]


def seal(disk: Disk, folder: Path) -> dict[str, Print]:
    """Make all that was written to a folder its owner's alone, and last; return how each file looked."""
    prints = {}
    files, folders = walk(folder)
    for name in files:
        with opened(folder / name, os.O_RDONLY) as descriptor:
            disk.restrict(descriptor, 0o600)
            disk.sync(descriptor)
            prints[name] = _print(disk, descriptor)
            _forget_cached(descriptor)
    for name in reversed(folders):  # what lies deeper first
        with opened(folder / name, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            disk.restrict(descriptor, 0o700)
            disk.sync(descriptor)
    return prints


def read_back(disk: Disk, folder: Path, written: Mapping[str, Print]) -> tuple[dict[str, int], dict[str, str]]:
    """The size and the SHA-256 of every file, as the disk has it. It must be what was written, and whole."""
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
        if Print(size, quick.hexdigest()) != written[name]:
            raise CheckpointError(f"{folder / name} reads back otherwise than it was written: is the disk failing?")
        _refuse_torn(folder / name, size)
        sizes[name], digests[name] = size, strong.hexdigest()
    return sizes, digests


def described(row: ManifestRow, place: str, sizes: dict[str, int], digests: dict[str, str]) -> ManifestRow:
    """The row with what was found in its folder."""
    parts = {PurePosixPath(name).parts[0] for name in digests if "/" in name}
    if not parts & {"state", "model"}:
        raise CheckpointError(f"checkpoint {row.name} is empty: nothing was written to its model/ or state/")
    return replace(
        row,
        state_path=f"{FOLDER_NAME}/{place}/state" if "state" in parts else None,
        sampler_path=f"{FOLDER_NAME}/{place}/model" if "model" in parts else None,
        sizes=sizes,
        digests=digests,
    )


def verify(disk: Disk, run_folder: Path, row: ManifestRow) -> None:
    """Raise unless the files of a checkpoint are exactly those of its row, to the last bit."""
    place = place_of(row)
    for folder in (run_folder / FOLDER_NAME, run_folder / FOLDER_NAME / place):
        if folder.is_symlink():
            raise CheckpointError(f"checkpoint {row.name}: {folder} is a link, and links are not followed")
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {row.name}: {folder} is missing")
    try:
        wrong = _differences(disk, run_folder / FOLDER_NAME / place, row)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"checkpoint {row.name}: {error}") from error
    if wrong:
        raise CheckpointError(f"checkpoint {row.name} is not what its row says: {'; '.join(wrong)}")


def walk(folder: Path) -> tuple[list[str], list[str]]:
    """The files and the folders below a folder (itself as "."), sorted; links and devices are refused."""
    files: list[str] = []
    folders = ["."]
    for inner in folders:  # grows while it is walked
        with os.scandir(folder / inner) as entries:
            for entry in entries:
                name = str(PurePosixPath(inner) / entry.name)
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    folders.append(name)
                elif stat.S_ISREG(mode):
                    files.append(name)
                else:
                    what = "a link" if stat.S_ISLNK(mode) else "no plain file"
                    raise CheckpointError(f"{folder / name} is {what}, which a checkpoint cannot hold")
    return sorted(files), folders


def _differences(disk: Disk, folder: Path, row: ManifestRow) -> list[str]:
    files, _ = walk(folder)
    if not row.digests:
        return ["the row names no files, so nothing shows that they are whole"]
    wrong = [f"{name!r} leaves the folder" for name in row.digests if _leaves(name)]
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
        said = f"should have {expected}" if expected is not None else "its row does not say how many it should have"
        return [f"{name} has {size} bytes, and {said}"]
    digest = hashlib.sha256()
    for piece in disk.chunks(folder / name):
        digest.update(piece)
    found = digest.hexdigest()
    if found == row.digests[name]:
        return []
    return [f"{name} has another digest: {found[:12]}…, and should have {str(row.digests[name])[:12]}…"]


def _leaves(name: str) -> bool:
    parts = name.split("/")
    return "\0" in name or any(part in ("", ".", "..") for part in parts)


def _print(disk: Disk, descriptor: int) -> Print:
    quick, size = xxhash.xxh3_128(), 0
    while piece := disk.read(descriptor):
        quick.update(piece)
        size += len(piece)
    return Print(size, quick.hexdigest())


def _forget_cached(descriptor: int) -> None:
    """Have the next reader get a file from the disk, not from memory: else reading back would show nothing."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _refuse_torn(path: Path, size: int) -> None:
    """Refuse a safetensors file that is shorter than its header says: not every writer notices a full disk."""
    if path.suffix != ".safetensors":
        return
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
            header = json.loads(os.pread(descriptor, min(length, size), 8))
        ends = [spec["data_offsets"][1] for name, spec in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} was not written to its end: its header is broken") from error
    if expected != size:
        raise CheckpointError(f"{path} was not written to its end: {in_words(size)} of {in_words(expected)}")
