"""Metadata files of a store: what is wrong with them, and what mends each.

Files that can be deleted (stat caches, slots, pending snapshots, export records) are not
checked: an operation that meets a damaged one does without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

from treesnap.core.codec.envelope import Format
from treesnap.core.codec.root_files import GAPS, HISTORY, PLAN_PAYLOAD
from treesnap.core.codec.snapshot import state_format
from treesnap.core.fs.durable import is_there, read_file
from treesnap.core.model.errors import Corrupt, NewerVersion, TreesnapError, quoted
from treesnap.core.model.events import Monitor
from treesnap.core.model.ids import root_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import Problem
from treesnap.core.model.snapshots import SnapshotId, SnapshotKind, SnapshotState
from treesnap.core.model.type_names import Any
from treesnap.core.store.collector import oldest_epoch_possible, read_state, rebuild_state
from treesnap.core.store.layout import PLAN_PREFIX, is_hex, root_names
from treesnap.core.store.lock import held, locked_roots
from treesnap.core.store.quarantine import Quarantine
from treesnap.core.store.records import read_record
from treesnap.core.store.roots import (
    Root,
    RootRecord,
    copied_record,
    needed_snapshots,
    recorded_root,
)
from treesnap.core.store.store import Store, format_problem

Mend = Callable[[Store], str | None]
"""Mends a file and returns what was done, or None when there is nothing to mend any more."""


class Finding(NamedTuple):
    """A damaged file, and what mends it."""

    problem: Problem
    mend: Mend


def _finding(code: str, message: str, where: str, mend: Mend, *snapshot_ids: SnapshotId) -> Finding:
    problem = Problem(code=code, message=message, where=where, snapshot_ids=snapshot_ids)
    return Finding(problem, mend)


class _Sort(NamedTuple):
    """A kind of file that a root can do without."""

    format: Format[Any]
    code: str
    what: str
    consequence: str


_HISTORY = _Sort(HISTORY, "bad-history", "a history of restores", "'undo' and 'redo' find nothing")
_GAPS = _Sort(
    GAPS,
    "bad-gaps",
    "a list of what was not captured",
    "steps of agents that were not captured are not shown",
)
_PLAN = _Sort(PLAN_PAYLOAD, "bad-plan", "a plan", "the plan cannot be resumed or rolled back")


class CheckPlace(NamedTuple):
    """Inputs of a check besides the store."""

    root: bytes
    """Path of the root from which it was asked; the store may not know it otherwise."""
    monitor: Monitor
    wait_s: float
    """How long a repair waits for the lock of a root."""


class MetadataFiles:
    """Checks the metadata files of a store."""

    def __init__(self, store: Store, place: CheckPlace) -> None:
        self._place = place
        self._fs = store.fs
        self._store = store
        self._layout = store.layout
        self.newer: list[str] = []
        """Files of a newer version that :meth:`findings` came to, by path in the store."""

    def findings(self) -> Iterator[Finding]:
        """Yields what is damaged."""
        yield from self._format()
        yield from self._collector()
        yield from self._states()
        named = [*root_names(self._fs, self._layout.roots), *self._store.snapshots.root_ids()]
        for name in sorted(set(named)):
            yield from self._root(name)

    def _format(self) -> Iterator[Finding]:
        reason = format_problem(read_file(self._fs, self._layout.format, 1 << 16))
        if reason is not None:
            yield _finding("bad-format", reason, "format", lambda store: store.rewrite_format())

    def _collector(self) -> Iterator[Finding]:
        where = os.path.relpath(self._layout.collector_state, self._store.path)
        try:
            needed = oldest_epoch_possible(self._fs, self._layout)
            if read_state(self._fs, self._layout).epoch >= needed:
                return
            message = "The collector state is older than a writer that is at work"
        except NewerVersion:
            self.newer.append(where)
            return
        except Corrupt as error:
            message = error.message
        yield _finding("bad-collector", message, where, rebuild_state)

    def _states(self) -> Iterator[Finding]:
        """Looks at pins and counts. A state without its snapshot proves that one was lost."""
        states = [name for name in self._fs.list_names(self._layout.states) if is_hex(name, 64)]
        snapshots = {name.id for _, name in self._store.snapshots.all_names() if name.id in states}
        for name in states:
            identity = SnapshotId(name)
            path = self._layout.state(identity)
            where = f"states/{name}"
            message = None
            try:
                if read_record(self._fs, path, state_format(identity)) is None:
                    continue
            except NewerVersion:
                self.newer.append(where)
                continue
            except Corrupt as error:
                message = f"{error.message}: the snapshot counts as pinned"
            if identity not in snapshots:
                if _is_going(self._store, identity):
                    continue
                mend = _taking_lost(identity)
                gone = f"Snapshot {identity} is gone, but was not deleted"
                yield _finding("lost-snapshot", gone, where, mend, identity)
            elif message is not None:
                mend = _pinning(identity)
                yield _finding("bad-state", message, where, mend, identity)

    def _root(self, name: str) -> Iterator[Finding]:
        path = self._layout.root_file(name, "root")
        where = f"roots/{name}/root"
        recorded = reason = None
        is_newer = False
        # Before the record is read: a root has its record before its first snapshot.
        had_snapshots = self._has_snapshots(name)
        try:
            recorded = recorded_root(self._fs, self._layout, name)
        except NewerVersion:
            self.newer.append(where)
            is_newer = True
        except Corrupt as error:
            reason = error.message
        record = recorded or self._record_of(name)
        if recorded is not None and self._store.root(recorded.path).id != name:
            message = f"The root {quoted(recorded.path)} is not found at its path"
            yield _finding("bad-root", message, where, _registering(name, recorded))
        # Without snapshots a missing record comes from a killed command, or from one that forgot
        # the root meanwhile, and is not damage.
        is_absent = recorded is None and reason is None and not is_newer
        if is_absent and had_snapshots and self._has_snapshots(name):
            reason = f"File {quoted(path)} is missing"
        if reason is not None:
            yield _finding("bad-root", reason, where, _registering(name, record))
        yield from self._root_files(name)
        if record is not None:
            yield from self._journal(self._store.root_by_id(name, record.path))

    def _has_snapshots(self, name: str) -> bool:
        return bool(self._store.snapshots.names(name))

    def _record_of(self, name: str) -> RootRecord | None:
        """Returns what a damaged record said, from a copy or from the snapshots."""
        copy = copied_record(self._fs, self._layout, name)
        if copy is not None:
            return copy
        path = self._path_of(name)
        return RootRecord(id=name, path=path) if path is not None else None

    def _path_of(self, name: str) -> bytes | None:
        for snapshot_name in self._store.snapshots.names(name):
            try:
                record = self._store.snapshots.load(name, snapshot_name).record
            except TreesnapError:
                continue
            if root_id(record.root_path) == name:
                return record.root_path
        own = self._place.root
        return own if root_id(own) == name else None

    def _root_files(self, name: str) -> Iterator[Finding]:
        """Looks at the history, the gaps and the plans of a root.

        The layer ``plans`` knows all of a plan.
        """
        yield from self._root_file(name, "history", _HISTORY)
        yield from self._root_file(name, "gaps", _GAPS)
        with suppress(FileNotFoundError):
            for file_name in self._fs.list_names(self._layout.root_directory(name)):
                if file_name.startswith(PLAN_PREFIX) and "." not in file_name:
                    yield from self._root_file(name, file_name, _PLAN)

    def _root_file(self, name: str, file_name: str, sort: _Sort) -> Iterator[Finding]:
        path = self._layout.root_file(name, file_name)
        try:
            read_record(self._fs, path, sort.format)
        except NewerVersion:
            self.newer.append(f"roots/{name}/{file_name}")
        except Corrupt as error:
            message = f"{error.message}: {sort.consequence}"
            mend = _taking(name, file_name, sort, self._place.wait_s)
            yield _finding(sort.code, message, f"roots/{name}/{file_name}", mend)

    def _journal(self, root: Root) -> Iterator[Finding]:
        try:
            reason = _why_unfinishable(self._store, root)
        except NewerVersion:  # it, or a snapshot that it needs
            self.newer.append(f"roots/{root.id}/journal")
            return
        if reason is not None:
            message = (
                f"A restore of {quoted(root.path)} was interrupted and cannot be finished: {reason}"
            )
            mend = _forgetting(self._place.wait_s, root.id, root.path)
            yield _finding("bad-journal", message, f"roots/{root.id}/journal", mend)


def _why_unfinishable(store: Store, root: Root) -> str | None:
    """Returns why no recovery of a root can work, or None.

    Raises NewerVersion where another treesnap can judge that, and this one cannot.
    """
    try:
        needed = needed_snapshots(root)
        names = {name.id: name for name in store.snapshots.names(root.id)}
        for identity in sorted(needed):
            try:
                store.snapshots.load(root.id, names[identity])
            except NewerVersion:
                raise
            except (KeyError, TreesnapError):
                if needed_snapshots(root) == needed:  # the restore may have ended meanwhile
                    return f"snapshot {identity[:12]}, which it needs, is gone or damaged"
    except NewerVersion:
        raise
    except Corrupt as error:
        return error.message
    return None


def _taking(name: str, file_name: str, sort: _Sort, wait_s: float) -> Mend:
    """Returns what moves one of a root's files to quarantine, if it is damaged by then."""

    def mend(store: Store) -> str | None:
        root = store.root_by_id(name)
        with _files_locked(store, root, sort, wait_s):
            try:
                root.read(file_name, sort.format)
                return None
            except NewerVersion:
                return None
            except Corrupt:
                return _taken(store, root.file(file_name), sort.what)

    return mend


