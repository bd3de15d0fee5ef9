"""Files at an address: the same for a folder and for what fsspec reaches."""

import os
import stat

import fsspec
import pytest

from proa.record.durable import CheckpointError
from proa.record.stores import AddressError, FsspecStore, check_relative, open_store


@pytest.fixture(params=["folder", "fsspec"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    if request.param == "folder":
        yield open_store(tmp_path / "copy")
    else:
        yield open_store(f"memory://{tmp_path.name}/copy")
        fsspec.filesystem("memory").store.clear()


def test_what_is_written_is_read_and_listed(store):
    assert store.sizes() == store.sizes("deep") == {}
    store.write("deep/er/a.bin", [b"abc", b"", b"de"])
    store.replace("top.json", [b"{}"])
    assert (store.read("deep/er/a.bin"), store.read("top.json")) == (b"abcde", b"{}")
    assert store.sizes() == {"deep/er/a.bin": 5, "top.json": 2}
    assert store.sizes("deep") == {"deep/er/a.bin": 5}


def test_a_file_is_replaced_and_nothing_else_is_left(store):
    for content in (b"one", b"two and more", b"3"):
        store.replace("top.json", [content])
        assert store.read("top.json") == content
    store.write("top.json", [b"four"])
    assert store.sizes() == {"top.json": 4}


def test_while_it_is_replaced_the_old_one_is_there(store):
    def broken():
        yield b"half"
        assert store.read("top.json") == b"old"
        raise TimeoutError

    store.replace("top.json", [b"old"])
    with pytest.raises(TimeoutError):
        store.replace("top.json", broken())
    assert store.read("top.json") == b"old"


def test_a_folder_is_removed_with_all_that_is_in_it(store):
    store.write("deep/er/a.bin", [b"abc"])
    store.write("other.bin", [b"abc"])
    store.remove("deep")
    store.remove("deep")
    assert store.sizes() == {"other.bin": 3}


def test_a_missing_file_is_what_it_is(store):
    with pytest.raises(FileNotFoundError):
        store.read("nothing")


def test_in_a_folder_files_are_their_owners_alone(tmp_path):
    store = open_store(tmp_path / "copy")
    store.write("deep/a.bin", [b"abc"])
    store.replace("b.bin", [b"abc"])
    for path in (tmp_path / "copy", *(tmp_path / "copy").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_errors_of_a_library_name_the_address_without_its_secrets(monkeypatch):
    store = open_store("memory://user:planted-password@host/copy", {"token": "planted-token"})
    assert store.shown == "memory://REDACTED@host/copy"

    def refuse(*args, **kwargs):
        raise PermissionError("401 for planted-token at user:planted-password@host")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "open", refuse)
    for action in (lambda: store.read("a"), lambda: store.write("a", [b""]), lambda: store.replace("a", [b""])):
        with pytest.raises(AddressError, match="PermissionError: 401 for REDACTED") as caught:
            action()
        assert "planted" not in str(caught.value)


@pytest.mark.parametrize(("url", "words"), [("s4://bucket", "Protocol not known: s4"), ("gs://bucket", "gcsfs")])
def test_an_address_that_cannot_be_used_here_is_reported_without_connecting(url, words, monkeypatch):
    import importlib

    real = importlib.import_module

    def without_gcsfs(name, *rest):
        if name.startswith("gcsfs"):
            raise ImportError(f"no module {name}")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without_gcsfs)
    with pytest.raises(AddressError, match=words):
        FsspecStore(url, {}).check()
    FsspecStore("memory://x", {}).check()


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../b", "a//b", "./a", "a\0b", "", "a\\..\\b"])
def test_a_path_that_leaves_its_folder_is_refused(name):
    with pytest.raises(CheckpointError, match="leaves the folder"):
        check_relative(name)
