"""``doctor``: what was interrupted in a store, and how it will be resolved.

Reports only: nothing is finished, undone or removed, unless the caller asks to forget
the restore of this root. What its file system does is found out where that is asked.
"""

from __future__ import annotations

import os
from contextlib import suppress

from treesnap.core.codec.journal import Journal
from treesnap.core.fs import system_parts
from treesnap.core.fs.native import implementation
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.fs.real_path import open_real
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    NotFound,
    StoreMissing,
    TreesnapError,
    WarningCode,
    quoted,
)
from treesnap.core.model.results import (
    DoctorResult,
    FileSystemCapabilities,
    InterruptedWork,
    WorkKind,
)
from treesnap.core.ops.access import opened, unfinished_steps
from treesnap.core.ops.context import Context, Session, context_at
from treesnap.core.ops.maintenance.space import failure_in_background
from treesnap.core.ops.restore.path_state import PathState
from treesnap.core.ops.restore.preserve import preserve_foreign_edits
from treesnap.core.ops.restore.recover import look_at
from treesnap.core.store.collector import read_state
from treesnap.core.store.lock import kept_free
from treesnap.core.store.roots import read_journal, registered_roots
from treesnap.core.store.store import Store
from treesnap.core.worktree.apply.capabilities import capabilities_of
from treesnap.core.worktree.apply.stage import remove_stages

_TO_CLEAN_UP = "the next command on this root removes what it had prepared; the tree is as before"
_TO_COLLECT = "the next 'gc' goes on with it; no other command is kept from anything"
_TO_MAINTAIN = "it failed in the background, and is tried again when it is due"
_TO_GO_BACK = "'restore {}' goes back, 'create' or 'doctor --forget' keeps what there is"
_TO_SWEEP = "the next command that writes, or 'status', removes what it had prepared"


def doctor(context: Context, *, forget: bool = False, file_system: bool = False) -> DoctorResult:
    """Looks at all roots of the store; see :meth:`treesnap.Handle.doctor`."""
    try:
        with opened(context, "look for unfinished work", writing=forget, recover=False) as session:
            forgotten = forget and _forget(session)
            of_roots = [
                work
                for path in registered_roots(context.fs, session.store.layout)
                for work in _of_root(context, session.store, path)
            ]
            store = session.store
            unfinished = (*of_roots, *_collection(context, store), *_maintenance(store))
    except StoreMissing:
        unfinished, forgotten = (), False
    return DoctorResult(
        unfinished=unfinished,
        looked_at_ns=context.clock_ns(),
        forgotten=forgotten,
        implementation=implementation(),
        system=system_parts(),
        capabilities=_capabilities(context) if file_system else None,
    )


def _capabilities(context: Context) -> FileSystemCapabilities:
    with translating_os_errors("find out what the file system does"):
        root_fd = open_real(context.fs, context.root)
        try:
            return capabilities_of(context.fs, root_fd)
        finally:
            context.fs.close(root_fd)


def _of_root(context: Context, store: Store, path: bytes) -> list[InterruptedWork]:
    """Returns what was interrupted in one root, without what is still under way."""
    session = Session(context, store, store.root(path))
    names = session.root.names()
    unfinished = [
        InterruptedWork(
            work=WorkKind.STEP,
            root=path,
            resolution=(
                f"{step.message(os.fsdecode(path))}. {_TO_GO_BACK.format(step.checkpoint.id[:12])}"
            ),
            blocked=True,
            started_at_ns=step.checkpoint.record.created_at_ns,
            target_id=step.checkpoint.id,
        )
        for step in unfinished_steps(session, names)
    ]
    for name in session.root.export_names(names):
        record = session.root.abandoned_export(name)
        if record is not None:
            with record:
                unfinished.append(
                    InterruptedWork(work=WorkKind.EXPORT, root=path, resolution=_TO_SWEEP)
                )
    if session.root.is_interrupted:
        try:
            with session.root.locked("doctor", 0.0):
                unfinished += _restore(session, path)
        except Busy:
            pass
    return unfinished


