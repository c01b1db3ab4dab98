"""Claims: a checkpoint stays while a process may go back to it, alone over its paths."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from enum import StrEnum

from treesnap.core import own_program
from treesnap.core.codec.root_files import HoldRecord
from treesnap.core.fs.os_errors import error_text
from treesnap.core.fs.processes import parent_of, process_namespace
from treesnap.core.fs.real_path import opened_real
from treesnap.core.interruption import pause
from treesnap.core.model.errors import Busy, HeldByMount, StorageFull, WarningCode, quoted
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.model.treepath import is_within
from treesnap.core.model.type_names import TypeVar
from treesnap.core.ops.context import Context, Session, own_marks
from treesnap.core.store.layout import Layout
from treesnap.core.store.records import LockedRecord
from treesnap.core.store.reserve import Reserve

MARK_DIGITS = 16
"""Of the id of a checkpoint, which is one of the words between slashes of a mark."""
_PAUSE_S = 0.05
_REASON_MAX = 2000
"""Characters of what is noted of a roll-back that failed."""
_ROOT_ROOM_BYTES = 256 << 10
"""What has to be free beside the tree: a restore reserves some for directories that grow."""
_Result = TypeVar("_Result")


class Overlap(StrEnum):
    """What to do while another process, thread or task may roll back the same paths."""

    WAIT = "wait"
    REFUSE = "refuse"


entered: ContextVar[frozenset[SnapshotId]] = ContextVar("inside", default=frozenset())
"""The checkpoints of the blocks that the running code is in."""


class Overlapping(Busy):
    """Another process, thread or task may roll back the same paths."""


class CheckpointLock:
    """Keeps other checkpoints away from the paths of this one, and its snapshot from deletion."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._process_id = os.getpid()
        self._scope: tuple[bytes, ...] | None = None
        self.hold: LockedRecord[HoldRecord] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; a forked child must not release its parent's."""
        return os.getpid() == self._process_id

    @property
    def mark_path(self) -> str | None:
        """A file by which the processes of a command are known, or None on a full disk."""
        return self.hold.path if self.hold is not None else None

    def release(self) -> None:
        """Stops holding the snapshot; does nothing in a forked child."""
        if self.hold is not None and self.is_ours:
            self.hold.release()
        self.hold = None

    def leave(self, context: Context, reason: str) -> None:
        """Releases a snapshot to which the roll-back failed, and notes the failure and its reason.

        Where not even the store's reserve gives room for the note, the next command only sees that
        this process let go.
        """
        hold, self.hold = self.hold, None
        if hold is not None and self.is_ours:
            layout = Layout(context.store_path)
            record = HoldRecord(0, f"{self._operation}: {reason}"[:_REASON_MAX], self._scope)
            with hold, suppress(OSError):
                Reserve(context.fs, layout).retry_without_reserve(
                    lambda: hold.replace(layout, record)
                )

    def take(
        self,
        session: Session,
        snapshot_id: SnapshotId,
        scope: tuple[bytes, ...] | None,
    ) -> None:
        """Holds a snapshot; the caller holds the root's lock.

        Takes a few KiB, on a full disk from the store's reserve. Only warns where the hold cannot
        be written.
        """
        self._scope = scope
        record = HoldRecord(os.getpid(), self._operation, scope, process_namespace())
        reserve = Reserve(session.fs, session.store.layout)
        try:
            self.hold = reserve.retry_without_reserve(
                lambda: session.root.hold(snapshot_id, record)
            )
        except OSError as error:
            session.monitor.warn(
                WarningCode.CHECKPOINT_NOT_HELD,
                f"The checkpoint cannot be held ({error_text(error)}): other commands do not see "
                "that this one may go back, and may remove the checkpoint",
            )

    def require_way_back(self, session: Session) -> None:
        """Raises StorageFull and releases the snapshot if the store has no room for a roll-back."""
        if not Reserve(session.fs, session.store.layout).fill():
            self.release()
            raise _no_way_back("store", session.store.path)


