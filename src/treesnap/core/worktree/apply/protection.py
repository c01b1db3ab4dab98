"""What keeps a file from being moved or removed: flags, and permissions that a step removed.

Immutable and append-only files are found before anything is touched, because a directory that
holds one can be moved aside, but not removed afterwards; see chattr(1).

Where a failed step removed its owner's permissions, they are added again, to files of this
process's user only. The restore that follows sets all permissions as in its snapshot.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from stat import S_ISDIR, S_ISREG

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.record_locks import opened_any
from treesnap.core.model import treepath
from treesnap.core.model.errors import OperationFailed, quoted
from treesnap.core.worktree.directory import DirectoryChain, open_chain, open_directory


def refuse_flags(
    fs: FileSystem, where: bytes | int, path: bytes, dir_fd: int | None = None
) -> None:
    """Raises OperationFailed, which names ``path``, for an immutable or append-only file."""
    if fs.is_protected(where, dir_fd=dir_fd):
        raise OperationFailed(
            f"{quoted(path or b'.')} is immutable or append-only (see 'chattr -i -a'; on a Mac "
            "'chflags', and 'chmod -N' for an access control list that denies it): "
            f"{os.strerror(errno.EPERM)}",
            path=path,
            errno=errno.EPERM,
        )


def refuse_protected(fs: FileSystem, root_fd: int, paths: Iterable[bytes]) -> None:
    """Raises OperationFailed for a path, or a directory above it, that may not be changed."""
    with DirectoryChain(fs, root_fd) as chain:
        for path in paths:
            directory, name = treepath.split(path)
            fd = chain.open(directory)
            refuse_flags(fs, fd, directory)
            refuse_flags_below(fs, name, path, fd, fs.lstat(name, dir_fd=fd).st_mode)


def refuse_flags_below(fs: FileSystem, name: bytes, path: bytes, dir_fd: int, mode: int) -> None:
    """Like :func:`refuse_flags`, for a name in a directory and everything below it.

    Costs one system call for each path; does not recurse.
    """
    refuse_flags(fs, name, path, dir_fd)
    if not S_ISDIR(mode):
        return
    pending: list[tuple[list[bytes], bytes]] = [([], path)]
    with open_directory(fs, name, dir_fd) as fd, DirectoryChain(fs, fd) as chain:
        while pending:
            names, directory = pending.pop()
            below_fd = chain.open_names(names)
            with fs.scan(below_fd) as entries:
                for entry in entries:
                    below = os.fsencode(entry.name)
                    where = treepath.join(directory, below)
                    refuse_flags(fs, below, where, below_fd)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(([*names, below], where))


_DIRECTORY_BITS = 0o700
_FILE_BITS = 0o400


def unlock_root(fs: FileSystem, root: str) -> None:
    """Gives the owner access to the root itself, where that is possible."""
    with suppress(OSError):
        _unlock(fs, root, None)


def unlock_paths(fs: FileSystem, root: str, paths: Iterable[bytes]) -> bool:
    """Gives the owner access to paths and all below them; returns whether any had lacked it."""
    is_any = False
    with open_chain(fs, root) as chain:
        for path in paths:
            is_any |= _unlock_below(fs, chain, path)
    return is_any


def _unlock_below(fs: FileSystem, chain: DirectoryChain, path: bytes) -> bool:
    is_any = False
    pending = [path]
    while pending:
        path = pending.pop()
        above, name = treepath.split(path)
        try:
            mode, is_changed = _unlock(fs, name, chain.open(above))
            is_any |= is_changed
            if S_ISDIR(mode):
                names = fs.list_names(chain.open(path))
                pending += [treepath.join(path, os.fsencode(text)) for text in names]
        except OSError:  # gone, another's, or on a file system that cannot
            chain.forget()
    return is_any


def _unlock(fs: FileSystem, name: str | bytes, dir_fd: int | None) -> tuple[int, bool]:
    """Adds the owner's bits to a file or directory; returns its mode before, and whether it did."""
    with opened_any(fs, name, dir_fd) as fd:
        status = fs.fstat(fd)
        mode = status.st_mode
        bits = _DIRECTORY_BITS if S_ISDIR(mode) else _FILE_BITS if S_ISREG(mode) else 0
        if mode & bits == bits or status.st_uid != os.geteuid():
            return mode, False
        fs.change_mode(fd, (mode & 0o7777) | bits)
        return mode, True
