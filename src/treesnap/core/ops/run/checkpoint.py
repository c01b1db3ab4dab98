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
from contextlib import contextmanager
from itertools import count
from stat import S_ISDIR
from types import TracebackType

from treesnap.core.event_loop import entered_again
from treesnap.core.fs.mounts import mount_of
from treesnap.core.fs.os_errors import error_text, translating_os_errors
from treesnap.core.fs.real_path import opened_real, path_beside
from treesnap.core.interruption import (
    FirstSignal,
    Guard,
    Stopped,
    interrupt_here,
    interruptible,
    uninterrupted,
)
from treesnap.core.model.errors import (
    InvalidArgument,
    NotFound,
    OperationFailed,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, first_few
from treesnap.core.model.results import RestoreResult, RunResult
from treesnap.core.model.snapshots import SnapshotId, SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING, Generic, TypeVar
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.checkpoint_locks import (
    MARK_DIGITS,
    CheckpointLock,
    Overlap,
    entered,
    refuse_overlap,
    when_alone,
)
from treesnap.core.ops.context import Context
from treesnap.core.worktree.apply.protection import unlock_root

if TYPE_CHECKING:
    from treesnap.core.model.events import Monitor, Phase
    from treesnap.core.model.requests import CaptureRequest
    from treesnap.core.model.results import CreateResult
    from treesnap.core.ops.processes import Command
    from treesnap.core.store.attachments import AttachmentChange


def run(
    context: Context,
    command: Sequence[str],
    *,
    retries: int,
    label: str | None,
    overlap: str = "wait",
) -> RunResult:
    """Runs a command in the root; see :meth:`treesnap.Handle.run`."""
    from treesnap.core.model.requests import CaptureRequest

    if not command:
        raise InvalidArgument("There is no command to run")
    if retries < 0:
        raise InvalidArgument(f"A command cannot be retried {retries} times")
    words = printable(" ".join(command)[:200])
    request = CaptureRequest(
        label=label if label is not None else f"before {words}", kind=SnapshotKind.RUN
    )
    with FirstSignal() as signals:
        runs = _Runs(context, command, signals)
        block = CheckpointBlock(
            context, request, f"run {quoted(words)}", runs.give_up, itself, overlap
        )
        try:
            with block as held:
                return runs.run(held, retries)
        except (KeyboardInterrupt, Stopped) as stopped:
            stopped.add_note(runs.outcome)
            raise


class _Runs:
    """The attempts of ``run``.

    Signals do not come between the end of a roll-back and the note that there was one.
    """

    def __init__(self, context: Context, command: Sequence[str], signals: FirstSignal) -> None:
        self._context = context
        self._command = command
        self._signals = signals
        self._running: Command | None = None
        self.outcome = "the command was not started, and nothing was changed"
        """What became of the command's changes, for a person who ended it by a signal."""

    def run(self, held: HeldCheckpoint, retries: int) -> RunResult:
        from treesnap.core.ops.processes import Command

        restored: RestoreResult | None = None
        for attempt in range(1, retries + 2):
            mark = f"run/{held.made.id[:MARK_DIGITS]}/{attempt}"
            running = Command(self._context, self._command, mark, held.checkpoint_lock.mark_path)
            self._running = running
            try:
                exit_code = running.run(self._signals.deferred)
            except (InvalidArgument, NotFound):  # nothing was started
                self._running = None
                raise
            if exit_code == 0:
                restored = None  # what was rolled back before does not belong to the outcome
                break
            restored = self._back(held, running)
        return RunResult(
            exit_code=exit_code,
            attempts=attempt,
            snapshot_id=held.made.id,
            rolled_back=exit_code != 0,
            restore=restored,
        )

    def give_up(self, held: HeldCheckpoint, _error: BaseException) -> None:
        """Ends the command, and rolls back unless that was done already."""
        running = self._running
        if running is None:
            return
        numbers = self._signals.numbers
        number = numbers[0] if numbers else signal.SIGTERM
        # A terminal has sent SIGINT and SIGQUIT to both; of the others, some end nothing there.
        asked = number if number == signal.SIGHUP else signal.SIGTERM
        running.ask_to_end(asked, lambda: self._signals.is_urgent)
        warn_of_untouched(self._context, self._roll_back(held, running))

    def _back(self, held: HeldCheckpoint, running: Command) -> RestoreResult:
        with Guard():
            return self._roll_back(held, running)

    @uninterrupted
    def _roll_back(self, held: HeldCheckpoint, running: Command) -> RestoreResult:
        short = held.made.id[:12]
        self.outcome = f"the roll-back of what the command did failed; the state before is {short}"
        try:
            result = held.go_back(running.end)
        finally:
            self._running = None
        count = result.restored + result.created + result.deleted
        self.outcome = (
            f"what the command did to {count_text(count, 'path')} was rolled back, to {short}"
            if count
            else f"the command had changed nothing since {short}"
        )
        return result


class HeldCheckpoint(NamedTuple):
    """A checkpoint that is held until its block ends."""

    context: Context
    made: CreateResult
    checkpoint_lock: CheckpointLock
    mount: int | None
    """The mount through which the root was reached, or None where that cannot be known."""

    def go_back(
        self, end_processes: Callable[[], None] | None = None, reason: str | None = None
    ) -> RestoreResult:
        """Goes back to the checkpoint; see :func:`go_back`."""
        return go_back(self.context, self.made.id, end_processes, mount=self.mount, reason=reason)


Value = TypeVar("Value")


class CheckpointBlock(Generic[Value]):
    """Takes a checkpoint before something risky is done, and holds it until that has ended.

    While another block may go back over the same paths, waits for it as long as the context
    waits for locks, or does not wait with ``refuse``; then raises Busy. The body, what it calls
    and the processes that it starts are inside: blocks of theirs belong to this one. When the
    body raises, ``give_up`` is called with that error, before the checkpoint is released. The body
    gets the ``value`` of the held checkpoint.

    In the main thread no signal interrupts how the block begins and how it is left: what arrives
    then is delivered afterwards. Only the taking of the checkpoint is interrupted, where it waits
    or tells of its progress; then the block has not begun. A block that is collected before it was
    left changes no file: it releases the checkpoint, and warns.
    """

    def __init__(
        self,
        context: Context,
        request: CaptureRequest,
        operation: str,
        give_up: Callable[[HeldCheckpoint, BaseException], None],
        value: Callable[[HeldCheckpoint], Value],
        overlap: str = "wait",
    ) -> None:
        if overlap not in set(Overlap):
            raise InvalidArgument(f"overlap is 'wait' or 'refuse', not {overlap!r}")
        self._arguments = (context, request, operation, give_up, value, overlap)
        self._context = context
        self._give_up = give_up
        self._guard = Guard()
        self._checkpoint_lock: CheckpointLock | None = None
        self._begun: _Begun | None = None

    @uninterrupted
    def __enter__(self) -> Value:
        context, request, operation, _, value, overlap = self._arguments
        if self._checkpoint_lock is not None:  # its end would be that of the first one, too
            raise entered_again()
        try:
            self._guard.stand(ending=False)
            self._checkpoint_lock = checkpoint_lock = CheckpointLock(operation)
            wait_s = context.wait_s if overlap == Overlap.WAIT else 0
            mount = mount_of(context.fs, context.root)
            made = _taken(context, request, checkpoint_lock, wait_s)
            held = HeldCheckpoint(context, made, checkpoint_lock, mount)
            self._begun = _Begun(held, self._guard)
            entered.set(entered.get() | {made.id})
            block_value = value(held)
            self._guard.deliver()
        except BaseException:
            self._leave()
            raise
        return block_value

    @uninterrupted
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interruption: BaseException | None = None
        while True:  # the body may have put another handler in the place of ours, as asyncio does
            try:
                self._guard.stand(ending=True)
                break
            except BaseException as raised:  # noqa: BLE001 - it is raised when the block is left
                interruption = raised
        begun = self._begun
        try:
            if error is not None and begun is not None and begun.held.checkpoint_lock.is_ours:
                begun.note_failure(error)  # where the body went back by itself
                try:
                    self._give_up(begun.held, error)
                except Exception as failure:
                    begun.note_failure(failure)
                    raise failure from error
        finally:
            del begun  # the last one but that of the block
            self._leave()
            if interruption is not None:
                try:
                    raise interruption
                finally:
                    del interruption  # which would keep the frames that it went through

    @uninterrupted
    def abandon(self) -> None:
        """Leaves the block without going back, and warns of that; does nothing after it."""
        if self._begun is not None:
            self._begun.abandon()

    def _leave(self) -> None:
        try:
            if self._checkpoint_lock is not None:
                self._checkpoint_lock.release()
            if self._begun is not None:
                entered.set(entered.get() - {self._begun.held.made.id})
                self._begun.is_left = True
        finally:
            self._checkpoint_lock = self._begun = None
            self._guard.go()


class _Begun:
    """What a block has from its beginning until it is left.

    An object of its own, which goes while signals are kept: what a handler raises in a finaliser
    is lost.
    """

    def __init__(self, held: HeldCheckpoint, guard: Guard) -> None:
        self.held = held
        self.is_left = False
        self._guard = guard

    def note_failure(self, error: BaseException) -> None:
        """Releases the checkpoint, and notes why, if an error says that the roll-back failed."""
        held = self.held
        if isinstance(error, TreesnapError) and error.checkpoint_id == held.made.id:
            reason = error.message.removeprefix(_failed_to(held.made.id))
            held.checkpoint_lock.leave(held.context, reason)

    @uninterrupted
    def abandon(self) -> None:
        """Releases the checkpoint, and warns of what is not rolled back."""
        context, checkpoint_lock = self.held.context, self.held.checkpoint_lock
        if self.is_left or not checkpoint_lock.is_ours:
            return
        self.is_left = True
        try:
            self._guard.stand(ending=True)
            checkpoint_lock.release()
            context.monitor.warn(
                WarningCode.BLOCK_ABANDONED,
                f"A block in {quoted(context.root)} was never left, so what it did was not "
                f"rolled back; the state before it is {self.held.made.id[:12]}",
            )
        finally:
            self._guard.go()

    def __del__(self) -> None:
        self.abandon()


def itself(held: HeldCheckpoint) -> HeldCheckpoint:
    """Returns its argument: the value of a block whose body rolls back by itself."""
    return held


@interruptible
def _taken(
    context: Context, request: CaptureRequest, checkpoint_lock: CheckpointLock, wait_s: float
) -> CreateResult:
    from treesnap.core.ops.create import create

    listening = context._replace(monitor=_InterruptibleMonitor(context.monitor))
    return when_alone(lambda: create(listening, request, checkpoint_lock), wait_s)


class _InterruptibleMonitor:
    """Lets a signal interrupt an operation where that tells of its progress."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Tells of a phase, unless a signal interrupts."""
        interrupt_here()
        self._monitor.begin(phase, files, size_bytes)

    def advance(self, files: int, size_bytes: int) -> None:
        """Tells of progress, unless a signal interrupts."""
        interrupt_here()
        self._monitor.advance(files, size_bytes)

    def warn(self, code: WarningCode, message: str) -> None:
        """Tells of a warning."""
        self._monitor.warn(code, message)


@contextmanager
def held_snapshot(context: Context, snapshot_id: SnapshotId, operation: str) -> Iterator[None]:
    """Holds an older snapshot for a roll-back; waits and raises like :class:`CheckpointBlock`."""
    if snapshot_id in entered.get():
        yield
        return
    checkpoint_lock = CheckpointLock(operation)

    def take() -> None:
        with (
            opened(context, operation, writing=True, recover=False) as session,
            locked_root(session, operation),
        ):
            refuse_overlap(session, None)
            checkpoint_lock.take(session, snapshot_id, None)

    try:
        when_alone(take, context.wait_s)
        yield
    finally:
        checkpoint_lock.release()


@uninterrupted
def go_back(
    context: Context,
    snapshot_id: SnapshotId,
    end_processes: Callable[[], None] | None = None,
    *,
    mount: int | None = None,
    reason: str | None = None,
    attachment: AttachmentChange | None = None,
) -> RestoreResult:
    """Makes the root as in a checkpoint, whatever a failed step left in it.

    ``mount`` is that of the root before the step. ``reason`` is noted of the
    snapshot; ``attachment`` changes with the files, and its state before must be kept even if
    room is short.

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
    with Guard(), _naming(snapshot_id):
        if end_processes is not None:
            end_processes()
        _refuse_covered(context, mount)
        _clear_place(context)
        unlock_root(context.fs, context.root)
        return _restored(context, snapshot_id, reason, attachment)


@contextmanager
def _naming(snapshot_id: SnapshotId) -> Iterator[None]:
    """Makes errors of a roll-back say that it failed, and to which checkpoint it leads."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, it must say what failed
        failed = error if isinstance(error, TreesnapError) else OperationFailed(error_text(error))
        failed.message = f"{_failed_to(snapshot_id)}{failed.message}"
        failed.args = (failed.message, *failed.args[1:])
        failed.checkpoint_id = snapshot_id
        raise failed from (error if failed is not error else error.__cause__)


def _failed_to(snapshot_id: SnapshotId) -> str:
    return f"The roll-back to {snapshot_id[:12]} failed: "


def _refuse_covered(context: Context, mount: int | None) -> None:
    """Raises Refused if something else is mounted where the root was.

    Without a mount from before the step only what is mounted at the root itself is noticed.
    """
    from treesnap.core.ops.restore.attempt import covered, refuse_covered

    if mount is None:
        with opened(context, "look at the root", recover=False) as session:
            refuse_covered(session)
    elif mount_of(context.fs, context.root) != mount:
        raise covered(context)


def _restored(
    context: Context,
    snapshot_id: SnapshotId,
    reason: str | None,
    attachment: AttachmentChange | None,
) -> RestoreResult:
    from treesnap.core.ops.maintenance.space import make_room
    from treesnap.core.ops.restore.attempt import NoRoomToKeep, NoRoomToStage
    from treesnap.core.ops.restore.plan import RestoreRequest, WayBack
    from treesnap.core.ops.undo import restore

    way = WayBack()
    has_made_room = False
    while True:
        request = RestoreRequest(
            ref=snapshot_id, force=True, reason=reason, attachment=attachment, way_back=way
        )
        try:
            return restore(context, request)
        except NoRoomToKeep as full:
            if way.not_kept is not None or (has_made_room and attachment is not None):
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
    """Warns of what a roll-back left alone or lacks, for callers that do not return its result."""
    left = result.untouched
    if left:
        named = first_few(left, lambda item: f"{quoted(item.path)} ({item.reason.word})")
        context.monitor.warn(
            WarningCode.LEFT_ALONE, f"The roll-back left alone what it cannot put back: {named}"
        )
    if result.missing:
        named = first_few(result.missing, quoted)
        context.monitor.warn(
            WarningCode.LEFT_ALONE,
            f"The checkpoint could not read what the roll-back lacks: {named}",
        )


def _clear_place(context: Context) -> None:
    """Moves aside what lies in the root's place and is not a directory."""
    fs = context.fs
    above, name = os.path.split(context.root)
    try:
        is_in_the_way = not S_ISDIR(fs.lstat(context.root).st_mode)
    except OSError:  # there is nothing
        return
    if is_in_the_way:
        names = (path_beside(context.root, f".left-{number}") for number in count(1))
        with (
            translating_os_errors("move aside what is in the place of the root"),
            opened_real(fs, above) as above_fd,
        ):
            aside = next(each for each in names if not os.path.lexists(each))
            new = os.path.basename(aside)
            fs.rename(name, new, source_dir_fd=above_fd, target_dir_fd=above_fd)
        context.monitor.warn(
            WarningCode.ROOT_MOVED_ASIDE,
            f"{quoted(context.root)} was no longer a directory; what it was is {quoted(aside)}",
        )
