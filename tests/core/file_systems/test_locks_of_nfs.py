"""NFS makes a flock of a lock of bytes: an exclusive one takes a file that is open for writing.

So it locks no directory. ``tox -e file-systems`` tries a real one.
"""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from treesnap.core.fs import posix
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.apply.removal import remove_directories
from treesnap.testing.doubles import UnsyncedFileSystem

NEEDED = {fcntl.LOCK_EX: os.O_RDONLY, fcntl.LOCK_SH: os.O_WRONLY}
"""For each lock, how a file is open that cannot have it."""


@pytest.fixture(autouse=True)
def locked_as_by_nfs(monkeypatch):
    flock = fcntl.flock

    def lock(fd: int, kind: int) -> None:
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        if NEEDED.get(kind & ~fcntl.LOCK_NB) == access:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, kind)

    monkeypatch.setattr(posix.fcntl, "flock", lock)


def test_a_store_works_there(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("first")
    context = context_at(
        root=tmp_path / "root", store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem()
    )
    handle = Handle(context)

    handle.create(name="first")
    (tmp_path / "root/file").write_text("second")
    handle.restore("first")
    handle.undo()
    handle.gc()

    assert handle.verify(read_data=True).ok
    assert handle.doctor(file_system=True).unfinished == ()
    assert (tmp_path / "root/file").read_text() == "second"


def test_directories_are_removed_without_a_lock(tmp_path):
    (tmp_path / "displaced/below").mkdir(parents=True)

    remove_directories(UnsyncedFileSystem(), [str(tmp_path / "displaced")])

    assert os.listdir(tmp_path) == []
