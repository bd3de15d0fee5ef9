"""Files at an address: a folder on this machine, or whatever fsspec reaches (`s3://…`, `gs://…`, `sftp://…`)."""

from __future__ import annotations

import importlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ProaError
from ..private_files import make_private_folder
from .durable import CheckpointError, Disk, open_writable
from .secrets import redact, redact_values, remember

SEPARATOR = "://"


class AddressError(ProaError):
    """An address cannot be read or written; the message says why, without secrets."""


class FileStore(ABC):
    """Files under one address, by their path below it, with `/` between folders."""

    def __init__(self, address: str) -> None:
        remember({"address": address})
        self.shown: str = redact(address)
        """The address without secrets."""

    @abstractmethod
    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a file; `FileNotFoundError` if there is none."""

    @abstractmethod
    def write(self, name: str, content: Iterable[bytes]) -> None:
        """Write a file, and the folders above it. If this is cut off, a part of it may be there."""

    @abstractmethod
    def replace(self, name: str, content: Iterable[bytes]) -> None:
        """Write a file so that readers see the old content or the new, as far as the address allows it."""

    @abstractmethod
    def sizes(self, folder: str = "") -> dict[str, int]:
        """The sizes of all files below a folder, by their path below the address; empty if there is none."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a folder with everything in it; nothing happens if there is none."""

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))


def open_store(address: str | Path, options: Mapping[str, Any] | None = None) -> FileStore:
    """The files at an address; `options` are for fsspec's file system. Nothing is read or connected yet.

    >>> open_store("memory://bucket/run").shown, open_store("file:///backup/run").shown
    ('memory://bucket/run', '/backup/run')
    """
    text = str(address).removeprefix("file://")
    if not is_url(text):
        return FolderStore(Path(text).expanduser())
    return FsspecStore(text, options or {})


def is_url(address: str) -> bool:
    """Whether an address is for fsspec, and not a path."""
    return SEPARATOR in address


class FolderStore(FileStore):
    """A folder on this machine. Files are private to their owner."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self._disk = Disk()

    def chunks(self, name: str) -> Iterator[bytes]:
        return self._disk.chunks(self.folder / name)

    def write(self, name: str, content: Iterable[bytes]) -> None:
        path = self.folder / name
        make_private_folder(path.parent)
        with open_writable(path, os.O_CREAT | os.O_TRUNC) as descriptor:
            self._disk.restrict(descriptor, 0o600)
            for piece in content:
                self._disk.write_all(descriptor, piece)
            self._disk.sync(descriptor)
        self._disk.sync_folder(path.parent)

    def replace(self, name: str, content: Iterable[bytes]) -> None:
        temporary = temporary_name(name)
        self.write(temporary, content)
        self._disk.rename(self.folder / temporary, self.folder / name)
        self._disk.sync_folder((self.folder / name).parent)

    def sizes(self, folder: str = "") -> dict[str, int]:
        found = {}
        for inside, _, names in os.walk(self.folder / folder):
            for name in names:
                path = Path(inside, name)
                with suppress(FileNotFoundError):  # a temporary file of whoever writes there
                    found[path.relative_to(self.folder).as_posix()] = path.lstat().st_size
        return found

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder / name)


class FsspecStore(FileStore):
    """What fsspec reaches by a URL. Its library is imported, and it connects, when it is first used."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        remember({"options": dict(options)})
        super().__init__(url)
        self._url = url
        self._options = dict(options)
        self._file_system: Any = None
        self._root = ""

    def check(self) -> None:
        """Raise unless fsspec knows the protocol and has its library; without connecting."""
        protocol = self._url.partition(SEPARATOR)[0]
        try:
            importlib.import_module("fsspec").get_filesystem_class(protocol.partition("::")[0])
        except (ImportError, ValueError) as error:
            raise AddressError(f"{self.shown} cannot be used: {error}") from None

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._explained(f"{self.shown}/{name} cannot be read"), self._fs.open(self._path(name), "rb") as file:
            while piece := file.read(1 << 20):
                yield piece

    def write(self, name: str, content: Iterable[bytes]) -> None:
        with self._explained(f"{self.shown}/{name} cannot be written"):
            path = self._path(name)
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._fs.open(path, "wb") as file:
                for piece in content:
                    file.write(piece)

    def replace(self, name: str, content: Iterable[bytes]) -> None:
        temporary = temporary_name(name)
        self.write(temporary, content)
        with self._explained(f"{self.shown}/{name} cannot be written"):
            try:
                self._fs.mv(self._path(temporary), self._path(name))
            except FileExistsError:  # readers take the temporary one where there is no other
                self._fs.rm(self._path(name))
                self._fs.mv(self._path(temporary), self._path(name))

    def sizes(self, folder: str = "") -> dict[str, int]:
        with self._explained(f"{self.shown} cannot be listed"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            root = PurePosixPath("/", self._root)
            return {
                PurePosixPath("/", path).relative_to(root).as_posix(): int(entry.get("size") or 0)
                for path, entry in found.items()
            }

    def remove(self, name: str) -> None:
        with self._explained(f"{self.shown}/{name} cannot be removed"), suppress(FileNotFoundError):
            self._fs.rm(self._path(name), recursive=True)

    @property
    def _fs(self) -> Any:
        if self._file_system is None:
            fsspec = importlib.import_module("fsspec")  # slow to import, and rarely needed
            self._file_system, root = fsspec.core.url_to_fs(self._url, **self._options)
            self._root = root.rstrip("/")
        return self._file_system

    def _path(self, name: str) -> str:
        assert self._fs is not None
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Errors of any library as `AddressError`, without secrets; a missing file stays what it is."""
        try:
            yield
        except (FileNotFoundError, ProaError, TimeoutError):
            raise
        except Exception as error:
            raise AddressError(f"{what}: {type(error).__name__}: {redact_values(str(error))}") from None


def temporary_name(name: str) -> str:
    """Where a file is written before it takes the place of another.

    >>> temporary_name("checkpoints.jsonl"), temporary_name("evals/a.jsonl")
    ('.checkpoints.jsonl.new', 'evals/.a.jsonl.new')
    """
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.new"


def check_relative(name: str) -> None:
    """Raise unless a path that another program wrote stays below its address."""
    if "\0" in name or "\\" in name or {"", ".", ".."} & {*name.split("/")}:
        raise CheckpointError(f"{name!r} leaves the folder")
