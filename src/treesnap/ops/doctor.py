"""``doctor``: what was interrupted in a store, and what becomes of it.

Looks only: nothing is finished, taken back or removed, unless the caller asks to
forget the restore of the handle's own root.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from treesnap.codec.journal import Journal
from treesnap.errors import Busy, Corrupt, NotFound, StoreMissing, TreesnapError
from treesnap.events import NullMonitor
from treesnap.ops.access import Opened, opened, read_journal
from treesnap.ops.recover import look_at
from treesnap.ops.rescue import rescue
from treesnap.ops.standing import Standing
from treesnap.results import DoctorResult, Unfinished, Work
from treesnap.store.collector import read_state
from treesnap.store.roots import registered_roots
from treesnap.store.store import Store
from treesnap.worktree.directory import OPEN_DIRECTORY
from treesnap.worktree.staging import remove_stages

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_TO_CLEAN_UP = "the next command on this root removes what it had prepared; the tree is as before"
_TO_COLLECT = "the next 'gc' goes on with it; no other command is kept from anything"
_TO_SWEEP = "the next command that writes, or 'status', removes what it had prepared"


def doctor(handle: Handle, *, forget: bool = False) -> DoctorResult:
    """Looks at all roots of the store; see :meth:`treesnap.Handle.doctor`."""
    try:
        with opened(handle, "look for unfinished work", writing=forget, recover=False) as pair:
            forgotten = forget and _forget(handle, pair)
            found = [
                work
                for path in registered_roots(handle.fs, pair.store.layout)
                for work in _of_root(handle, pair.store, path)
            ]
            unfinished = (*found, *_collection(handle, pair.store))
    except StoreMissing:
        unfinished, forgotten = (), False
    return DoctorResult(unfinished=unfinished, looked_at_ns=handle.clock_ns(), forgotten=forgotten)


def _of_root(handle: Handle, store: Store, path: bytes) -> list[Unfinished]:
    """Returns what is unfinished in one root; what is under way just now is not."""
    pair = Opened(store, store.root(path))
    found = []
    for name in pair.root.export_names():
        record = pair.root.abandoned_export(name)
        if record is not None:
            with record:
                found.append(Unfinished(work=Work.EXPORT, root=path, outlook=_TO_SWEEP))
    if pair.root.is_interrupted:
        try:
            with pair.root.locked("doctor", 0.0):
                found += _restore(handle, pair, path)
        except Busy:
            pass
    return found


def _restore(handle: Handle, pair: Opened, path: bytes) -> list[Unfinished]:
    try:
        journal = read_journal(pair.root)
        if journal is None:
            return []
    except Corrupt as error:
        outlook = f"its journal is damaged, and the root waits until it is forgotten: {error}"
        return [Unfinished(work=Work.RESTORE, root=path, outlook=outlook, blocked=True)]
    standings: dict[bytes, Standing] = {}
    reason = None
    try:
        looked, standings = look_at(_handle_on(handle, path), pair, journal)
        outlook = looked or _TO_CLEAN_UP
    except (TreesnapError, OSError) as error:
        reason = str(error)
        outlook = f"it cannot be finished yet: {reason}"
    commit = journal.commit
    return [
        Unfinished(
            work=Work.RESTORE,
            root=path,
            outlook=outlook,
            blocked=reason is not None,
            started_at_ns=journal.started_at_ns,
            target_id=commit.target_id if commit else None,
            safety_id=commit.safety_id if commit else None,
            paths=len(commit.paths) if commit else 0,
            done=sum(standing == Standing.DONE for standing in standings.values()),
            changed=tuple(
                path for path, standing in standings.items() if standing == Standing.CHANGED
            ),
        )
    ]


def _handle_on(handle: Handle, path: bytes) -> Handle:
    """Returns a handle on another root of the same store, which says nothing."""
    from treesnap.ops.handle import Handle as AnyHandle

    return AnyHandle(
        root=path, store_path=handle.store_path, fs=handle.fs, monitor=NullMonitor(), wait_s=0.0
    )


def _collection(handle: Handle, store: Store) -> list[Unfinished]:
    try:
        is_open = bool(read_state(handle.fs, store.layout).condemned)
    except TreesnapError as error:
        outlook = f"its state is damaged: {error}"
        return [Unfinished(work=Work.COLLECTION, outlook=outlook, blocked=True)]
    return [Unfinished(work=Work.COLLECTION, outlook=_TO_COLLECT)] if is_open else []


def _forget(handle: Handle, pair: Opened) -> bool:
    """Removes the journal of the handle's root, and its staging directory where that is there.

    Both states are in snapshots, and so is what is of neither; the tree stays as it was found.
    """
    if not pair.root.is_interrupted:
        return False
    with pair.root.locked("doctor", handle.wait_s):
        journal = _readable(pair)
        if journal is not None and os.path.isdir(handle.root):
            _clear_stage(handle, pair, journal)
        pair.root.remove("journal")
    return True


def _clear_stage(handle: Handle, pair: Opened, journal: Journal) -> None:
    """Removes the staging directory, but not while it may hold what no snapshot has."""
    if journal.commit is not None:
        try:
            rescue(handle, pair, journal)
        except (NotFound, Corrupt) as error:
            stage = os.path.join(handle.root, os.fsdecode(journal.stage_name))
            handle.monitor.remark(f"What was put aside stays in {stage!r}: {error.message}")
            return
    root_fd = handle.fs.open(handle.root, OPEN_DIRECTORY)
    try:
        remove_stages(handle.fs, root_fd, journal.stage_name, journal.stage_tops)
    finally:
        handle.fs.close(root_fd)


def _readable(pair: Opened) -> Journal | None:
    try:
        return read_journal(pair.root)
    except Corrupt:
        return None
