"""A checkpoint that is held, and the way back to it.

What ``run``, the steps of plans and ``rollback_on_error`` share. Each takes a checkpoint, does
something that may fail, and goes back if it does:

    hold       the snapshot stays, whatever a policy or ``delete`` says, while the process lives
    overlap    where two would go back over the same paths, the later one waits or is refused
    go back    end the processes, make way, restore under the checkpoint's own exclusions

The way back does not depend on what the failed step left: see :func:`go_back`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from stat import S_ISDIR
from typing import TYPE_CHECKING, TypeVar

from treesnap.errors import InvalidArgument, printable
from treesnap.fs.os_errors import reported
from treesnap.model import SnapshotId
from treesnap.ops.access import locked_root, opened
from treesnap.ops.claim import OVERLAPS, Claim, Overlapping, entered
from treesnap.ops.interruption import put_off
from treesnap.worktree.apply.protection import unlock_root

if TYPE_CHECKING:
    from treesnap.ops.context import Context
    from treesnap.ops.create import CreateRequest
    from treesnap.results import CreateResult, RestoreResult
    from treesnap.store.plan_files import PlanMove

_Result = TypeVar("_Result")
_PAUSE_S = 0.05
_NAMED_MAX = 5


class HeldCheckpoint:
    """A checkpoint that stays while the block lasts in which it was taken."""

    def __init__(self, context: Context, made: CreateResult, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self.made = made

    @property
    def is_ours(self) -> bool:
        """Whether this process took it; a forked child must not go back over its parent."""
        return self._claim.is_ours

    @property
    def mark_path(self) -> str | None:
        """A file by which the processes of a command are known, or None on a full disk."""
        return self._claim.hold.path if self._claim.hold is not None else None

    def go_back(self, end_processes: Callable[[], None] | None = None) -> RestoreResult:
        """Goes back to the checkpoint; see :func:`go_back`."""
        return go_back(self._context, self.made.id, end_processes)


@contextmanager
def held_checkpoint(
    context: Context, request: CreateRequest, operation: str, overlap: str = "wait"
) -> Iterator[HeldCheckpoint]:
    """Captures and publishes before something risky is done, and holds the snapshot meanwhile.

    While another one may go back over the same paths, waits for it as long as the context waits
    for locks, or does not wait with ``refuse``; then raises Busy. The body, what it calls and
    the processes that it starts are inside: blocks of theirs belong to this one.
    """
    if overlap not in OVERLAPS:
        raise InvalidArgument(f"overlap is 'wait' or 'refuse', not {overlap!r}")
    claim = Claim(operation)
    try:  # an interrupted maintenance, after the snapshot is held, must not leave the root in use
        made = _taken(context, request, claim, overlap)
        entered.set(entered.get() | {made.id})
        try:
            yield HeldCheckpoint(context, made, claim)
        finally:
            entered.set(entered.get() - {made.id})
    finally:
        claim.release()


@contextmanager
def held_snapshot(context: Context, snapshot_id: SnapshotId, operation: str) -> Iterator[None]:
    """Holds a snapshot that was taken before, to go back to it; waits and raises likewise."""
    if snapshot_id in entered.get():
        yield
        return
    claim = Claim(operation)

    def take() -> None:
        with (
            opened(context, operation, writing=True, recover=False) as session,
            locked_root(session, operation),
        ):
            claim.refuse_overlap(context.fs, session, None)
            claim.take(session, snapshot_id, None)

    try:
        _when_alone(take, context.wait_s)
        yield
    finally:
        claim.release()


def _taken(context: Context, request: CreateRequest, claim: Claim, overlap: str) -> CreateResult:
    from treesnap.ops.create import create

    wait_s = context.wait_s if overlap == "wait" else 0
    return _when_alone(lambda: create(context, request, claim), wait_s)


def _when_alone(take: Callable[[], _Result], wait_s: float) -> _Result:
    """Returns what is taken as soon as there is no other one over the same paths."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return take()
        except Overlapping:
            if not time.monotonic() < deadline:
                raise
            time.sleep(_PAUSE_S)


def go_back(
    context: Context,
    snapshot_id: SnapshotId,
    end_processes: Callable[[], None] | None = None,
    *,
    counted: bool = False,
    move: PlanMove | None = None,
) -> RestoreResult:
    """Makes the root as in a checkpoint, whatever a failed step left in it.

    ``counted`` notes in the snapshot that it was rolled back to; ``move`` takes a plan along,
    whose state before has to be kept whatever room there is.

    The step's processes are ended first. Then the exclusions of the checkpoint hold, and those
    that the step wrote are content like any other: what it hid comes back or goes. What it
    closed to its owner is opened, and what is in the place of the root is put beside it. Signals
    wait until all is done.

    Where the step filled the disk, room is made in the store. Where that does not do, what the
    step left is removed before anything is put, and if there is no room to keep it in a safety
    snapshot, it is not kept; the result says so.
    """
    with put_off():
        if end_processes is not None:
            end_processes()
        _clear_place(context)
        unlock_root(context.fs, context.root)
        return _restored(context, snapshot_id, counted=counted, move=move)


def _restored(
    context: Context, snapshot_id: SnapshotId, *, counted: bool, move: PlanMove | None
) -> RestoreResult:
    from treesnap.ops.auto_maintenance import make_room
    from treesnap.ops.restore.goal import RestoreRequest
    from treesnap.ops.restore.reach import NoRoomToKeep, NoRoomToStage
    from treesnap.ops.restores import restore

    request = RestoreRequest(
        ref=snapshot_id, force=True, is_way_back=True, counted=counted, move=move
    )
    has_made_room = False
    while True:
        try:
            return restore(context, request)
        except NoRoomToKeep as full:
            if request.not_kept is not None or (has_made_room and move is not None):
                raise
            make_room(context, full)  # the second time for what the second attempt left
            if has_made_room:
                request = replace(request, removes_first=True, not_kept=full.message)
            has_made_room = True
        except NoRoomToStage:
            if request.removes_first:
                raise
            request = replace(request, removes_first=True)


def warn_of_untouched(context: Context, result: RestoreResult) -> None:
    """Tells the monitor what the way back left alone, where no result of it is returned."""
    left = result.untouched
    if left:
        named = ", ".join(
            f"{printable(item.path)!r} ({item.reason.word})" for item in left[:_NAMED_MAX]
        )
        more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
        context.monitor.warn(f"The roll-back left alone what it cannot put back: {named}{more}")


def _clear_place(context: Context) -> None:
    """Puts what has taken the root's place, and is not a directory, beside it."""
    try:
        is_in_the_way = not S_ISDIR(context.fs.lstat(context.root).st_mode)
    except OSError:  # there is nothing
        return
    if is_in_the_way:
        names = (f"{context.root}.left-{number}" for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))
        with reported("put aside what is in the place of the root"):
            context.fs.rename(context.root, aside)
        context.monitor.warn(
            f"{printable(context.root)!r} was not a directory any more; what it was is "
            f"{printable(aside)!r}"
        )
