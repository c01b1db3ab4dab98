"""The files beside a database of SQLite that belong to what it holds.

A database and the log of another state are a damaged database, and SQLite does not notice: it
writes what the log says into the file. So whatever is about the one is about the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain

from treesnap.core.codec.reader import read_content
from treesnap.core.model.entries import (
    DATABASE_HEADER,
    DATABASE_LOG_SUFFIXES,
    ChangeList,
    Entry,
    EntryKind,
)
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session

_SUFFIXES = (*DATABASE_LOG_SUFFIXES, b"-shm")


def with_logs(
    session: Session, snapshots: Sequence[Snapshot], paths: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Returns paths with the files beside those that are databases in one of the snapshots.

    Only with those that are there, in a snapshot or the root, and that all the snapshots, which
    may have been taken of some paths, were taken of.
    """
    trees, tops = session.store.trees(), [item.record.root for item in snapshots]
    root = os.fsencode(session.context.root)

    def is_there(path: bytes) -> bool:
        in_snapshot = any(trees.find(top, path) is not None for top in tops)
        return in_snapshot or os.path.lexists(os.path.join(root, path))

    def beside(path: bytes) -> Iterator[bytes]:
        logs = [path + suffix for suffix in _SUFFIXES if is_there(path + suffix)]
        if logs and any(_is_database(session, trees.find(top, path)) for top in tops):
            yield from logs

    added = chain.from_iterable(beside(path) for path in paths if path)
    return (*paths, *(log for log in added if all(it.record.covers((log,)) for it in snapshots)))


def with_logs_told_once(changes: ChangeList, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns changes without those of a log that was not asked for and of which the database,
    whose difference is made with the log, tells.
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
    first = next(read_content(entry.file_content, session.store.get), b"")
    return first.startswith(DATABASE_HEADER)
