"""A store on a file system that is mounted read-only: it can be read, checked and copied."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import treesnap
from mounting import Mounter, mounting
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.core.store.fence import collector_held
from treesnap.core.store.layout import Layout
from treesnap.testing.doubles import MUTATING, Fault, FaultyFileSystem, UnsyncedFileSystem


@pytest.fixture
def root(tmp_path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    return root


@pytest.fixture
def mounter() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


def made(root: Path, store: Path) -> None:
    """Makes a store with a snapshot, in which garbage was collected or not."""
    treesnap.open(root, store).create(name="good")


def is_below(store: Path, call) -> bool:
    return any(path.startswith(str(store)) for path in call.paths)


def read_only(root: Path, store: Path, *, wait_s: float = 0.0) -> Handle:
    """Returns a handle for which nothing below a store can be changed."""
    fault = Fault(
        errno=errno.EROFS,
        kinds=MUTATING,
        where=lambda call: is_below(store, call),
        lasting=True,
    )
    fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
    return Handle(context_at(root, str(store), fs=fs, wait_s=wait_s))


@pytest.mark.parametrize("is_collected", [False, True])
def test_it_can_be_copied(root, tmp_path, is_collected):
    """With the lock of a collection in it, or without."""
    store = tmp_path / "store"
    made(root, store)
    if is_collected:
        treesnap.open(root, store).gc()

    copied = read_only(root, store).store_copy(tmp_path / "copy")

    assert copied.verified.ok
    shutil.rmtree(store)
    assert b"".join(treesnap.open(root, tmp_path / "copy").cat("good", "file")) == b"content"
    treesnap.open(root, tmp_path / "copy").create()


def test_it_is_copied_beside_no_collection(root, tmp_path):
    """The file system may be mounted writable at another place."""
    store = tmp_path / "store"
    made(root, store)
    layout = Layout(str(store))
    with (
        collector_held(LocalFileSystem(), layout, operation="gc", wait_s=0.0),
        pytest.raises(Busy, match="gc"),
    ):
        read_only(root, store).store_copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_no_collection_begins_while_it_is_copied(root, tmp_path):
    store = tmp_path / "store"
    made(root, store)
    treesnap.open(root, store).gc()
    handle = read_only(root, store)
    monitor_of = handle.context.monitor
    ended = []

    class Collecting(type(monitor_of)):
        def begin(self, *arguments):
            with pytest.raises(Busy):
                treesnap.open(root, store, wait_s=0.0).gc()
            ended.append(True)

    handle.context = handle.context._replace(monitor=Collecting())
    handle.store_copy(tmp_path / "copy")

    assert ended


def test_it_cannot_be_moved(root, tmp_path):
    store = tmp_path / "store"
    made(root, store)

    with pytest.raises(TreesnapError, match="Read-only file system"):
        read_only(root, store).store_move(tmp_path / "new")

    assert not (tmp_path / "new").exists()
    assert not store.is_symlink()


def test_on_a_real_mount(root, tmp_path, mounter):
    disk = mounter.tmpfs(tmp_path / "disk")
    made(root, disk / "store")
    mounter.read_only(disk)

    copied = treesnap.open(root, disk / "store").store_copy(tmp_path / "copy")

    assert copied.verified.ok
    assert treesnap.open(root, disk / "store").verify(read_data=True).ok
    assert b"".join(treesnap.open(root, tmp_path / "copy").cat("good", "file")) == b"content"
