"""Opening a handle's store for one operation, and the reading side of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from treesnap.codec.envelope import FileKind
from treesnap.codec.reader import TreeReader, check_object
from treesnap.errors import Busy, Corrupt, ErrorCode, NotFound, TreesnapError, shown
from treesnap.fs.failure import reported
from treesnap.model import Entry, ObjectId, ObjectKind, Snapshot, SnapshotId
from treesnap.store.roots import Root
from treesnap.store.store import Store
from treesnap.treepath import components

if TYPE_CHECKING:
    from treesnap.codec.journal import Journal
    from treesnap.ops.handle import Handle


class Opened(NamedTuple):
    """A store, and the handle's root in it, for the length of one operation."""

    store: Store
    root: Root


@contextmanager
def opened(
    handle: Handle,
    doing: str,
    *,
    create: bool = False,
    writing: bool = False,
    recover: bool = True,
    sweep: bool = False,
) -> Iterator[Opened]:
    """Opens the store; finishes an interrupted restore of the root first.

    Operations that write, and others with ``sweep``, remove what killed restores to
    other directories left. It costs them one listing of the root's files.

    When another process is at work in the root, there is nothing to recover yet.
    When the restore cannot be finished, that is a remark: history can be looked at
    all the same, and whatever touches the tree tries again and fails.
    OSError leaves as OperationFailed or StorageFull.
    """
    with (
        reported(doing),
        Store.open(handle.fs, handle.store_path, create=create, writing=writing) as store,
    ):
        if store.is_new:
            handle.monitor.remark(f"Made the store {shown(store.path)}")
        pair = Opened(store, store.root(os.fsencode(handle.root)))
        if pair.root.record is None:
            pair = _where_root_was(handle, pair, writing=create or writing)
        if recover and pair.root.is_interrupted:
            from treesnap.ops.recover import recover_locked

            try:
                with pair.root.locked(doing, 0.0):
                    recover_locked(handle, pair)
            except Busy:
                pass
            except (TreesnapError, OSError) as error:
                handle.monitor.remark(f"An interrupted restore could not be finished: {error}")
        if create or writing or sweep:
            _sweep_exports(handle, pair)
        yield pair


def _where_root_was(handle: Handle, pair: Opened, *, writing: bool) -> Opened:
    """Takes the history over of a root that was moved to the handle's path, if there is one.

    Otherwise says what the caller may have missed: that it was perhaps moved here, or away.
    """
    from treesnap.store.roots import find_moved

    store = pair.store
    moved = find_moved(handle.fs, store.layout, pair.root.path)
    if moved is None:
        away = pair.root.moved_to if not os.path.lexists(handle.root) else None
        if away is not None:
            handle.monitor.remark(f"The root {shown(handle.root)!r} was moved to {shown(away)!r}")
        return pair
    old, new = shown(moved.record.path), shown(handle.root)
    if not moved.is_certain:
        handle.monitor.remark(
            f"This may be the root {old!r}, moved: 'snap root move {old}' takes its history over"
        )
        return pair
    root = store.root_by_id(moved.record.id, moved.record.path)
    try:
        with root.locked("move", handle.wait_s):
            if root.path == moved.record.path:  # else another process was faster
                root.move(os.fsencode(handle.root))
                handle.monitor.remark(f"The root {old!r} was moved to {new!r}: its history too")
    except OSError as error:
        if writing:
            raise
        handle.monitor.remark(f"The root {old!r} was moved to {new!r}; not noted: {error}")
        root.path = os.fsencode(handle.root)
        return Opened(store, root)
    return Opened(store, store.root(os.fsencode(handle.root)))


def _sweep_exports(handle: Handle, pair: Opened) -> None:
    names = pair.root.export_names()
    if names:
        from treesnap.ops.export import sweep_exports

        sweep_exports(handle, pair, names)


def read_journal(root: Root) -> Journal | None:
    """Returns the journal of a root, or None when there is none.

    Raises Corrupt, for a journal that was copied from another root too: what it says of that
    one's metadata and files would be done to this one.
    """
    from treesnap.codec.journal import decode_journal

    payload = root.read("journal", FileKind.JOURNAL)
    if payload is None:
        return None
    journal = decode_journal(payload)
    if journal.root_id != root.id:
        path = root.file("journal")
        raise Corrupt(
            f"The journal {shown(path)!r} of an interrupted restore is of another root",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=path,
        )
    return journal


def needed_snapshots(root: Root) -> frozenset[SnapshotId]:
    """Returns the snapshots without which an interrupted restore could not be finished."""
    journal = read_journal(root)
    commit = journal.commit if journal is not None else None
    return frozenset({commit.target_id, commit.safety_id} if commit is not None else ())


def _refuse_link(handle: Handle, pair: Opened) -> None:
    """Raises Refused for a link in the place of a root with a history.

    What the link leads to is another root. If that has a history of its own, it is meant.
    """
    if handle.given_root == handle.root or pair.root.is_registered():
        return
    if pair.store.root(os.fsencode(handle.given_root)).is_registered():
        from treesnap.ops.places import replaced_by_link

        raise replaced_by_link(handle)


@contextmanager
def locked_root(handle: Handle, pair: Opened, operation: str) -> Iterator[None]:
    """Keeps other writers of the root out; recovers what they left behind first.

    Raises Refused when a link has taken the root's place.
    """
    _refuse_link(handle, pair)
    with pair.root.locked(operation, handle.wait_s):
        if pair.root.is_interrupted:
            from treesnap.ops.recover import recover_locked

            recover_locked(handle, pair)
        yield


def trees_of(store: Store) -> TreeReader:
    """Returns a reader of the store's trees."""
    return TreeReader(store.get)


def entry_at(trees: TreeReader, snapshot: Snapshot, path: bytes) -> Entry:
    """Returns the entry of a path in a snapshot, or raises NotFound."""
    entry: Entry | None = snapshot.record.root
    for name in components(path):
        entry = (
            trees.lookup(entry.tree_id, name) if entry is not None and entry.is_directory else None
        )
        if entry is None:
            break
    if entry is None or entry.is_skipped:
        raise NotFound(
            f"Snapshot {snapshot.id[:12]} does not hold {shown(path)!r}",
            code=ErrorCode.PATH_NOT_FOUND,
            path=path,
        )
    return entry


class MemoryObjects:
    """Takes objects without storing them; keeps trees and lists, so that they can be read.

    For comparing a live tree with a snapshot: nothing reaches the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[ObjectId, bytes] = {}

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Returns an object's id; keeps its bytes unless they are file content.

        Raises InvalidArgument for one that could not be stored.
        """
        from treesnap.hashing import object_id

        check_object(kind, data)
        identity = object_id(kind, data)
        if kind != ObjectKind.CHUNK or len(data) <= 4096:
            self._kept[identity] = data
        return identity

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        """Returns an object that was kept, or one of the store."""
        kept = self._kept.get(identity)
        return kept if kept is not None else self._store.get(kind, identity)
