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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from stat import S_ISDIR
from typing import TYPE_CHECKING

from treesnap.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.fs.os_errors import error_text, reported
from treesnap.fs.real_path import opened_real
from treesnap.model import Retag, SnapshotId, SnapshotKind
from treesnap.named_tuple import NamedTuple
from treesnap.ops.access import locked_root, opened
from treesnap.ops.claim import (
    MARK_DIGITS,
    Claim,
    Overlap,
    entered,
    refuse_overlap,
    when_alone,
)
from treesnap.ops.context import Context
from treesnap.ops.interruption import Interruptions, defer_signals, raise_first_signal
from treesnap.quantities import first_few
from treesnap.results import RestoreResult, RunResult
from treesnap.worktree.apply.protection import unlock_root
from treesnap.worktree.mounts import Mounts, mount_of

if TYPE_CHECKING:
    from treesnap.ops.create import CreateRequest
    from treesnap.results import CreateResult
    from treesnap.store.plan_files import PlanMove

_SHORT_NAME_BYTES = 100
"""Names of so many bytes fit on every file system."""


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
            context, command, f"run/{held.made.id[:MARK_DIGITS]}/{attempt}", held.claim.mark_path
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
    mount: int | None
    """The mount through which the root was reached, or None where that cannot be known."""

    def go_back(self, end_processes: Callable[[], None] | None = None) -> RestoreResult:
        """Goes back to the checkpoint; see :func:`go_back`."""
        return go_back(self.context, self.made.id, end_processes, mount=self.mount)


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
        mount = mount_of(context.fs, context.root)
        made = when_alone(lambda: create(context, request, claim), wait_s)
        entered.set(entered.get() | {made.id})
        try:
            yield HeldCheckpoint(context, made, claim, mount)
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
            refuse_overlap(session, None)
            claim.take(session, snapshot_id, None)

    try:
        when_alone(take, context.wait_s)
        yield
    finally:
        claim.release()


def go_back(
    context: Context,
    snapshot_id: SnapshotId,
    end_processes: Callable[[], None] | None = None,
    *,
    mount: int | None = None,
    retag: Retag | None = None,
    move: PlanMove | None = None,
) -> RestoreResult:
    """Makes the root as in a checkpoint, whatever a failed step left in it.

    ``mount`` is that of the root before the step. ``retag`` changes the tags that the snapshot got
    later; ``move`` takes a plan along, whose state before must be kept even if room is short.

    The step's processes are ended first. Then only the exclusions of the checkpoint count; ignore
    files that the step wrote are content like any other, so what they hid comes back or goes.
    What the step made unreadable for its owner is made readable, and what took the place of the
    root is moved beside it. What the step mounted over the root is not touched: raises Refused.
    Signals wait until all is done.

    If the step filled the disk, room is made in the store. If that is not enough, what the step
    left is removed before anything is put, and if there is no room for a safety snapshot of it,
    it is lost; the result says so.

    An error says that it was the roll-back that failed, and has the checkpoint as its
    ``checkpoint_id``; it is of the same class, with the same code, as that of a restore.
    """
    with defer_signals(), _naming(snapshot_id):
        if end_processes is not None:
            end_processes()
        _refuse_covered(context, mount)
        _clear_place(context)
        unlock_root(context.fs, context.root)
        return _restored(context, snapshot_id, retag=retag, move=move)


@contextmanager
def _naming(snapshot_id: SnapshotId) -> Iterator[None]:
    """Makes errors of a roll-back say that it failed, and to which checkpoint it leads."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, it must say what failed
        failed = error if isinstance(error, TreesnapError) else OperationFailed(error_text(error))
        failed.message = f"The roll-back to {snapshot_id[:12]} failed: {failed.message}"
        failed.args = (failed.message, *failed.args[1:])
        failed.checkpoint_id = snapshot_id
        raise failed from (error if failed is not error else error.__cause__)


def _refuse_covered(context: Context, mount: int | None) -> None:
    """Raises Refused if something else is mounted where the root was.

    Without a mount from before the step only what is mounted at the root itself is noticed.
    """
    fs, root = context.fs, context.root
    if mount is not None:
        is_covered = mount_of(fs, root) != mount
    elif is_covered := Mounts(fs).is_point(os.fsencode(root)):
        with opened(context, "look at the root", recover=False) as session:
            is_covered = session.root.is_replaced()
    if is_covered:
        raise Refused(
            f"Something else is mounted where {quoted(root)} was, and was left as it is",
            code=ErrorCode.ROOT_COVERED,
            path=root,
        )


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
    fs = context.fs
    above, name = os.path.split(context.root)
    try:
        is_in_the_way = not S_ISDIR(fs.lstat(context.root).st_mode)
    except OSError:  # there is nothing
        return
    if is_in_the_way:
        names = (_beside(context.root, f".left-{number}") for number in count(1))
        with (
            reported("move aside what is in the place of the root"),
            opened_real(fs, above) as above_fd,
        ):
            aside = next(each for each in names if not os.path.lexists(each))
            new = os.path.basename(aside)
            fs.rename(name, new, source_dir_fd=above_fd, target_dir_fd=above_fd)
        context.monitor.warn(
            WarningCode.ROOT_MOVED_ASIDE,
            f"{quoted(context.root)} was no longer a directory; what it was is {quoted(aside)}",
        )


def _beside(path: str, suffix: str) -> str:
    """Returns a path in the same directory that fits wherever the given one does."""
    directory, name = os.path.split(os.fsencode(path))
    end = suffix.encode()
    room = max(len(name), _SHORT_NAME_BYTES) - len(end)
    if len(name) > room:
        with suppress(UnicodeDecodeError):  # it is cut between characters, where it has some
            name.decode()
            name = name[:room].decode(errors="ignore").encode()
        name = name[:room]
    return os.fsdecode(os.path.join(directory, name + end))