def _files_locked(
    store: Store, root: Root, sort: _Sort, wait_s: float
) -> AbstractContextManager[object]:
    """Returns the lock under which files of a sort are written."""
    if sort is _PLAN:
        return root.attachments_locked("verify")
    if sort is _GAPS:
        path, what = root.file("gaps-lock"), "The list of gaps"
        return held(store.writing_fs, path, operation="verify", what=what, wait_s=wait_s)
    return root.locked("verify", wait_s)


def _is_going(store: Store, identity: SnapshotId) -> bool:
    """Returns whether a state without a snapshot goes, or is gone: its root is being forgotten.

    In this order, because the state goes before the directory that says so.
    """
    forgotten = (name for _, names in store.snapshots.forgotten() for name in names)
    if any(name.id == identity for name in forgotten):
        return True
    return not is_there(store.fs, store.layout.state(identity))


def _taking_lost(identity: SnapshotId) -> Mend:
    """Returns what moves the state of a lost snapshot to quarantine, unless that is back."""

    def mend(store: Store) -> str | None:
        with locked_roots(store.writing_fs, store.layout):
            if any(name.id == identity for _, name in store.snapshots.all_names()):
                return None
            if _is_going(store, identity):
                return None
            return _taken(store, store.layout.state(identity), "the state of a lost snapshot")

    return mend


