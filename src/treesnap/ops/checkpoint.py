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
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from stat import S_ISDIR
from typing import TYPE_CHECKING, TypeVar

from treesnap.codec.hold import HoldRecord
from treesnap.errors import Busy, InvalidArgument, shown
from treesnap.fs.durable import read_file
from treesnap.fs.failure import error_text, reported
from treesnap.model import SnapshotId
from treesnap.ops.access import Opened, locked_root, opened
from treesnap.ops.interruption import put_off
from treesnap.store.reserve import Reserve
from treesnap.treepath import is_within
from treesnap.worktree.unlock import unlock_root

if TYPE_CHECKING:
    from treesnap.fs.base import FileSystem
    from treesnap.ops.create import CreateRequest
    from treesnap.ops.handle import Handle
    from treesnap.ops.plan_files import PlanMove
    from treesnap.results import CreateResult, RestoreResult
    from treesnap.store.roots import Hold

OVERLAPS = ("wait", "refuse")
"""What to do while another process, thread or task may go back over the same paths."""
_Result = TypeVar("_Result")
_PAUSE_S = 0.05
_NAMED_MAX = 5
_inside: ContextVar[frozenset[SnapshotId]] = ContextVar("inside", default=frozenset())
"""The checkpoints that the running code is inside of: what it does belongs to them."""


class Overlapping(Busy):
    """Another one may go back over the same paths."""


class Claim:
    """What a checkpoint asks for beside the capture: to be alone, and to stay."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._process_id = os.getpid()
        self.hold: Hold | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process made the claim; a forked child must not release its parent's."""
        return os.getpid() == self._process_id

    def release(self) -> None:
        """Lets the snapshot go, if it is held; does nothing in a forked child."""
        if self.hold is not None and self.is_ours:
            self.hold.release()
        self.hold = None

    def refuse_overlap(self, fs: FileSystem, pair: Opened, scope: tuple[bytes, ...] | None) -> None:
        """Raises Overlapping; the caller holds the root's lock."""
        inside = _inside.get()
        others = {key: item for key, item in pair.root.holds().items() if key not in inside}
        if not others:
            return
        ancestors = _ancestors(fs)
        for record in others.values():
            if record is None:
                raise Overlapping("The root is in use by another command that may go back")
            if record.process_id in ancestors:
                continue
            path = _common_path(scope, record.scope)
            if path is not None:
                raise Overlapping(
                    f"{shown(path or pair.root.path)!r} is in use by process "
                    f"{record.process_id}: {record.operation}",
                    path=path or pair.root.path,
                )

    def take(
        self,
        handle: Handle,
        pair: Opened,
        snapshot_id: SnapshotId,
        scope: tuple[bytes, ...] | None,
    ) -> None:
        """Holds a snapshot; the caller holds the root's lock.

        Takes a few KiB, on a full disk from the store's reserve. Where it cannot be written all
        the same, that is said, and the step goes on.
        """
        record = HoldRecord(os.getpid(), self._operation, scope)
        reserve = Reserve(handle.fs, pair.store.layout)
        try:
            self.hold = reserve.backs(lambda: pair.root.hold(snapshot_id, record))
        except OSError as error:
            handle.monitor.remark(
                f"The checkpoint cannot be held ({error_text(error)}): other commands do not see "
                "that this one may go back, and may remove the checkpoint"
            )


def _common_path(one: tuple[bytes, ...] | None, other: tuple[bytes, ...] | None) -> bytes | None:
    """Returns a path that both scopes hold, or None."""
    for left in one if one is not None else (b"",):
        for right in other if other is not None else (b"",):
            if is_within(left, right):
                return left
            if is_within(right, left):
                return right
    return None


