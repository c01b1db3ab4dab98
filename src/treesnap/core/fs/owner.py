"""Owners of files: the file system for root in the store of another user, and the right to give.

A file that root makes in a store belongs to the store's owner by the time it has a name that
readers know. Otherwise one command run by root, with ``sudo -E`` or in a container, would leave
files that the owner's later commands could not open.

A new store, and the directories that are made above it, belong to the owner of the directory
in which they are made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache

from treesnap.core.fs import native
from treesnap.core.fs.base import Name
from treesnap.core.fs.durable import read_file
from treesnap.core.fs.local import LocalFileSystem

_CHANGE_OWNER = 1 << 0
"""CAP_CHOWN, see capabilities(7)."""
_ALL_IDS = 1 << 32
_STATUS_SIZE_MAX = 1 << 16


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


def may_give_owners() -> bool:
    """Returns whether this process may give a file to any user.

    This takes a capability that root may lack. In a user namespace in which most users are not
    mapped, the capability is not enough. Read once per process and user.
    """
    return _may_give_owners(os.getpid(), os.geteuid())


def unmapped_owner_id() -> int | None:
    """Returns who owns the files of users that this process's user namespace does not map.

    None where it maps all users. In a sandbox, that is often the owner of all directories but
    those of the user, root's too. Costs two small reads.
    """
    fs = LocalFileSystem()
    try:
        table = read_file(fs, "/proc/self/uid_map", _STATUS_SIZE_MAX)
        if _mapped(table) >= _ALL_IDS - 1:
            return None
        return int(read_file(fs, "/proc/sys/kernel/overflowuid", _STATUS_SIZE_MAX))
    except (OSError, ValueError, IndexError):  # not Linux, or no /proc
        return None


def _mapped(table: bytes) -> int:
    """Returns how many ids a table of a user namespace maps."""
    return sum(int(row.split()[2]) for row in table.splitlines())


@lru_cache(maxsize=4)
def _may_give_owners(process_id: int, user_id: int) -> bool:
    fs = LocalFileSystem()
    try:
        status = read_file(fs, f"/proc/{process_id}/status", _STATUS_SIZE_MAX)
        names = ("uid_map", "gid_map")
        maps = [read_file(fs, f"/proc/{process_id}/{name}", _STATUS_SIZE_MAX) for name in names]
        (line,) = [line for line in status.splitlines() if line.startswith(b"CapEff:")]
        capabilities = int(line.split()[1], 16)
        counts = list(map(_mapped, maps))
    except (OSError, ValueError, IndexError):  # not Linux, or no /proc
        return user_id == 0
    return bool(capabilities & _CHANGE_OWNER) and min(counts) >= _ALL_IDS - 1
