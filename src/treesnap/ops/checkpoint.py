"""Checkpoints that are held, the way back to them, and ``run``.

What ``run``, the steps of plans and ``rollback_on_error`` share. Each takes a checkpoint, does
something that may fail, and goes back if it does:

    hold       the snapshot stays, whatever a policy or ``delete`` says, while the process lives
    overlap    where two would go back over the same paths, the later one waits or is refused
    go back    end the processes, make way, restore under the checkpoint's own exclusions

The way back does not depend on what the failed step left: see :func:`go_back`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from stat import S_ISDIR
from typing import TYPE_CHECKING, TypeVar

from treesnap.errors import InvalidArgument, NotFound, WarningCode, printable, quoted
from treesnap.fs.os_errors import reported
from treesnap.model import Retag, SnapshotId, SnapshotKind
from treesnap.named_tuple import NamedTuple
from treesnap.ops.access import locked_root, opened
from treesnap.ops.claim import Claim, Overlap, Overlapping, entered
from treesnap.ops.context import Context
from treesnap.ops.interruption import Interruptions, defer_signals, raise_first_signal
from treesnap.quantities import first_few
from treesnap.results import RestoreResult, RunResult
from treesnap.worktree.apply.protection import unlock_root

if TYPE_CHECKING:
    from treesnap.ops.create import CreateRequest
    from treesnap.results import CreateResult
    from treesnap.store.plan_files import PlanMove

_Result = TypeVar("_Result")
_PAUSE_S = 0.05


def run(
    context: Context,
    command: Sequence[str],
    *,
    retries: int,
    label: str | None,
    overlap: str = "wait",
) -> RunResult:
    """Runs a command in the root; see :meth:`treesnap.Handle.run`."""
    from treesnap.ops.create import CreateRequest

    if not command:
        raise InvalidArgument("There is no command to run")
    if retries < 0:
        raise InvalidArgument(f"A command cannot be retried {retries} times")
    words = printable(" ".join(command)[:200])
    request = CreateRequest(
        label=label if label is not None else f"before {words}", kind=SnapshotKind.RUN
    )
    with (
        held_checkpoint(context, request, f"run {words}", overlap) as held,
        raise_first_signal() as interruptions,
    ):
        return _run(context, command, retries, held, interruptions)


def _run(
    context: Context,
    command: Sequence[str],
    retries: int,
    held: HeldCheckpoint,
    interruptions: Interruptions,
) -> RunResult:
    from treesnap.ops.processes import Command

    restored: RestoreResult | None = None
    for attempt in range(1, retries + 2):
        running = Command(
            context, command, f"run/{held.made.id[:16]}/{attempt}", held.claim.mark_path
        )
        try:
            exit_code = running.run(interruptions.deferred)
        except (InvalidArgument, NotFound):  # nothing was started
            raise
        except BaseException:
            number = interruptions.numbers[0] if interruptions.numbers else signal.SIGTERM
            # A terminal has sent SIGINT and SIGQUIT to both; of the others, some end nothing there.
            asked = number if number == signal.SIGHUP else signal.SIGTERM
            running.ask_to_end(asked, lambda: interruptions.is_urgent)
            held.go_back(running.end)
            raise
        if exit_code == 0:
            break
        restored = held.go_back(running.end)
    return RunResult(
        exit_code=exit_code,
        attempts=attempt,
        snapshot_id=held.made.id,
        rolled_back=exit_code != 0,
        restore=restored,
    )


class HeldCheckpoint(NamedTuple):
    """A checkpoint that is held until the block ends in which it was taken."""

    context: Context
    made: CreateResult
    claim: Claim

    def go_back(self, end_processes: Callable[[], None] | None = None) -> RestoreResult:
        """Goes back to the checkpoint; see :func:`go_back`."""
        return go_back(self.context, self.made.id, end_processes)


@contextmanager
def held_checkpoint(
    context: Context, request: CreateRequest, operation: str, overlap: str = "wait"
) -> Iterator[HeldCheckpoint]:
    """Takes a checkpoint before something risky is done, and holds it meanwhile.

    While another block may go back over the same paths, waits for it as long as the context
    waits for locks, or does not wait with ``refuse``; then raises Busy. The body, what it calls
    and the processes that it starts are inside: blocks of theirs belong to this one.
    """
    from treesnap.ops.create import create

    if overlap not in set(Overlap):
        raise InvalidArgument(f"overlap is 'wait' or 'refuse', not {overlap!r}")
    claim = Claim(operation)
    try:  # an interrupted maintenance, after the snapshot is held, must not leave the root in use
        wait_s = context.wait_s if overlap == Overlap.WAIT else 0
        made = _when_alone(lambda: create(context, request, claim), wait_s)
        entered.set(entered.get() | {made.id})
        try:
            yield HeldCheckpoint(context, made, claim)
        finally:
            entered.set(entered.get() - {made.id})
    finally:
        claim.release()


@contextmanager
def held_snapshot(context: Context, snapshot_id: SnapshotId, operation: str) -> Iterator[None]:
    """Holds an older snapshot, to go back to it; waits and raises like :func:`held_checkpoint`."""
    if snapshot_id in entered.get():
        yield
        return
    claim = Claim(operation)

    def take() -> None:
        with (
            opened(context, operation, writing=True, recover=False) as session,
            locked_root(session, operation),
        ):
            claim.refuse_overlap(session, None)
            claim.take(session, snapshot_id, None)

    try:
        _when_alone(take, context.wait_s)
        yield
    finally:
        claim.release()


def _when_alone(take: Callable[[], _Result], wait_s: float) -> _Result:
    """Returns the outcome of ``take`` as soon as no other block is over the same paths."""
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
    retag: Retag | None = None,
    move: PlanMove | None = None,
) -> RestoreResult:
    """Makes the root as in a checkpoint, whatever a failed step left in it.

    ``retag`` changes the tags that the snapshot got later; ``move`` takes a plan along, whose
    state before must be kept even if room is short.

    The step's processes are ended first. Then only the exclusions of the checkpoint count; ignore
    files that the step wrote are content like any other, so what they hid comes back or goes.
    What the step made unreadable for its owner is made readable, and what took the place of the
    root is moved beside it. Signals wait until all is done.

    If the step filled the disk, room is made in the store. If that is not enough, what the step
    left is removed before anything is put, and if there is no room for a safety snapshot of it,
    it is lost; the result says so.
    """
    with defer_signals():
        if end_processes is not None:
            end_processes()
        _clear_place(context)
        unlock_root(context.fs, context.root)
        return _restored(context, snapshot_id, retag=retag, move=move)


def _restored(
    context: Context, snapshot_id: SnapshotId, *, retag: Retag | None, move: PlanMove | None
) -> RestoreResult:
    from treesnap.ops.maintenance import make_room
    from treesnap.ops.restore.attempt import NoRoomToKeep, NoRoomToStage
    from treesnap.ops.restore.plan import RestoreRequest, WayBack
    from treesnap.ops.undo import restore

    way = WayBack()
    has_made_room = False
    while True:
        request = RestoreRequest(ref=snapshot_id, force=True, retag=retag, move=move, way_back=way)
        try:
            return restore(context, request)
        except NoRoomToKeep as full:
            if way.not_kept is not None or (has_made_room and move is not None):
                raise
            make_room(context, full)  # the second time for what the second attempt left
            if has_made_room:
                way = WayBack(removes_first=True, not_kept=full.message)
            has_made_room = True
        except NoRoomToStage:
            if way.removes_first:
                raise
            way = way._replace(removes_first=True)


def warn_of_untouched(context: Context, result: RestoreResult) -> None:
    """Warns of what a roll-back left alone, for callers that do not return its result."""
    left = result.untouched
    if left:
        named = first_few(left, lambda item: f"{quoted(item.path)} ({item.reason.word})")
        context.monitor.warn(
            WarningCode.LEFT_ALONE, f"The roll-back left alone what it cannot put back: {named}"
        )


def _clear_place(context: Context) -> None:
    """Moves what has taken the root's place, and is not a directory, beside it."""
    try:
        is_in_the_way = not S_ISDIR(context.fs.lstat(context.root).st_mode)
    except OSError:  # there is nothing
        return
    if is_in_the_way:
        names = (f"{context.root}.left-{number}" for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))
        with reported("move aside what is in the place of the root"):
            context.fs.rename(context.root, aside)
        context.monitor.warn(
            WarningCode.ROOT_MOVED_ASIDE,
            f"{quoted(context.root)} was no longer a directory; what it was is {quoted(aside)}",
        )
