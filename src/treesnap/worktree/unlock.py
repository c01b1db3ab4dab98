"""Opening to their owner again what a failed step closed: files and directories without permission.

Only what belongs to this process's user is changed, and only the owner's own permission bits
are added. The restore that follows sets them as its snapshot has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from stat import S_ISDIR, S_ISREG

from treesnap import treepath
from treesnap.fs.base import FileSystem
from treesnap.worktree.directory import OPEN_DIRECTORY, DirectoryChain

_DIRECTORY_BITS = 0o700
_FILE_BITS = 0o400


def unlock_root(fs: FileSystem, root: str) -> None:
    """Opens the root itself, where that is possible."""
    with suppress(OSError):
        _unlock(fs, root, None)


def unlock_paths(fs: FileSystem, root: str, paths: Iterable[bytes]) -> bool:
    """Opens paths and all below them; returns whether any could be."""
    is_any = False
    root_fd = fs.open(root, OPEN_DIRECTORY)
    try:
        with DirectoryChain(fs, root_fd) as chain:
            for path in paths:
                is_any |= _unlock_below(fs, chain, path)
    finally:
        fs.close(root_fd)
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
    """Adds the owner's bits to a file or directory; returns its mode, and whether they lacked."""
    fd = fs.open(name, os.O_PATH, dir_fd=dir_fd)
    try:
        status = fs.fstat(fd)
        mode = status.st_mode
        wanted = _DIRECTORY_BITS if S_ISDIR(mode) else _FILE_BITS if S_ISREG(mode) else 0
        if mode & wanted == wanted or status.st_uid != os.geteuid():
            return mode, False
        fs.change_mode(fd, (mode & 0o7777) | wanted)
        return mode, True
    finally:
        fs.close(fd)
