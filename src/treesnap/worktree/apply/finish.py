"""Giving directories their final metadata, when nothing in them moves any more."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from treesnap import treepath
from treesnap.codec.journal import Finish
from treesnap.fs.base import FileSystem
from treesnap.model import Entry, Xattrs
from treesnap.worktree.attributes import apply_metadata, read_xattrs
from treesnap.worktree.directory import NO_DIRECTORY, DirectoryChain

_OPEN_ANY = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)


class Finisher:
    """The directories that a restore touches. ``chain`` begins at the root."""

    def __init__(
        self,
        fs: FileSystem,
        chain: DirectoryChain,
        directories: Sequence[Finish],
        xattrs: Callable[[Entry], Xattrs],
        *,
        touch: bool,
    ) -> None:
        self._fs = fs
        self._chain = chain
        self._directories = directories
        self._xattrs = xattrs
        self._touch = touch
        self.denied: list[bytes] = []
        """Directories of others, whose metadata only they may put back."""

    def finish(self, *, forward: bool) -> None:
        """Gives all directories but the root their metadata, the deepest first.

        The new one, or the old one unless ``forward``. Raises OSError.
        """
        deepest_first = sorted(
            (item for item in self._directories if item.path),
            key=lambda item: len(treepath.components(item.path)),
            reverse=True,
        )
        for item in deepest_first:
            self._finish(item, forward=forward)

    def finish_tops(self, subvolumes: Collection[bytes]) -> None:
        """Gives the root and subvolumes their new metadata, after the staging directories went."""
        for item in self._directories:
            if not item.path or item.path in subvolumes:
                self._finish(item, forward=True)

    def _finish(self, item: Finish, *, forward: bool) -> None:
        try:
            fd = self._chain.open(item.path)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                return  # changed by another process, which is newer
            raise
        wanted = item.new if forward else item.old
        touch = self._touch and forward
        try:
            if wanted is not None:
                known = (item.old, item.new or item.old)
                settle(self._fs, fd, known, wanted, self._xattrs, touch=touch)
            elif stat_module.S_IMODE(self._fs.fstat(fd).st_mode) != item.old.mode:
                self._fs.change_mode(fd, item.old.mode)
        except PermissionError as error:
            error.filename = os.fsdecode(item.path) or "."
            is_own = self._fs.fstat(fd).st_uid == os.geteuid()
            if is_own or (forward and item.path and _is_changed(item)):
                raise
            self.denied.append(item.path)


def settle(
    fs: FileSystem,
    fd: int,
    known: Sequence[Entry],
    wanted: Entry,
    xattrs: Callable[[Entry], Xattrs],
    *,
    touch: bool = False,
) -> None:
    """Gives a directory the metadata of an entry, as far as it has what is known of it.

    Permissions, owner and attributes that are none of the known ones were set by
    another process, and stay. The time follows from changes inside, and is always set.
    """
    stat = fs.fstat(fd)
    mode = stat_module.S_IMODE(stat.st_mode)
    if any(mode in (entry.mode, entry.mode | 0o700) for entry in known):
        mode = wanted.mode
    owner = (stat.st_uid, stat.st_gid)
    if any(owner == (entry.uid, entry.gid) for entry in known):
        owner = (wanted.uid, wanted.gid)
    found = read_xattrs(fs, fd) or ()
    if any(tuple(found) == tuple(xattrs(entry)) for entry in known):
        found = xattrs(wanted)
    entry = wanted._replace(mode=mode, uid=owner[0], gid=owner[1])
    apply_metadata(fs, fd, entry, found, touch=touch)


def _is_changed(item: Finish) -> bool:
    """Returns whether a directory gets other metadata than the time of its last change."""
    _, old, new = item
    if new is None:
        return False
    return old._replace(mtime_ns=0, content=None) != new._replace(
        name=old.name, mtime_ns=0, content=None
    )


@contextmanager
def opened_for_metadata(fs: FileSystem, name: bytes, dir_fd: int) -> Iterator[int]:
    """Opens whatever has a name, permissions or not, without following a link."""
    fd = fs.open(name, _OPEN_ANY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        fs.close(fd)
