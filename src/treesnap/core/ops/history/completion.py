"""What can stand at a place of a command line: snapshots, sessions, paths.

For completion in a shell, which asks at every key: nothing is locked, recovered, moved or made,
and only the newest snapshots are read. Everything raises TreesnapError or OSError where there is
nothing to offer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.trust import refuse_foreign
from treesnap.core.store.store import Store

READ_MAX = 200
"""Snapshots that are read, the newest ones."""


def recent_snapshots(context: Context, beginning: str = "") -> list[Snapshot]:
    """Returns the newest snapshots of the root, those whose id has this beginning first."""
    with _looking(context) as session:
        snapshots = session.store.snapshots
        if not beginning:
            return list(islice(snapshots.readable(session.root.id), READ_MAX))
        names = snapshots.names(session.root.id)
        fitting = [name for name in names if name.id.startswith(beginning)][:READ_MAX]
        by_id = {name.id: snapshots.load(session.root.id, name) for name in fitting}
        for snapshot in islice(snapshots.readable(session.root.id), READ_MAX - len(by_id)):
            by_id.setdefault(snapshot.id, snapshot)
        return list(by_id.values())


def sessions(context: Context) -> dict[str, Snapshot]:
    """Returns the newest snapshot of each session that the newest snapshots belong to."""
    newest: dict[str, Snapshot] = {}
    for snapshot in recent_snapshots(context):
        if snapshot.record.session is not None:
            newest.setdefault(snapshot.record.session, snapshot)
    return newest


def names_in(context: Context, ref: str, directory: bytes) -> list[tuple[bytes, bool]]:
    """Returns the names in a directory of a snapshot, each with whether it is a directory."""
    from treesnap.core.ops.references import resolve_in
    from treesnap.core.ops.tree_state import entry_at

    with _looking(context) as session:
        trees = session.store.trees()
        entry = entry_at(trees, resolve_in(session, ref), directory)
        if not entry.is_directory:
            return []
        return [
            (item.name, item.is_directory)
            for item in trees.entries(entry.tree_id)
            if not item.is_skipped
        ]


@contextmanager
def _looking(context: Context) -> Iterator[Session]:
    """Opens the store for reading, and leaves the root as it is, an interrupted restore as well."""
    refuse_foreign(context)
    with Store.open(context.fs, context.store_path) as store:
        yield Session(context, store, store.root(os.fsencode(context.root)))
