"""Removes paths of the tree at once, where there is no room to keep them aside.

Needs no space. Follows no link, and opens each directory relative to the one above it.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterable, Sequence
from contextlib import suppress
from errno import EBUSY

from treesnap.core.fs.base import FileSystem, Unsupported
from treesnap.core.fs.forked import Work, helper_count, share_out
from treesnap.core.fs.record_locks import opened_any
from treesnap.core.model import treepath
from treesnap.core.worktree.apply.preconditions import blaming
from treesnap.core.worktree.directory import (
    NO_DIRECTORY,
    DirectoryChain,
    open_directory,
)

HELPED_REMOVALS_MIN = 1024
"""One process removes fewer files of a directory by itself."""
_UNLINKED_AT_ONCE = 64
"""How many files are removed as one item of work."""


def remove_paths(fs: FileSystem, root_fd: int, paths: Iterable[bytes]) -> None:
    """Removes each path with everything below it; ignores paths that are gone."""
    with DirectoryChain(fs, root_fd) as chain:
        for path in paths:
            with blaming(path):
                _remove(fs, chain, path)


def _remove(fs: FileSystem, chain: DirectoryChain, path: bytes) -> None:
    directory, name = treepath.split(path)
    try:
        parent_fd = chain.open(directory)
        status = fs.lstat(name, dir_fd=parent_fd)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return
        raise
    _make_writable(fs, parent_fd)  # it gets its final metadata in the end
    if not stat_module.S_ISDIR(status.st_mode):
        fs.unlink(name, dir_fd=parent_fd)
        return
    remove_below(fs, _opened_writable(fs, chain, treepath.components(path)))
    fs.remove_directory(name, dir_fd=chain.open(directory))


def remove_below(fs: FileSystem, fd: int) -> None:
    """Removes everything in a directory, read-only directories included.

    Follows no link, and removes nothing of what is mounted there: raises OSError. Needs no memory
    beyond one directory per level. Other processes help where a directory holds many files: freeing
    their space takes longer than the names.
    """
    pending: list[tuple[list[bytes], bool]] = [([], False)]
    mount_id: int | None = None
    with DirectoryChain(fs, fd) as chain:
        while pending:
            names, is_empty = pending.pop()
            if is_empty:
                parent = chain.open_names(names[:-1])
                fs.remove_directory(names[-1], dir_fd=parent)
                continue
            try:
                here = _opened_writable(fs, chain, names)
            except NotADirectoryError:  # what a listing says of a type is a hint
                fs.unlink(names[-1], dir_fd=chain.open_names(names[:-1]))
                continue
            if names:
                mount_id = fs.mount_id(fd) if mount_id is None else mount_id
                if fs.mount_id(here) != mount_id:
                    raise OSError(EBUSY, "A file system is mounted there", fs.current_path(here))
                pending.append((names, True))
            below = _remove_files(fs, here)
            pending.extend(([*names, name], False) for name in below)


def remove_directories(fs: FileSystem, paths: Iterable[str]) -> None:
    """Removes directories with everything in them, but none that another process is removing.

    Ignores what is gone, or is not a directory. Locks each meanwhile. Raises OSError.
    """
    for path in paths:
        try:
            with open_directory(fs, path) as fd:
                try:
                    is_locked = fs.lock(fd, exclusive=True)
                    if not is_locked:
                        continue
                except Unsupported:  # NFS locks no directory
                    is_locked = False
                try:
                    remove_below(fs, fd)
                    fs.remove_directory(path)
                finally:
                    if is_locked:
                        fs.unlock(fd)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise


def _opened_writable(fs: FileSystem, chain: DirectoryChain, names: Sequence[bytes]) -> int:
    """Returns a descriptor of a directory that its owner may empty; valid until the next one.

    What was opened is looked at and changed, not the name: users who may rename things above it can
    put something else there at any moment.
    """
    if not names:
        return chain.open_names(names)
    try:
        fd = chain.open_names(names)
    except PermissionError:
        parent = chain.open_names(names[:-1])
        with opened_any(fs, names[-1], parent, is_directory=True) as closed:
            if not _make_writable(fs, closed):
                raise
        return chain.open_names(names)
    _make_writable(fs, fd)
    return fd


def _make_writable(fs: FileSystem, fd: int) -> bool:
    """Gives the owner of a directory all permissions; returns whether any was missing.

    Not in those of other users: the superuser needs no permission there, and no other user may.
    """
    status = fs.fstat(fd)
    mode = stat_module.S_IMODE(status.st_mode)
    if mode & 0o700 == 0o700 or status.st_uid != os.geteuid():
        return False
    fs.change_mode(fd, mode | 0o700)
    return True


def _remove_files(fs: FileSystem, fd: int) -> list[bytes]:
    """Removes what is not a directory; returns the names of the directories.

    A file and a directory that changed places are listed by vfat as what was there before, until
    that is written to the disk. So what cannot be removed as a file is looked at.
    """
    directories: list[bytes] = []
    files: list[bytes] = []
    with fs.scan(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            (directories if entry.is_dir(follow_symlinks=False) else files).append(name)
    try:
        _unlink_all(fs, fd, files)
    except IsADirectoryError:
        for name in files:
            with suppress(FileNotFoundError):
                if stat_module.S_ISDIR(fs.lstat(name, dir_fd=fd).st_mode):
                    directories.append(name)
                else:
                    fs.unlink(name, dir_fd=fd)
    return directories


def _unlink_all(fs: FileSystem, fd: int, names: Sequence[bytes]) -> None:
    """Removes names of a directory, here and in helpers if they are many."""

    def unlink(run: Sequence[bytes]) -> None:
        for name in run:
            fs.unlink(name, dir_fd=fd)

    def unlink_rest(run: Sequence[bytes]) -> None:
        for name in run:
            with suppress(FileNotFoundError):
                fs.unlink(name, dir_fd=fd)

    share_out(
        [
            names[start : start + _UNLINKED_AT_ONCE]
            for start in range(0, len(names), _UNLINKED_AT_ONCE)
        ],
        len,
        helper_count() if len(names) >= HELPED_REMOVALS_MIN else 0,
        Work(here=unlink, there=unlink, take=lambda _run, _result: None, again=unlink_rest),
    )