def _taken(store: Store, path: str, what: str) -> str | None:
    try:
        target = Quarantine(store.writing_fs, store.layout).take(path)
    except FileNotFoundError:
        return None
    return f"Moved {what} to {target}"


def _pinning(identity: SnapshotId) -> Mend:
    """Returns what replaces the state of a snapshot by a pin, if it is damaged by then."""

    def mend(store: Store) -> str | None:
        path = store.layout.state(identity)
        with locked_roots(store.writing_fs, store.layout):
            try:
                read_record(store.fs, path, state_format(identity))
                return None
            except NewerVersion:
                return None
            except Corrupt:
                pass
            kept = Quarantine(store.writing_fs, store.layout).keep_copy(path)
            store.snapshots.write_state(identity, SnapshotState(pinned=True))
        old = f"; the old state is {kept}" if kept else ""
        return f"Pinned snapshot {identity[:12]}, because it may have been{old}"

    return mend


def _registering(name: str, known: RootRecord | None) -> Mend:
    def mend(store: Store) -> str | None:
        root = store.root_by_id(name, known.path if known is not None else b"")
        if not root.repair(known):
            return None
        if known is None:
            return f"Removed the record of root {name}, of which the store has nothing"
        return f"Rewrote the record of the root {quoted(known.path)}"

    return mend


def _forgetting(wait_s: float, name: str, path: bytes) -> Mend:
    def mend(store: Store) -> str | None:
        """Moves a journal away that cannot be followed, and pins the state before it."""
        root = store.root_by_id(name, path)
        with root.locked("verify", wait_s):
            if _why_unfinishable(store, root) is None:
                return None
            safety = _newest_safety(store, root)
            if safety is not None:
                store.snapshots.change_state(safety, lambda state: state._replace(pinned=True))
            try:
                target = Quarantine(store.writing_fs, store.layout).take(root.file("journal"))
            except FileNotFoundError:
                return None
        before = (
            f"the state before it is probably snapshot {safety[:12]}, which is pinned now"
            if safety is not None
            else "there is no snapshot of the state before it"
        )
        return (
            f"Gave up the interrupted restore of {quoted(path)}: its files stay as they are, "
            "some may be old and some new, and what it kept aside stays in the directory "
            f"'.treesnap-restore-...' there; {before}; the journal is {target}"
        )

    return mend


def _newest_safety(store: Store, root: Root) -> SnapshotId | None:
    for name in store.snapshots.names(root.id):
        try:
            snapshot = store.snapshots.load(root.id, name)
        except TreesnapError:
            continue
        if snapshot.record.kind == SnapshotKind.SAFETY:
            return snapshot.id
    return None
