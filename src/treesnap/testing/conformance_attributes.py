"""What every file system behind the seam must do with metadata and locks, as tests.

A part of :class:`treesnap.testing.conformance.FileSystemTests`.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module

import pytest

from treesnap.fs.base import FileSystem

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def put_file(fs: FileSystem, path: str, content: bytes = b"") -> None:
    """Makes a file through the file system under test."""
    fd = fs.open(path, NEW)
    try:
        assert fs.write(fd, content) == len(content)
    finally:
        fs.close(fd)


class AttributeTests:
    """Metadata and locks."""

    def test_an_ordinary_file_is_not_protected(self, fs: FileSystem, directory: str) -> None:
        """``is_protected`` takes names, links among them, and descriptors."""
        put_file(fs, f"{directory}/file", b"content")
        directory_fd = fs.open(directory, DIRECTORY)
        fs.make_symlink(b"nowhere", b"link", dir_fd=directory_fd)

        assert not fs.is_protected(b"file", dir_fd=directory_fd)
        assert not fs.is_protected(b"link", dir_fd=directory_fd)
        assert not fs.is_protected(directory_fd)

        with pytest.raises(FileNotFoundError):
            fs.is_protected(b"absent", dir_fd=directory_fd)
        fs.close(directory_fd)

    def test_a_directory_and_what_is_in_it_are_of_one_mount(
        self, fs: FileSystem, directory: str
    ) -> None:
        """``mount_id`` is the same for both, or None."""
        put_file(fs, f"{directory}/file", b"content")
        fds = [fs.open(directory, DIRECTORY), fs.open(f"{directory}/file", os.O_RDONLY)]

        first, second = map(fs.mount_id, fds)

        for fd in fds:
            fs.close(fd)
        assert first == second
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            fs.mount_id(-1)

    def test_a_directory_keeps_its_birth_time_when_it_is_renamed(
        self, fs: FileSystem, directory: str
    ) -> None:
        """``birth_time_ns`` is the same before and after, or None."""
        fs.make_directory(f"{directory}/old")
        before = fs.birth_time_ns(f"{directory}/old")

        fs.rename(f"{directory}/old", f"{directory}/new")

        assert fs.birth_time_ns(f"{directory}/new") == before
        with pytest.raises(FileNotFoundError):
            fs.birth_time_ns(f"{directory}/old")

    def test_mode_and_time_are_set_by_name_and_descriptor(
        self, fs: FileSystem, directory: str
    ) -> None:
        """Nanoseconds are kept, of symbolic links too, which are not followed."""
        put_file(fs, f"{directory}/file")
        directory_fd = fs.open(directory, DIRECTORY)
        fd = fs.open(f"{directory}/file", os.O_RDONLY)
        fs.make_symlink(b"file", b"link", dir_fd=directory_fd)
        fs.make_node(b"fifo", stat_module.S_IFIFO | 0o600, dir_fd=directory_fd)

        fs.change_mode(fd, 0o640)
        fs.change_owner(fd, os.geteuid(), os.getegid())
        fs.change_times(fd, 1_600_000_000_123_456_789)
        fs.change_times(b"link", 1_500_000_000_000_000_001, dir_fd=directory_fd)

        stat = fs.fstat(fd)
        link = fs.lstat(b"link", dir_fd=directory_fd)
        assert stat_module.S_ISFIFO(fs.lstat(b"fifo", dir_fd=directory_fd).st_mode)
        fs.close(fd)
        fs.close(directory_fd)
        assert stat_module.S_IMODE(stat.st_mode) == 0o640
        assert stat.st_mtime_ns == 1_600_000_000_123_456_789
        assert link.st_mtime_ns == 1_500_000_000_000_000_001

    def test_attributes_come_and_go(self, fs: FileSystem, directory: str) -> None:
        """By path and by descriptor, however it was opened; an absent one raises ENODATA."""
        path = f"{directory}/file"
        put_file(fs, path)
        fd = fs.open(path, os.O_RDONLY)

        try:
            fs.set_xattr(fd, "user.one", b"1")
        except OSError as error:
            fs.close(fd)
            if error.errno in {errno.ENOTSUP, errno.EPERM}:
                pytest.skip("extended attributes do not work here")
            raise
        any_fd = fs.open(path, getattr(os, "O_PATH", os.O_RDONLY))
        values = [fs.get_xattr(where, "user.one") for where in (path, fd, any_fd)]
        names = [fs.list_xattrs(where) for where in (path, fd, any_fd)]
        fs.remove_xattr(any_fd, "user.one")
        fs.close(any_fd)

        assert (values, names) == ([b"1"] * 3, [["user.one"]] * 3)
        with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
            fs.get_xattr(fd, "user.one")
        fs.close(fd)

    def test_an_exclusive_lock_keeps_others_out(self, fs: FileSystem, directory: str) -> None:
        """A lock belongs to an opening, so two of one process keep each other out."""
        first = fs.open(f"{directory}/lock", NEW)
        second = fs.open(f"{directory}/lock", os.O_RDWR)

        got = [fs.lock(first, exclusive=True), fs.lock(second, exclusive=True)]
        fs.unlock(first)
        got.append(fs.lock(second, exclusive=True))

        fs.close(first)
        fs.close(second)
        assert got == [True, False, True]

    def test_shared_locks_stand_together(self, fs: FileSystem, directory: str) -> None:
        """Any number of shared locks, and no exclusive one beside them."""
        fds = [fs.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]

        got = [
            fs.lock(fds[0], exclusive=False),
            fs.lock(fds[1], exclusive=False),
            fs.lock(fds[2], exclusive=True),
        ]

        for fd in fds:
            fs.close(fd)
        assert got == [True, True, False]

    def test_closing_gives_a_lock_back(self, fs: FileSystem, directory: str) -> None:
        """However the holder ends, its locks end with its descriptors."""
        first = fs.open(f"{directory}/lock", NEW)
        fs.lock(first, exclusive=True)
        second = fs.open(f"{directory}/lock", os.O_RDWR)

        fs.close(first)

        assert fs.lock(second, exclusive=True)
        fs.close(second)
