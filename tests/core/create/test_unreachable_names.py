"""One name that cannot be looked at stops nothing: it is listed as unreadable, and left alone.

A FUSE file system whose daemon is gone is made here (ENOTCONN); what needs a server, or a broken
disk, fails by a double of the file system.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import treesnap
from mounting import Mounter, mounting
from treesnap.core.handle import Handle
from treesnap.core.model.entries import SkipReason
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.results import CreateResult
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnreachableFileSystem

pytestmark = pytest.mark.sampled(10)

ERRORS = [
    *(errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV),
    *(errno.EACCES, errno.EPERM, errno.ENXIO, errno.EOVERFLOW),
    *(getattr(errno, name) for name in ("EREMOTEIO", "EUCLEAN") if hasattr(errno, name)),
]
METHODS = [(), ("look",), ("look", "lstat"), ("open",), ("fstat",), ("scan", "read_at"), ("lstat",)]
"""Which calls fail: all that are about the name, or one step on the way to its content."""
FILES = ["file", "sub/beside", "sub/mnt/deep/below"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for path in FILES:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


@pytest.fixture
def handle(tmp_path: Path, root: Path) -> Handle:
    return treesnap.open(root, tmp_path / "store")


@pytest.fixture
def mounter() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


def unreadable(result: CreateResult) -> list[bytes]:
    return [item.path for item in result.skipped if item.reason == SkipReason.UNREADABLE]


def goes_back_and_forth(handle: Handle, root: Path, path: bytes) -> None:
    """Every operation on the live tree works beside a name that cannot be looked at."""
    state = handle.create()
    assert unreadable(state) == [path]
    assert not state.complete

    status = handle.status()
    assert ([*status.changes], [item.path for item in status.skipped]) == ([], [path])
    assert [*handle.diff()] == []

    (root / "other").write_text("since")
    result = handle.run(["sh", "-c", "echo spoilt > other; mkdir new; exit 3"])
    assert result.rolled_back
    assert (root / "other").read_text() == "since"
    assert sorted(os.listdir(root)) == ["file", "other", "sub"]

    handle.restore(state.id)
    assert sorted(os.listdir(root)) == ["file", "sub"]
    handle.undo()
    assert (root / "other").read_text() == "since"
    handle.redo()
    assert not (root / "other").exists()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("path", ["sub/mnt", "file", "sub"])
@pytest.mark.parametrize("methods", METHODS, ids=str)
def test_whatever_the_error_says(methods, path, number, handle, root, tmp_path):
    handle.create()
    fs = UnreachableFileSystem(number, root / path, methods=methods)
    beside = Handle(context_at(str(root), str(tmp_path / "store"), fs=fs))
    if not unreadable(beside.create()):
        return  # these calls are not needed for what is as before

    goes_back_and_forth(beside, root, path.encode())

    assert {path: (root / path).read_text() for path in FILES} == {path: path for path in FILES}


def test_an_ignore_file_that_cannot_be_looked_at_leaves_its_directory_out(root, tmp_path):
    (root / "sub" / ".snapignore").write_text("*.o")
    fs = UnreachableFileSystem(errno.ESTALE, root / "sub" / ".snapignore")
    handle = Handle(context_at(str(root), str(tmp_path / "store"), fs=fs))

    assert unreadable(handle.create()) == [b"sub"]


def test_what_is_excluded_is_not_missed(root, tmp_path):
    (root / ".snapignore").write_text("mnt/")
    fs = UnreachableFileSystem(errno.ENOTCONN, root / "sub" / "mnt")
    handle = Handle(context_at(str(root), str(tmp_path / "store"), fs=fs))

    made = handle.create()

    assert [tuple(item) for item in made.skipped] == [(b"sub/mnt", SkipReason.EXCLUDED)]
    assert made.complete


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ENFILE])
def test_an_error_of_this_process_is_no_property_of_a_name(number, root, tmp_path):
    fs = UnreachableFileSystem(number, root / "sub" / "mnt", methods=["look"])
    handle = Handle(context_at(str(root), str(tmp_path / "store"), fs=fs))

    with pytest.raises(treesnap.OperationFailed):
        handle.create()


def test_a_mount_without_its_daemon_is_listed_and_left_alone(handle, root, mounter):
    before = handle.create()
    mounter.dead(root / "sub" / "mnt")

    goes_back_and_forth(handle, root, b"sub/mnt")
    handle.restore(before.id)

    mounter.unmount(root / "sub" / "mnt")
    assert (root / "sub" / "mnt" / "deep" / "below").read_text() == "sub/mnt/deep/below"
    assert handle.create().complete


def test_what_cannot_be_compared_is_told(tmp_path, root, mounter):
    monitor = CollectingMonitor()
    handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
    handle.create()
    mounter.dead(root / "sub" / "mnt")

    handle.diff()

    message = "What cannot be read is not compared: 'sub/mnt'"
    assert message in monitor.warnings


class Failed(Exception):
    """What a step raises."""


def test_a_step_that_left_dead_mounts_is_rolled_back_around_them(handle, root, mounter):
    (root / "gone").mkdir()
    (root / "gone" / "inside").write_text("gone")
    with suppress(Failed), handle.rollback_on_error():
        (root / "file").write_text("spoilt")
        (root / "gone" / "inside").unlink()
        for place in ("sub/mnt", "new/mnt", "gone"):
            mounter.dead(root / place)
        (root / "new" / "litter").write_text("litter")
        raise Failed

    assert (root / "file").read_text() == "file"
    assert os.listdir(root / "new") == ["mnt"]
    for place in ("sub/mnt", "new/mnt", "gone"):
        mounter.unmount(root / place)
    assert (root / "sub" / "mnt" / "deep" / "below").read_text() == "sub/mnt/deep/below"


def test_a_path_below_such_a_name_is_not_taken_for_absent(handle, root, mounter):
    handle.create()
    mounter.dead(root / "sub" / "mnt")

    made = handle.create(["sub/mnt/deep", "sub/mnt/other"])

    assert (made.absent, unreadable(made)) == ((), [b"sub/mnt"])
    mounter.unmount(root / "sub" / "mnt")
    result = handle.restore(made.id)
    assert [tuple(item) for item in result.untouched] == [(b"sub/mnt", SkipReason.UNREADABLE)]
    assert (root / "sub" / "mnt" / "deep" / "below").exists()


def test_a_restore_of_a_path_below_what_was_unreadable_removes_nothing(handle, root, mounter):
    mounter.dead(root / "sub" / "mnt")
    state = handle.create()
    mounter.unmount(root / "sub" / "mnt")

    result = handle.restore(state.id, ["sub/mnt/deep"])

    assert [item.path for item in result.untouched] == [b"sub/mnt"]
    assert (root / "sub" / "mnt" / "deep" / "below").exists()
