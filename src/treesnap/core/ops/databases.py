"""The files beside a database of SQLite that belong to what it holds.

A database and the log of another state are a damaged database, and SQLite does not notice: it
writes what the log says into the file. So whatever is about the one is about the other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress

from treesnap.core.codec.reader import Get, read_content
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.record_locks import close_after_reading, open_for_reading
from treesnap.core.model import treepath
from treesnap.core.model.entries import (
    DATABASE_HEADER,
    DATABASE_LOG_SUFFIXES,
    ChangeList,
    Entry,
    EntryKind,
    Skipped,
    SkipReason,
)
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session
from treesnap.core.worktree.directory import DirectoryChain, open_chain

_SUFFIXES = (*DATABASE_LOG_SUFFIXES, b"-shm")
_PAGE_SIZE_MIN = 512
"""A database is a number of pages, https://www.sqlite.org/fileformat.html."""


def with_live_logs(fs: FileSystem, root: str, paths: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns paths of a root with the files beside those that are databases now.

    Also with those that are absent: a restore of what is captured removes one that a program made
    later. Costs a look at each path, and reads the start of what may be a database by its size.
    """
    with suppress(OSError), open_chain(fs, root) as chain:
        databases = [path for path in paths if path and _is_live_database(fs, chain, path)]
        return _beside(paths, databases)
    return tuple(paths)


def without_logs(paths: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns paths without those of logs of what else is among them."""
    present = set(paths)
    return tuple(path for path in paths if not _is_beside(path, present))


def with_logs(
    session: Session, snapshots: Sequence[Snapshot], paths: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Returns paths with the files beside those that are databases in one of the snapshots.

    Also with those that are absent: a program may make one until the root is looked at. Only with
    those that all the snapshots, which may have been taken of some paths, were taken of.
    """
    trees, tops = session.store.trees(), [item.record.root for item in snapshots]
    databases = [
        path
        for path in paths
        if path and any(is_database(session.store.get, trees.find(top, path)) for top in tops)
    ]
    added = _beside(paths, databases)[len(paths) :]
    return (*paths, *(log for log in added if all(it.record.covers((log,)) for it in snapshots)))


def files_beside(path: bytes, is_database_at: Callable[[bytes], bool]) -> tuple[bytes, ...]:
    """Returns the other files of the database that a path is, or whose log it is; else none."""
    name, _, suffix = path.rpartition(b"-")
    for database in (path, name) if b"-" + suffix in _SUFFIXES else (path,):
        if is_database_at(database):
            files = (database, *(database + each for each in _SUFFIXES))
            return tuple(each for each in files if each != path)
    return ()


def may_have_files_beside(path: bytes, *entries: Entry | None) -> bool:
    """Returns whether a path may be a database or a log, by its name and what was there."""
    return path.endswith(_SUFFIXES) or any(map(may_be_database, entries))


def may_be_database(entry: Entry | None) -> bool:
    """Returns whether an entry may be a database, by its kind and size."""
    is_file = entry is not None and entry.kind == EntryKind.FILE and not entry.is_skipped
    return is_file and entry is not None and _has_size_of_database(entry.size)


def said_of_database(path: bytes, entry: Entry | None) -> object:
    """Returns what has to be the same in two files for a database to hold the same.

    An empty log says nothing, as one that is absent; nor does what readers share (``-shm``).
    """
    if entry is None or not entry.size or path.endswith(b"-shm"):
        return None
    return entry.kind, entry.size, entry.content


def logs_left(
    session: Session,
    skipped: Iterable[Skipped],
    puts: Container[bytes],
    restored: Callable[[bytes], Entry | None],
) -> list[bytes]:
    """Returns the logs that a restore leaves beside databases of another state.

    They are excluded, so no snapshot has what is in them.
    """
    return sorted(
        item.path
        for item in skipped
        if item.reason == SkipReason.EXCLUDED
        and item.path.endswith(DATABASE_LOG_SUFFIXES)
        and (database := item.path.rpartition(b"-")[0]) in puts
        and is_database(session.store.get, restored(database))
    )


def with_logs_told_once(changes: ChangeList, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns changes without those of logs that were not asked for and that a database tells of.

    Its difference is made with the log.
    """
    changed = {change.path for change in changes}

    def tells(path: bytes) -> bool:
        if path in paths or not _is_beside(path, paths):
            return True
        name, _, suffix = path.rpartition(b"-")
        return name not in changed and suffix != b"shm"

    return ChangeList(change for change in changes if tells(change.path))


def _beside(paths: Sequence[bytes], databases: Sequence[bytes]) -> tuple[bytes, ...]:
    return (*paths, *(path + suffix for path in databases for suffix in _SUFFIXES))


def _is_beside(path: bytes, paths: Container[bytes]) -> bool:
    name, _, suffix = path.rpartition(b"-")
    return name in paths and b"-" + suffix in _SUFFIXES


def _is_live_database(fs: FileSystem, chain: DirectoryChain, path: bytes) -> bool:
    directory, name = treepath.split(path)
    with suppress(OSError):
        directory_fd = chain.open(directory)
        status = fs.lstat(name, dir_fd=directory_fd)
        if not stat.S_ISREG(status.st_mode) or not _has_size_of_database(status.st_size):
            return False
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = open_for_reading(fs, name, flags, dir_fd=directory_fd)
        try:
            return fs.read(fd, len(DATABASE_HEADER)) == DATABASE_HEADER
        finally:
            close_after_reading(fs, fd)
    return False  # the capture says what is wrong with it


def _has_size_of_database(size: int) -> bool:
    return size > 0 and size % _PAGE_SIZE_MIN == 0


def is_database(get: Get, entry: Entry | None) -> bool:
    """Returns whether an entry is a database. Reads its start if its size is that of one."""
    if entry is None or not may_be_database(entry):
        return False
    try:
        first = next(read_content(entry.file_content, get), b"")
    except Corrupt:  # what needs the content says so
        return False
    return first.startswith(DATABASE_HEADER)
