"""The last metadata of directories, and whose they are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from treesnap.core.codec.journal import Finish
from treesnap.core.fs.base import FileSystem
from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.worktree.apply.applier import Finisher
from treesnap.core.worktree.directory import DirectoryChain
from treesnap.testing.doubles import Fault, FaultyFileSystem

LONG_AGO_NS = 10**18


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that a restore made writable to work in it."""
    path = tmp_path / "directory"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def of_another(monkeypatch):
    """Makes everything belong to another user than the one who runs the test."""
    uid = os.getuid() + 1
    monkeypatch.setattr("treesnap.core.worktree.apply.applier.os.geteuid", lambda: uid)


def entry(mode: int) -> Entry:
    return Entry(
        b"directory",
        EntryKind.DIRECTORY,
        mode,
        os.getuid(),
        os.getgid(),
        LONG_AGO_NS,
        0,
        b"0" * 32,
        None,
    )


def refused(method: str, code: int = errno.EPERM) -> FileSystem:
    """A file system that fails for the directory."""
    return FaultyFileSystem(
        Fault(
            methods=frozenset({method}),
            where=lambda call: call.path == "directory",
            errno=code,
            lasting=True,
        )
    )


def finished(fs: FileSystem, path: Path, new: Entry | None) -> Finisher:
    """Gives a directory that had mode 0500 its metadata, and returns who did."""
    root_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with DirectoryChain(fs, root_fd) as chain:
            items = [Finish(b"directory", entry(0o500), new)]
            finisher = Finisher(fs, chain, items, lambda item: item.xattrs or (), touch=False)
            finisher.finish(forward=True)
            return finisher
    finally:
        os.close(root_fd)


def test_a_directory_that_gets_nothing_new_loses_the_permission_it_got_and_keeps_its_time(
    fs, directory
):
    before_ns = directory.stat().st_mtime_ns

    finished(fs, directory, None)

    found = directory.stat()
    assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o500, before_ns)


def test_a_directory_that_is_gone_was_changed_by_another_process(fs, directory):
    directory.rmdir()

    assert finished(fs, directory, entry(0o755)).denied == []


def test_a_directory_that_cannot_be_opened_is_an_error(directory):
    """Its metadata is unknown then."""
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        finished(refused("open", errno.EIO), directory, entry(0o755))


@pytest.mark.parametrize("new", [None, entry(0o755)])
def test_ones_own_directory_that_may_not_be_changed_is_named(directory, new):
    with pytest.raises(PermissionError) as caught:
        finished(refused("change_mode"), directory, new)

    assert caught.value.filename == "directory"


@pytest.mark.parametrize(("method", "new"), [("change_mode", None), ("change_times", entry(0o500))])
def test_a_directory_of_another_that_gets_no_more_than_it_had_is_reported(
    directory, of_another, method, new
):
    assert finished(refused(method), directory, new).denied == [b"directory"]


def test_a_directory_of_another_that_gets_other_permissions_is_an_error(directory, of_another):
    with pytest.raises(PermissionError):
        finished(refused("change_mode"), directory, entry(0o755))
