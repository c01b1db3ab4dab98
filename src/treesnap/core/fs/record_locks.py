"""Closing files without losing the record locks that this process holds on them.

When a process closes any descriptor of a file, the kernel drops all record locks that the
process holds on that file, whichever descriptor they were taken through; see fcntl_locking(2).
SQLite holds such locks in each transaction. So when the calling program has locks on a file of
the user's, its descriptor is not closed but kept. It is used again the next time the file is
read, and closed when the locks are gone. SQLite does the same with its own files.

Asking the kernel about one file takes one call, less than a microsecond. /proc/locks lists all
files, but can wait 20 milliseconds for each other processor. A process of our own has no other
code in it that could take such locks, and does not ask: see :mod:`treesnap.core.own_program`.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from treesnap.core import own_program
from treesnap.core.fs import IS_LINUX
from treesnap.core.fs.base import FileSystem, Name
from treesnap.core.fs.processes import read_shown

_QUERY = getattr(fcntl, "F_OFD_GETLK", None)
"""Asks which lock keeps another open file from being locked; this process's locks do."""
if sys.platform == "darwin":
    _QUERY = 92  # older versions of Python have no name for it
    _LOCK, _HOLDER_AT = struct.Struct("qqihh"), 2

    def _lock(kind: int) -> bytes:
        return _LOCK.pack(0, 0, 0, kind, os.SEEK_SET)

else:
    _LOCK, _HOLDER_AT = struct.Struct("hhqqi4x"), 4

    def _lock(kind: int) -> bytes:
        return _LOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


_QUESTION, _NOTHING = _lock(fcntl.F_WRLCK), _lock(fcntl.F_UNLCK)
_OWN_DESCRIPTORS = "/proc/self/fdinfo"
_RECORD_LOCK = b": POSIX "

_kept: list[tuple[int, int, int]] = []
"""Device, inode and an open descriptor of each locked file; none of these is in use.

Threads share the list, so each step with it is a single atomic operation.
"""


def open_for_reading(fs: FileSystem, name: bytes, flags: int, *, dir_fd: int) -> int:
    """Opens a file of the user's, or takes the descriptor that was kept of it; raises OSError.

    Close it with :func:`close_after_reading`.
    """
    if _kept:
        stat = fs.lstat(name, dir_fd=dir_fd)
        fd = _take(stat.st_dev, stat.st_ino)
        if fd is not None:
            os.lseek(fd, 0, os.SEEK_SET)  # it stands where the last reader stopped
            return fd
    return fs.open(name, flags, dir_fd=dir_fd)


def close_after_reading(fs: FileSystem, fd: int) -> None:
    """Closes a file, or keeps its descriptor while this process holds locks on it."""
    keeps = False
    try:
        if not own_program.is_own and has_own_locks(fd):
            stat = fs.fstat(fd)
            keeps = True
            _kept.append((stat.st_dev, stat.st_ino, fd))
    finally:
        if not keeps:
            fs.close(fd)


@contextmanager
def opened_any(
    fs: FileSystem, name: Name, dir_fd: int | None = None, *, is_directory: bool = False
) -> Iterator[int]:
    """Yields a descriptor of what has a name, for its metadata; see ``open_any``."""
    fd = fs.open_any(name, dir_fd=dir_fd, is_directory=is_directory)
    try:
        yield fd
    finally:
        close_after_reading(fs, fd)


def close_unlocked(fs: FileSystem) -> None:
    """Closes the kept descriptors of files that are no longer locked."""
    for device, inode, _ in tuple(_kept):
        fd = _take(device, inode)
        if fd is not None:
            close_after_reading(fs, fd)


def has_own_locks(fd: int) -> bool:
    """Returns whether this process holds record locks on an open file.

    False if the kernel or the file system cannot tell. Where it names one of another process, and
    does not show those of this one, that counts as one of its own.
    """
    if _QUERY is None:
        return False
    try:
        answer = fcntl.fcntl(fd, _QUERY, _QUESTION)
        if answer == _NOTHING:
            return False
        holder_id: int = _LOCK.unpack(answer)[_HOLDER_AT]
        return holder_id == os.getpid() or not IS_LINUX or _has_own_beside_others(fd)
    except OSError:
        return False


def _has_own_beside_others(fd: int) -> bool:
    """Like :func:`has_own_locks`, when the lock that the kernel named is another process's."""
    own = os.fstat(fd)
    for name in os.listdir(_OWN_DESCRIPTORS):
        try:
            other = os.fstat(int(name))
            is_same = (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino)
            if is_same and _RECORD_LOCK in read_shown(f"{_OWN_DESCRIPTORS}/{name}"):
                return True
        except OSError:  # closed by another thread meanwhile
            continue
    return False


def _take(device: int, inode: int) -> int | None:
    """Returns a kept descriptor, which is then the caller's, or None."""
    for kept in tuple(_kept):
        if kept[:2] == (device, inode):
            try:
                _kept.remove(kept)
            except ValueError:  # another thread was faster
                continue
            return kept[2]
    return None
