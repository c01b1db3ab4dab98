"""The file system of this system, and the one for root in the store of another user.

The one place that picks between the file systems of ``posix``, ``linux`` and ``darwin``.

A file that root makes in a store belongs to the store's owner by the time it has a name that
readers know. Otherwise one command run by root, with ``sudo -E`` or in a container, would leave
files that the owner's later commands could not open.

A new store, and the directories that are made above it, belong to the owner of the directory
in which they are made.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from treesnap.core.fs import IS_LINUX, native
from treesnap.core.fs.base import Name
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.fs.posix import PosixFileSystem as LocalFileSystem
    from treesnap.core.fs.posix import current_umask, unnamed_file
elif IS_LINUX:
    from treesnap.core.fs.linux import LinuxFileSystem as LocalFileSystem
    from treesnap.core.fs.linux import current_umask, unnamed_file
else:
    from treesnap.core.fs.posix import current_umask, unnamed_file

    if sys.platform == "darwin":
        from treesnap.core.fs.darwin import DarwinFileSystem as LocalFileSystem
    else:
        from treesnap.core.fs.posix import PosixFileSystem as LocalFileSystem

__all__ = ["LocalFileSystem", "OwnerFileSystem", "current_umask", "for_store", "unnamed_file"]


@native.kernels_own
class OwnerFileSystem(LocalFileSystem):
    """Gives new files and directories, at a path and below it, to a user.

    To no user until one is named, by a caller that has looked at whose the path is and trusts
    that user: an earlier look may have met a directory that another user has taken away since.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._owner: tuple[int, int] | None = None

    def give_to_owner_of(self, status: os.stat_result) -> None:
        """Names the owner by a look at the path; what is the superuser's is not given away."""
        owner = status.st_uid, status.st_gid
        self._owner = owner if status.st_uid != 0 else None

    def open(self, name: Name, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        if not flags & os.O_CREAT or not self._is_in_place(name, dir_fd):
            return super().open(name, flags, mode, dir_fd=dir_fd)
        while True:
            # A file that exists is not given away: it may be a hard link to any file.
            if not flags & os.O_EXCL:
                with suppress(FileNotFoundError):
                    return super().open(name, flags & ~os.O_CREAT, mode)
            try:
                fd = super().open(name, flags | os.O_EXCL, mode)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
                continue
            self._give(fd)
            return fd

    def make_directory(self, name: Name, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        super().make_directory(name, mode, dir_fd=dir_fd)
        if not self._is_in_place(name, dir_fd):
            return
        with suppress(OSError):
            fd = super().open(name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                # The owner of the store may have moved another directory of root's here.
                if self.fstat(fd).st_uid == os.geteuid() and not self.list_names(fd):
                    self._give(fd)
            finally:
                self.close(fd)

    def _is_in_place(self, name: Name, dir_fd: int | None) -> bool:
        if dir_fd is not None:
            return False
        if self._owner is None:
            return False
        path = os.fsdecode(name)
        return path == self._path or path.startswith(self._path + os.sep)

    def _give(self, fd: int) -> None:
        assert self._owner is not None
        with suppress(OSError):  # some file systems and containers refuse it, and it stays root's
            self.change_owner(fd, *self._owner)


def for_store(path: str) -> LocalFileSystem:
    """Returns the file system for a store, which may not exist yet.

    Only root can give files to others.
    """
    return OwnerFileSystem(path) if os.geteuid() == 0 else LocalFileSystem()
