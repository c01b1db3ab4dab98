"""Removing paths of the tree at once, where there is no room to keep them aside.

Takes no space. Follows no link, and each directory is opened below the one above it.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterable

from treesnap import treepath
from treesnap.fs.base import FileSystem
from treesnap.worktree.apply.preconditions import blaming
from treesnap.worktree.apply.protection import protected, refuse_protected_below
from treesnap.worktree.apply.stage import remove_below
from treesnap.worktree.directory import NO_DIRECTORY, DirectoryChain


def refuse_protected(fs: FileSystem, root_fd: int, paths: Iterable[bytes]) -> None:
    """Raises OperationFailed for a path, or a directory above it, that may not be changed."""
    with DirectoryChain(fs, root_fd) as chain:
        for path in paths:
            directory, name = treepath.split(path)
            parent_fd = chain.open(directory)
            if fs.is_protected(parent_fd):
                raise protected(directory)
            if fs.is_protected(name, dir_fd=parent_fd):
                raise protected(path)
            if stat_module.S_ISDIR(fs.lstat(name, dir_fd=parent_fd).st_mode):
                refuse_protected_below(fs, chain.open(path), path)


def remove_paths(fs: FileSystem, root_fd: int, paths: Iterable[bytes]) -> None:
    """Removes each path with all that is below it; does nothing for one that is gone."""
    with DirectoryChain(fs, root_fd) as chain:
        for path in paths:
            with blaming(path):
                _remove(fs, chain, path)


def _remove(fs: FileSystem, chain: DirectoryChain, path: bytes) -> None:
    directory, name = treepath.split(path)
    try:
        parent_fd = chain.open(directory)
        found = fs.lstat(name, dir_fd=parent_fd)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return
        raise
    own = stat_module.S_IMODE(fs.fstat(parent_fd).st_mode)
    if own & 0o300 != 0o300 and os.geteuid() != 0:
        fs.change_mode(parent_fd, own | 0o700)  # it gets its final metadata in the end
    if not stat_module.S_ISDIR(found.st_mode):
        fs.unlink(name, dir_fd=parent_fd)
        return
    mode = stat_module.S_IMODE(found.st_mode)
    if mode & 0o700 != 0o700:
        fs.change_mode(name, mode | 0o700, dir_fd=parent_fd)
    remove_below(fs, chain.open(path))
    fs.remove_directory(name, dir_fd=chain.open(directory))
