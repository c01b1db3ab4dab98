"""Beginning an operation: opens the store, and finishes what a crash left in the root."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from treesnap.core.fs.durable import unlink_if_present
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.interruption import pause
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    NotFound,
    OperationFailed,
    StoreMissing,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.references import refuse_link
from treesnap.core.ops.trust import refuse_foreign
from treesnap.core.store.lock import inside, is_held, is_mover_waiting, is_nested
from treesnap.core.store.store import Store

if TYPE_CHECKING:
    from treesnap.core.ops.restore.recover import Recovery
    from treesnap.core.store.fence import CollectorHeld


@contextmanager
def opened(
    context: Context,
    doing: str,
    *,
    create: bool = False,
    writing: bool = False,
    recover: bool = True,
    sweep: bool = False,
    tells_steps: bool = True,
) -> Iterator[Session]:
    """Opens the store; finishes an interrupted restore of the root first.

    Unless the caller does that, warns of steps that were killed and are still to be gone back
    from. That costs one listing of the root's files. Operations that write, and others with
    ``sweep``, remove what killed restores to other directories left. Those that write also remove
    the displaced files that a killed process should have removed: another listing.

    While another process works in the root, there is nothing to recover yet. A restore that
    cannot be finished is only a warning: history can still be read, and operations that touch
    the tree try again and fail. Turns OSError into OperationFailed or StorageFull.
    """
    with _open_session(context, doing, create=create, writing=writing) as session:
        if recover and session.root.is_interrupted:
            with suppress(Busy), session.root.locked(doing, 0.0):
                _finish_if_possible(session)
        names = session.root.names()
        if (create or writing or sweep) and (exports := session.root.export_names(names)):
            from treesnap.core.ops.restore.export import sweep_exports

            sweep_exports(session, exports)
        if tells_steps and (recover or create or writing):  # a doctor lists them
            _tell(session, unfinished_steps(session, names))
        if create or writing:
            _sweep_displaced(session)
        yield session


class UnfinishedStep(NamedTuple):
    """A step that still has to be rolled back: its process was killed, or the roll-back failed."""

    checkpoint: Snapshot
    operation: str
    process_id: int
    """0 where the roll-back failed."""

    @property
    def code(self) -> WarningCode:
        """The code of the warning about it."""
        return WarningCode.STEP_KILLED if self.process_id else WarningCode.ROLL_BACK_FAILED

    def message(self, root: str) -> str:
        """Returns what happened, and where the way back leads."""
        what = f"Process {self.process_id} was killed" if self.process_id else "A roll-back failed"
        return (
            f"{what} in {quoted(root)}: {printable(self.operation)}. "
            f"What that did was not rolled back; the state before is {self.checkpoint.id[:12]}"
        )


def unfinished_steps(session: Session, names: Iterable[str]) -> list[UnfinishedStep]:
    """Returns the steps of the root that still have to be rolled back.

    Those of which the checkpoint is still there. ``names`` are the root's files. Plans tell of
    their own steps, which they can continue.
    """
    steps = []
    for identity, record in session.root.dead_holds(names).items():
        with suppress(NotFound, Corrupt):
            name = session.store.snapshots.listing(session.root.id).find(identity)
            if name is not None:
                checkpoint = session.store.snapshots.load(session.root.id, name)
                if checkpoint.record.kind == SnapshotKind.RUN:
                    steps.append(UnfinishedStep(checkpoint, record.operation, record.process_id))
    return steps


def is_unfinished(session: Session, checkpoint: Snapshot) -> bool:
    """Returns whether a snapshot is the checkpoint of a step that still has to be rolled back."""
    if checkpoint.record.kind != SnapshotKind.RUN:
        return False
    steps = unfinished_steps(session, session.root.names())
    return any(step.checkpoint.id == checkpoint.id for step in steps)


def _tell(session: Session, steps: Iterable[UnfinishedStep]) -> None:
    for step in steps:
        session.monitor.warn(step.code, step.message(session.context.root))


def tell_other_steps(session: Session, target: Snapshot, scope: tuple[bytes, ...] | None) -> None:
    """Warns of steps that still have to be rolled back, except one that a restore is about."""
    from treesnap.core.ops.checkpoint_locks import takes_back

    steps = unfinished_steps(session, session.root.names())
    if takes_back(target, scope):
        steps = [step for step in steps if step.checkpoint.id != target.id]
    _tell(session, steps)


@contextmanager
def exclusive_use(
    context: Context, doing: str, *, operation: str, recover: bool = True
) -> Iterator[tuple[Session, CollectorHeld]]:
    """Opens the store to write, with the collector's lock; raises Busy, and what opening raises.

    The lock is taken first: no process waits for it inside the gate.
    """
    from treesnap.core.store.fence import collector_held

    with _naming_lost_directories(context, doing):
        refuse_foreign(context)
        layout = Store.open(context.fs, context.store_path, writing=True).layout
        with (
            collector_held(context.fs, layout, operation=operation, wait_s=context.wait_s) as proof,
            opened(context, doing, writing=True, recover=recover) as session,
        ):
            yield session, proof


def _sweep_displaced(session: Session) -> None:
    """Removes displaced files that no process is about to remove; what fails is left."""
    with suppress(OSError):
        if session.store.displaced() and not is_held(session.fs, session.store.layout.background):
            remove_displaced(session)


def remove_displaced(session: Session) -> None:
    """Removes what restores displaced and left in the store; raises OSError."""
    from treesnap.core.worktree.apply.removal import remove_directories

    remove_directories(session.fs, session.store.displaced())


@contextmanager
def locked_root(session: Session, operation: str, *, touches_tree: bool = True) -> Iterator[None]:
    """Locks the root against other writers; finishes an interrupted restore first.

    What changes the history alone only warns of a restore that cannot be finished: that may wait
    for the room which it makes. Raises Refused when a symbolic link has taken the root's place.
    """
    refuse_link(session)
    with session.root.locked(operation, session.context.wait_s):
        if session.root.is_interrupted:
            if touches_tree:
                from treesnap.core.ops.restore.recover import recover_locked

                recover_locked(session)
            else:
                _finish_if_possible(session)
        yield


def _finish_if_possible(session: Session) -> None:
    """Finishes an interrupted restore, or warns why that is not possible."""
    from treesnap.core.ops.restore.recover import recover_locked

    try:
        recover_locked(session)
    except (TreesnapError, OSError) as error:
        session.monitor.warn(
            WarningCode.RESTORE_UNFINISHED,
            f"An interrupted restore could not be finished: {error}",
        )


def recover(context: Context) -> Recovery | None:
    """Finishes an interrupted restore; returns what was done, or None."""
    try:
        with _open_session(context, "finish an interrupted restore") as session:
            if not session.root.is_interrupted:
                return None
            from treesnap.core.ops.restore.recover import recover_locked

            with session.root.locked("recover", context.wait_s):
                return recover_locked(session)
    except StoreMissing:
        return None


_MOVER_FIRST_S = 1.0
"""How long a writer lets a mover go first. Most are inside for less."""
_PAUSE_S = 0.02
_NO_STORE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@contextmanager
def _entered(context: Context, *, create: bool, writing: bool) -> Iterator[Store]:
    """Opens the store; a writer is inside its gate.

    One that comes while a mover waits there stays outside until that was let in, but no longer
    than a moment: the mover may have been stopped.
    """
    fs, path = context.fs, context.store_path
    deadline = time.monotonic() + min(context.wait_s, _MOVER_FIRST_S)
    while True:
        with ExitStack() as stack:
            if create or writing:
                try:
                    stack.enter_context(inside(fs, path, context.wait_s))
                except OSError as error:  # nothing to enter yet, or opening the store says it
                    if error.errno not in _NO_STORE:
                        raise
            store = stack.enter_context(Store.open(fs, path, create=create, writing=writing))
            may_act = store.was_moving and (create or writing) and not is_nested()
            is_awaited = may_act and is_mover_waiting(fs, store.layout)
            if not is_awaited or time.monotonic() >= deadline:
                if may_act and not is_awaited:  # what a killed move left
                    unlink_if_present(fs, store.layout.moving)
                yield store
                return
        pause(_PAUSE_S)


@contextmanager
def _open_session(
    context: Context, doing: str, *, create: bool = False, writing: bool = False
) -> Iterator[Session]:
    """Opens the store; does not finish an interrupted restore.

    Who writes is inside the gate of the store until the session ends. Takes over the history of
    a root that was moved here. Turns OSError into OperationFailed or StorageFull.
    """
    with _naming_lost_directories(context, doing), ExitStack() as stack:
        refuse_foreign(context, create=create)
        store = stack.enter_context(_entered(context, create=create, writing=writing))
        store.wait_s = context.wait_s
        if store.is_new:
            stack.enter_context(inside(context.fs, context.store_path, context.wait_s))
        if store.is_new:
            context.monitor.warn(WarningCode.STORE_MADE, f"Made the store {printable(store.path)}")
        session = Session(context, store, store.root(os.fsencode(context.root)))
        if session.root.record is None:
            session = _where_root_was(session, writing=create or writing)
        yield session


@contextmanager
def _naming_lost_directories(context: Context, doing: str) -> Iterator[None]:
    """Turns OSError into OperationFailed or StorageFull, or Corrupt if a directory is gone."""
    try:
        with translating_os_errors(doing):
            yield
    except OperationFailed as error:
        path = context.store_path
        lost = Store(context.fs, path).lost_directories() if error.errno == errno.ENOENT else ()
        if lost:
            raise Corrupt(
                f"The store at {quoted(path)} has no directory {quoted(lost[0])}", path=path
            ) from error
        raise


def _where_root_was(session: Session, *, writing: bool) -> Session:
    """Takes over the history of a root that was moved here, if there is one.

    Otherwise warns of what is likely: that another root was moved here, or this one away.
    """
    from treesnap.core.store.roots import find_moved

    context, store = session.context, session.store
    moved = find_moved(context.fs, store.layout, session.root.path)
    if moved is None:
        away = session.root.moved_to if not context.has_root() else None
        if away is not None:
            context.monitor.warn(
                WarningCode.ROOT_MOVED,
                f"The root {quoted(context.root)} was moved to {quoted(away)}",
            )
        return session
    old, new = quoted(moved.record.path), quoted(context.root)
    if not moved.is_certain:
        if session.reaches(moved.record.id):
            context.monitor.warn(
                WarningCode.ROOT_MAY_HAVE_MOVED,
                f"This may be the root {old}, moved",
            )
        return session
    root = store.root_by_id(moved.record.id, moved.record.path)
    try:
        with root.locked("move", context.wait_s):
            if root.path == moved.record.path:  # else another process was faster
                root.move(os.fsencode(context.root))
                context.monitor.warn(
                    WarningCode.ROOT_MOVED,
                    f"The root {old} was moved to {new}: its history too",
                )
    except OSError as error:
        if writing:
            raise
        context.monitor.warn(
            WarningCode.ROOT_MOVED, f"The root {old} was moved to {new}; not recorded: {error}"
        )
        root.path = os.fsencode(context.root)
        return session._replace(root=root)
    return session._replace(root=store.root(os.fsencode(context.root)))
