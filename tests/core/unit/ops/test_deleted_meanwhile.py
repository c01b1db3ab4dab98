"""A snapshot that is deleted, and its content collected, while a reader reads it."""

from __future__ import annotations

import os

import pytest

from treesnap.core.handle import Handle
from treesnap.core.model.errors import Corrupt, NotFound
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem


class Deleting(WrappedFileSystem):
    """Deletes the snapshot in the moment before the first pack is opened, and collects."""

    def __init__(self, other: Handle) -> None:
        super().__init__(UnsyncedFileSystem())
        self.other = other
        self.is_new = True

    def around(self, call: Call) -> object:
        if self.is_new and call.method == "open" and "/packs/" in os.fsdecode(call.paths[-1]):
            self.is_new = False
            self.other.delete("gone")
            self.other.gc()
        return call.proceed()


READERS = {
    "restore elsewhere": lambda handle, place: handle.restore("gone", to=place),
    "dry run": lambda handle, place: handle.restore("gone", dry_run=True),
    "ls": lambda handle, place: handle.ls("gone"),
    "cat": lambda handle, place: list(handle.cat("gone", "one")),
}


@pytest.fixture
def gone(handle, root):
    """A snapshot of which no other has anything."""
    for path in ("one", "directory/two"):
        (root / path).write_bytes(os.urandom(3000))
    return handle.create(name="gone")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_it_is_said_to_be_gone_and_not_damaged(handle, make_handle, gone, tmp_path, read):
    with pytest.raises(NotFound, match=f"{gone.id[:12]} was deleted meanwhile"):
        read(make_handle(fs=Deleting(handle)), tmp_path / "elsewhere")

    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_damage_stays_damage(make_handle, gone, store_path, tmp_path, read):
    for pack in store_path.glob("packs/*"):
        pack.write_bytes(pack.read_bytes()[:20])

    with pytest.raises(Corrupt):
        read(make_handle(), tmp_path / "elsewhere")
