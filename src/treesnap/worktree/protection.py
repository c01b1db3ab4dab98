"""Files that not even their owner may move or remove: immutable and append-only ones.

They are found before anything is touched, because a directory that holds one can be
moved aside, but never be removed again. See chattr(1).
"""

from __future__ import annotations

import errno
import os

from treesnap import treepath
from treesnap.errors import OperationFailed, shown
from treesnap.fs.base import FileSystem
from treesnap.worktree.directory import DirectoryChain


def protected(path: bytes) -> OperationFailed:
    """Returns the error for a path; the root has the empty one."""
    return OperationFailed(
        f"{shown(path) or '.'!r} is immutable or append-only (see 'chattr -i -a'): "
        f"{os.strerror(errno.EPERM)}",
        path=path,
        errno=errno.EPERM,
    )


def refuse_protected_below(fs: FileSystem, fd: int, path: bytes) -> None:
    """Raises OperationFailed when a directory, open as ``fd``, holds a protected path.

    Costs one system call for each path below it; does not recurse.
    """
    pending: list[tuple[list[bytes], bytes]] = [([], path)]
    with DirectoryChain(fs, fd) as chain:
        while pending:
            names, directory = pending.pop()
            below = chain.open_names(names)
            with fs.scan(below) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    where = treepath.join(directory, name)
                    if fs.is_protected(name, dir_fd=below):
                        raise protected(where)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(([*names, name], where))