def _ancestors(fs: FileSystem) -> set[int]:
    """Returns the processes from which this one stems, without itself.

    What a command does inside of another one's block belongs to that block.
    """
    found: set[int] = set()
    process_id = os.getppid()
    while process_id > 1 and process_id not in found:
        found.add(process_id)
        try:
            text = read_file(fs, f"/proc/{process_id}/stat", 1 << 16)
            process_id = int(text.rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


class HeldCheckpoint:
    """A checkpoint that stays while the block lasts in which it was taken."""

    def __init__(self, handle: Handle, made: CreateResult, claim: Claim) -> None:
        self._handle = handle
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
        return go_back(self._handle, self.made.id, end_processes)


@contextmanager
def held_checkpoint(
    handle: Handle, request: CreateRequest, operation: str, overlap: str = "wait"
) -> Iterator[HeldCheckpoint]:
    """Captures and publishes before something risky is done, and holds the snapshot meanwhile.

    While another one may go back over the same paths, waits for it as long as the handle waits
    for locks, or does not wait with ``refuse``; then raises Busy. The body, what it calls and
    the processes that it starts are inside: blocks of theirs belong to this one.
    """
    if overlap not in OVERLAPS:
        raise InvalidArgument(f"overlap is 'wait' or 'refuse', not {overlap!r}")
    claim = Claim(operation)
    try:  # an interrupted maintenance, after the snapshot is held, must not leave the root in use
        made = _taken(handle, request, claim, overlap)
        _inside.set(_inside.get() | {made.id})
        try:
            yield HeldCheckpoint(handle, made, claim)
        finally:
            _inside.set(_inside.get() - {made.id})
    finally:
        claim.release()


@contextmanager
def held_snapshot(handle: Handle, snapshot_id: SnapshotId, operation: str) -> Iterator[None]:
    """Holds a snapshot that was taken before, to go back to it; waits and raises likewise."""
    if snapshot_id in _inside.get():
        yield
        return
    claim = Claim(operation)

    def take() -> None:
        with (
            opened(handle, operation, writing=True, recover=False) as pair,
            locked_root(handle, pair, operation),
        ):
            claim.refuse_overlap(handle.fs, pair, None)
            claim.take(handle, pair, snapshot_id, None)

    try:
        _when_alone(take, handle.wait_s)
        yield
    finally:
        claim.release()


def _taken(handle: Handle, request: CreateRequest, claim: Claim, overlap: str) -> CreateResult:
    from treesnap.ops.create import create

    wait_s = handle.wait_s if overlap == "wait" else 0
    return _when_alone(lambda: create(handle, request, claim), wait_s)


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
    handle: Handle,
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
        _clear_place(handle)
        unlock_root(handle.fs, handle.root)
        return _restored(handle, snapshot_id, counted=counted, move=move)


def _restored(
    handle: Handle, snapshot_id: SnapshotId, *, counted: bool, move: PlanMove | None
) -> RestoreResult:
    from treesnap.ops.restore import NoRoomToKeep, NoRoomToStage, RestoreRequest, restore
    from treesnap.ops.upkeep import make_room

    request = RestoreRequest(
        ref=snapshot_id, force=True, is_way_back=True, counted=counted, move=move
    )
    has_made_room = False
    while True:
        try:
            return restore(handle, request)
        except NoRoomToKeep as full:
            if request.not_kept is not None or (has_made_room and move is not None):
                raise
            make_room(handle, full)  # the second time for what the second attempt left
            if has_made_room:
                request = replace(request, removes_first=True, not_kept=full.message)
            has_made_room = True
        except NoRoomToStage:
            if request.removes_first:
                raise
            request = replace(request, removes_first=True)


def remark_untouched(handle: Handle, result: RestoreResult) -> None:
    """Tells the monitor what the way back left alone, where no result of it is returned."""
    left = result.untouched
    if left:
        named = ", ".join(
            f"{shown(item.path)!r} ({item.reason.word})" for item in left[:_NAMED_MAX]
        )
        more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
        handle.monitor.remark(f"The roll-back left alone what it cannot put back: {named}{more}")


def _clear_place(handle: Handle) -> None:
    """Puts what has taken the root's place, and is not a directory, beside it."""
    try:
        is_in_the_way = not S_ISDIR(handle.fs.lstat(handle.root).st_mode)
    except OSError:  # there is nothing
        return
    if is_in_the_way:
        names = (f"{handle.root}.left-{number}" for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))
        with reported("put aside what is in the place of the root"):
            handle.fs.rename(handle.root, aside)
        handle.monitor.remark(
            f"{shown(handle.root)!r} was not a directory any more; what it was is {shown(aside)!r}"
        )
