"""The files beside a database of SQLite that belong to what it holds.

A database and the log of another state are a damaged database, and SQLite does not notice: it
writes what the log says into the file. So whatever is about the one is about the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from treesnap.core.codec.reader import read_content
from treesnap.core.model.entries import (
    DATABASE_HEADER,
    DATABASE_LOG_SUFFIXES,
    ChangeList,
    Entry,
    EntryKind,
)
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session

_SUFFIXES = (*DATABASE_LOG_SUFFIXES, b"-shm")
_PAGE_SIZE_MIN = 512
"""A database is a number of pages, https://www.sqlite.org/fileformat.html."""


def with_logs(
    session: Session, snapshots: Sequence[Snapshot], paths: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Returns paths with the files beside those that are databases in one of the snapshots.

    Also with those that are absent: a program may make one until the root is looked at. Only with
    those that all the snapshots, which may have been taken of some paths, were taken of.
    """
    trees, tops = session.store.trees(), [item.record.root for item in snapshots]
    databases = (
        path
        for path in paths
        if path and any(_is_database(session, trees.find(top, path)) for top in tops)
    )
    logs = (path + suffix for path in databases for suffix in _SUFFIXES)
    return (*paths, *(log for log in logs if all(it.record.covers((log,)) for it in snapshots)))


def with_logs_told_once(changes: ChangeList, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns changes without those of logs that were not asked for and that a database tells of.

    Its difference is made with the log.
    """
    changed = {change.path for change in changes}

    def tells(path: bytes) -> bool:
        if path in paths:
            return True
        name, _, suffix = path.rpartition(b"-")
        is_beside = name in paths and b"-" + suffix in _SUFFIXES
        return not (is_beside and (name in changed or suffix == b"shm"))

    return ChangeList(change for change in changes if tells(change.path))


def _is_database(session: Session, entry: Entry | None) -> bool:
    if entry is None or entry.kind != EntryKind.FILE or entry.is_skipped:
        return False
    if not entry.size or entry.size % _PAGE_SIZE_MIN:
        return False  # without reading any of it
    try:
        first = next(read_content(entry.file_content, session.store.get), b"")
    except Corrupt:  # what needs the content says so
        return False
    return first.startswith(DATABASE_HEADER)
