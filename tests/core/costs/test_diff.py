"""What reading both sides of many changes costs, counted in bytes and opened files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from treesnap import EntryKind
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import RecordingFileSystem

FILES = 480
SNAPSHOTS = 12
FILE_SIZE = 12 << 10
"""Of random bytes: together more than the blocks that a store keeps decompressed."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def fs() -> RecordingFileSystem:
    return RecordingFileSystem()


@pytest.fixture
def handle(root: Path, tmp_path: Path, fs: RecordingFileSystem) -> Handle:
    return Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs))


def capture_mixed(handle: Handle, root: Path) -> None:
    """Captures files so that neighbours in the tree lie in different blocks."""
    chance = random.Random(1)
    for first in range(SNAPSHOTS):
        for number in range(first, FILES, SNAPSHOTS):
            (root / f"file-{number:03}").write_bytes(chance.randbytes(FILE_SIZE))
        handle.create()


def test_each_block_is_read_once_however_the_files_came_into_the_store(handle, root, fs, tmp_path):
    capture_mixed(handle, root)
    for path in root.iterdir():
        path.unlink()
    changes = handle.diff()
    old = handle.resolve("latest").id
    fs.clear()

    found = list(handle.contents(old, None, changes))

    assert [item.change for item in found] == list(changes)
    assert all(len(item.old) == FILE_SIZE and item.new is None for item in found)
    packs = tmp_path / "store" / "packs"
    stored = sum(path.stat().st_size for path in packs.iterdir())
    assert fs.read_bytes(below=str(packs)) <= stored
    assert len(fs.calls("open", below=str(packs))) <= len(list(packs.iterdir()))


def test_files_of_the_live_tree_are_opened_once_each(handle, root, fs):
    for number in range(100):
        (root / f"file-{number}").write_text("old")
    old = handle.create().id
    for number in range(100):
        (root / f"file-{number}").write_text("new content")
    changes = handle.diff(old)
    fs.clear()

    found = list(handle.contents(old, None, changes))

    assert {(item.old, item.new) for item in found} == {(b"old", b"new content")}
    assert len(fs.calls("open", below=str(root))) == 101  # and the root itself


def test_files_larger_than_asked_for_are_not_read(handle, root, fs):
    (root / "a").write_bytes(b"x" * 5000)
    old = handle.create().id
    (root / "a").write_bytes(b"y")
    changes = handle.diff(old)
    fs.clear()

    (small,) = handle.contents(old, None, changes, max_size_bytes=5000)
    (large,) = handle.contents(old, None, changes, max_size_bytes=4999)

    assert (small.old, small.new, small.is_large) == (b"x" * 5000, b"y", False)
    assert (large.old, large.new, large.is_large) == (None, None, True)


def test_each_change_comes_with_what_it_is_about(handle, root):
    (root / "link").symlink_to("old")
    (root / "mode").write_text("same")
    (root / "gone").write_text("read too late")
    old = handle.create().id
    (root / "link").unlink()
    (root / "link").symlink_to("new")
    (root / "mode").chmod(0o600)
    (root / "gone").write_text("changed")
    (root / "sub").mkdir()
    changes = handle.diff(old)
    (root / "gone").unlink()

    found = {os.fsdecode(item.change.path): item for item in handle.contents(old, None, changes)}

    assert (found["link"].old, found["link"].new) == (b"old", b"new")
    assert (found["mode"].old, found["mode"].is_lost) == (None, False)
    assert (found["gone"].old, found["gone"].is_lost) == (None, True)
    assert found["sub"].change.new.kind == EntryKind.DIRECTORY
    assert (found["sub"].new, found["sub"].is_large) == (None, False)


def test_both_sides_may_be_snapshots(handle, root):
    (root / "a").write_text("one")
    old = handle.create().id
    (root / "a").write_text("two")
    new = handle.create().id
    (root / "a").unlink()

    (found,) = handle.contents(old, new, handle.diff(old, new))

    assert (found.old, found.new) == (b"one", b"two")