def refuse_full_root(context: Context) -> None:
    """Raises StorageFull where a restore could not begin beside the tree.

    What a step writes is removed then, so what is free before it is free again. An absent root
    is not refused here.
    """
    with suppress(OSError), opened_real(context.fs, context.root) as root_fd:
        if context.fs.free_bytes(root_fd) < _ROOT_ROOM_BYTES:
            raise _no_way_back("root", context.root)


def _no_way_back(what: str, path: str) -> StorageFull:
    return StorageFull(
        f"The disk of the {what} has no room to roll the step back, so it was not begun",
        path=path,
    )


def kept_by(what: str, record: HoldRecord | None) -> Busy:
    """Returns the error about a snapshot that a process needs.

    ``what`` begins its message, and ends with what the process does something with.
    """
    if record is None:
        return Busy(f"{what} a process needs")
    kind = HeldByMount if record.scope == () else Busy
    return kind(f"{what} process {record.process_id} {record.purpose}")


def refuse_overlap(session: Session, scope: tuple[bytes, ...] | None) -> None:
    """Raises Overlapping if another block may roll back some of these paths.

    What the caller is inside of does not count: blocks that it entered, and commands that started
    it, at whatever distance. The caller holds the root's lock.
    """
    inside = entered.get()
    marks = {word for mark in own_marks() for word in mark.split("/")}
    others = [
        record
        for key, records in session.root.holds().items()
        if key not in inside and key[:MARK_DIGITS] not in marks
        for record in records
    ]
    if not others:
        return
    namespace = process_namespace()
    ancestors = _ancestors(namespace)
    for record in others:
        if record is None:
            raise Overlapping("The root is in use by another command that may go back")
        if record.namespace == namespace and record.process_id in ancestors:
            continue
        path = _common_path(scope, record.scope)
        if path is not None:
            raise Overlapping(
                f"{quoted(path or session.root.path)} is in use by process "
                f"{record.process_id}: {record.operation}",
                path=path or session.root.path,
            )


def when_alone(take: Callable[[], _Result], wait_s: float) -> _Result:
    """Runs ``take`` once no other block may roll back the same paths; returns its outcome.

    Raises Overlapping when the wait runs out.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return take()
        except Overlapping:
            if not time.monotonic() < deadline:
                raise
            pause(_PAUSE_S)


def _common_path(one: tuple[bytes, ...] | None, other: tuple[bytes, ...] | None) -> bytes | None:
    """Returns a path that both scopes hold, or None."""
    for left in one if one is not None else (b"",):
        for right in other if other is not None else (b"",):
            if is_within(left, right):
                return left
            if is_within(right, left):
                return right
    return None


def _ancestors(namespace: str | None) -> set[int]:
    """Returns the ancestors of this process, or of the client for which it does the work.

    What a command does inside of another one's block belongs to that block. The first process of
    a namespace is the ancestor of all in it. Where it is not known which namespace that is, it
    does not count, and neither does what is shown of another namespace.
    """
    ancestors: set[int] = set()
    process_id = own_program.client_id or os.getppid()
    while process_id > (namespace is None) and process_id not in ancestors:
        ancestors.add(process_id)
        if namespace is None:
            break
        parent = parent_of(process_id)
        if parent is None:
            break
        process_id = parent
    return ancestors


def takes_back(target: Snapshot, scope: tuple[bytes, ...] | None) -> bool:
    """Returns whether a restore of some paths undoes what a step after its target did."""
    return scope in (None, target.record.scope)


def settle_steps(session: Session, target: Snapshot, scope: tuple[bytes, ...] | None) -> None:
    """Forgets the steps that a finished restore has undone: all, if it restored the whole root.

    The caller holds the root's lock.
    """
    if scope is None:
        session.root.forget_dead_holds()
    elif takes_back(target, scope):
        session.root.forget_dead_holds(target.id)