def _restore(session: Session, path: bytes) -> list[InterruptedWork]:
    try:
        journal = read_journal(session.root)
        if journal is None:
            return []
    except Corrupt as error:
        resolution = f"its journal is damaged, and the root waits until it is forgotten: {error}"
        return [
            InterruptedWork(work=WorkKind.RESTORE, root=path, resolution=resolution, blocked=True)
        ]
    states: dict[bytes, PathState] = {}
    reason = None
    try:
        looked, states = look_at(session._replace(context=_quiet(session.context, path)), journal)
        resolution = looked or _TO_CLEAN_UP
    except (TreesnapError, OSError) as error:
        reason = str(error)
        resolution = f"it cannot be finished yet: {reason}"
    commit = journal.commit
    return [
        InterruptedWork(
            work=WorkKind.RESTORE,
            root=path,
            resolution=resolution,
            blocked=reason is not None,
            started_at_ns=journal.started_at_ns,
            target_id=commit.target_id if commit else None,
            safety_id=commit.safety_id if commit else None,
            paths=len(commit.paths) if commit else 0,
            done=sum(state == PathState.DONE for state in states.values()),
            changed=tuple(path for path, state in states.items() if state == PathState.CHANGED),
        )
    ]


def _collection(context: Context, store: Store) -> list[InterruptedWork]:
    """Returns the collection that was interrupted; one that is at work holds its lock."""
    try:
        with kept_free(context.fs, store.layout.collector_lock) as is_free:
            is_open = bool(read_state(context.fs, store.layout).condemned) and is_free
    except TreesnapError as error:
        resolution = f"its state is damaged: {error}"
        return [InterruptedWork(work=WorkKind.COLLECTION, resolution=resolution, blocked=True)]
    return [InterruptedWork(work=WorkKind.COLLECTION, resolution=_TO_COLLECT)] if is_open else []


def _maintenance(store: Store) -> list[InterruptedWork]:
    failure = failure_in_background(store)
    if failure is None:
        return []
    resolution = f"{_TO_MAINTAIN}: {failure}"
    return [InterruptedWork(work=WorkKind.MAINTENANCE, resolution=resolution)]


def _forget(session: Session) -> bool:
    """Removes the journal of the session's root, and its staging directory if there is one.

    Snapshots hold both states, and foreign edits; the tree stays as it is. So it does after steps
    that were killed.
    """
    is_killed = bool(unfinished_steps(session, session.root.names()))
    if not (session.root.is_interrupted or is_killed):
        return False
    with session.root.locked("doctor", session.context.wait_s):
        session.root.forget_dead_holds()
        if not session.root.is_interrupted:
            return True
        journal = None
        with suppress(Corrupt):
            journal = read_journal(session.root)
        if journal is not None and os.path.isdir(session.context.root):
            _clear_stage(session, journal)
        session.root.remove("journal")
    return True


def _clear_stage(session: Session, journal: Journal) -> None:
    """Removes the staging directory, but not while it may hold what no snapshot has."""
    if journal.commit is not None:
        try:
            preserve_foreign_edits(session, journal)
        except (NotFound, Corrupt) as error:
            stage = os.path.join(session.context.root, os.fsdecode(journal.stage_name))
            session.monitor.warn(
                WarningCode.NOT_CLEANED_UP,
                f"What was put aside stays in {quoted(stage)}: {error.message}",
            )
            return
    root_fd = open_real(session.fs, session.context.root)
    try:
        remove_stages(session.fs, root_fd, journal.stage_name, journal.stage_tops)
    finally:
        session.fs.close(root_fd)


def _quiet(context: Context, path: bytes) -> Context:
    """Returns the context of another root of the same store, with no monitor."""
    return context_at(os.fsdecode(path), context.store_path, fs=context.fs, wait_s=0.0)
