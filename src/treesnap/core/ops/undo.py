"""``restore``, ``undo`` and ``redo``: opens and locks the root, and lets ``ops.restore`` work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from treesnap.core.codec.root_files import HISTORY, Moment, RestoreHistory
from treesnap.core.features import function_for
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StoreMissing,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import RestoreResult
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.access import (
    is_unfinished,
    locked_root,
    opened,
    recover,
    tell_other_steps,
)
from treesnap.core.ops.checkpoint_locks import when_alone
from treesnap.core.ops.context import Context, Session, refuse_dangerous
from treesnap.core.ops.history.listing import count_rollback
from treesnap.core.ops.maintenance.space import maintain, settings_or_defaults, with_room
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.restore.attempt import dry_run, restore_to
from treesnap.core.ops.restore.export import export
from treesnap.core.ops.restore.plan import (
    KEEP,
    OVERWRITE,
    Goal,
    HistoryStep,
    RestoreRequest,
    WayBack,
    goal_of,
)
from treesnap.core.store.attachments import AttachmentChange
from treesnap.core.store.roots import load_history
from treesnap.core.store.snapshots import restored_ref
from treesnap.core.worktree.apply.protection import unlock_root

_REASON_SIZE_MAX = 1024
_VERBS = {"undo": "restore", "redo": "undo"}
"""What each command undoes."""


def restore(context: Context, request: RestoreRequest) -> RestoreResult:
    """Restores; see :meth:`treesnap.Handle.restore`.

    check what is asked for
    leave the root as it is        where the files go elsewhere, or in a dry run
    wait for other steps           those that may go back over the same paths
    find the snapshots             they stay when room has to be made
    lock the root                  again with more room, if there was too little
    restore                        ``ops.restore.attempt`` has the steps
    count the roll-back
    maintain the store
    """
    _check(request)
    if request.to is not None or request.dry_run:
        return _restore_elsewhere(context, request)

    def restore_alone() -> RestoreResult:
        with opened(context, "restore", recover=False) as session:
            goal = goal_in_root(session, request)
            if goal.snapshot.root_id != session.root.id:  # of a fetched history
                session.root.register()  # the root may never have been captured
        needed = {item.id for item in (goal.snapshot, *goal.bases)}
        return with_room(context, restore_once, request.spared | needed)

    def restore_once() -> RestoreResult:
        with opened(context, "restore", writing=True, recover=False, tells_steps=False) as session:
            refuse_dangerous_restore(context, force=request.force)
            with locked_root(session, "restore"):
                goal = goal_in_root(session, request)
                if goal.request.way_back is not None:
                    unlock_root(context.fs, context.root)
                tell_other_steps(session, goal.snapshot, goal.scope)
                result = restore_to(session, goal)
                if not request.paths:
                    count_rollback(session, goal.snapshot, request.reason)
            if result.safety_id is not None:
                maintain(context)
            return result

    return when_alone(restore_alone, context.wait_s)


def _restore_elsewhere(context: Context, request: RestoreRequest) -> RestoreResult:
    """Writes into another directory, or only says what would change; leaves the root as it is."""
    if request.dry_run:
        recover(context)
    with opened(context, "restore", writing=True) as session:
        is_elsewhere = request.to is not None
        goal = goal_of(session, request) if is_elsewhere else goal_in_root(session, request)
        with ExitStack() as stack:
            for snapshot in (goal.snapshot, *goal.bases):
                stack.enter_context(reading(session, snapshot))
            if request.to is not None:
                return export(session, goal, request.to, dry_run=request.dry_run)
            return dry_run(session, goal)


def goal_in_root(session: Session, request: RestoreRequest) -> Goal:
    """Returns what a restore of the root's own files goes to.

    What the settings exclude by now is left alone, as what ignore files exclude; not in a
    roll-back, in which only the checkpoint's exclusions count: its step may have changed both.
    Nor where a person goes back instead, because the step was killed or its roll-back failed.
    """
    if request.way_back is not None:
        return goal_of(session, request)
    goal = goal_of(session, request)
    if not (request.paths or request.bases) and is_unfinished(session, goal.snapshot):
        return goal_of(session, request._replace(way_back=WayBack(is_late=True)))
    settings = settings_or_defaults(session)
    excluded = settings.excluded if settings is not None else ()
    return goal_of(session, request._replace(exclude=(*excluded, *request.exclude)))


def _check(request: RestoreRequest) -> None:
    """Raises InvalidArgument for what makes no sense, whatever is in the store."""
    if request.conflicts not in {KEEP, OVERWRITE}:
        raise InvalidArgument(f"conflicts is 'keep' or 'overwrite', not {request.conflicts!r}")
    if request.reason is not None:
        _check_reason(request.reason)
    if request.bases and request.to is not None:
        raise InvalidArgument("base cannot be combined with to: it is about the root's own files")


def _check_reason(reason: str) -> None:
    """Raises InvalidArgument for what could not be noted once the files are back."""
    try:
        size_bytes = len(reason.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"The reason {quoted(reason)} is not UTF-8") from None
    if size_bytes > _REASON_SIZE_MAX:
        raise InvalidArgument(f"The reason has more than {_REASON_SIZE_MAX:,} bytes")


def undo(
    context: Context,
    *,
    is_dry_run: bool = False,
    privileged: bool = False,
    list_changes: bool = True,
) -> RestoreResult:
    """Undoes the newest restore, within the paths that it concerned."""
    step = _Undoing("undo", RestoreHistory.undone, privileged, list_changes)
    return _dry_step(context, step) if is_dry_run else _step(context, step)


def redo(
    context: Context,
    *,
    is_dry_run: bool = False,
    privileged: bool = False,
    list_changes: bool = True,
) -> RestoreResult:
    """Undoes the newest undo."""
    step = _Undoing("redo", RestoreHistory.redone, privileged, list_changes)
    return _dry_step(context, step) if is_dry_run else _step(context, step)


def make_undoable(context: Context, checkpoint: Snapshot) -> None:
    """Has the next undo go back to a checkpoint: what came after it counts as a restore does."""
    with (
        opened(context, "note what can be undone", writing=True) as session,
        locked_root(session, "note what can be undone", touches_tree=False),
    ):
        moment = Moment(checkpoint.id, checkpoint.record.scope)
        history = load_history(session.root).restored(moment)
        session.root.write("history", HISTORY, history)


class _Undoing(NamedTuple):
    """A step in the history of restores."""

    verb: str
    history_step: HistoryStep
    privileged: bool
    list_changes: bool


def _dry_step(context: Context, step: _Undoing) -> RestoreResult:
    """Returns what a step would do, with the attachment that would go along."""
    recover(context)
    verb = step.verb
    try:
        with opened(context, verb, writing=True) as session:
            goal = _goal_of_step(session, step)
            goal = _with_attachment(session, goal)
            with ExitStack() as stack:
                for snapshot in filter(None, (goal.snapshot, goal.left_by)):
                    stack.enter_context(reading(session, snapshot))
                return dry_run(session, goal)
    except StoreMissing as error:
        raise _nothing(verb) from error


def _step(context: Context, step: _Undoing) -> RestoreResult:
    def attempt() -> RestoreResult:  # what it goes to is kept by the history
        return with_room(context, lambda: _step_alone(context, step), frozenset())

    return when_alone(attempt, context.wait_s)


def _step_alone(context: Context, step: _Undoing) -> RestoreResult:
    refuse_dangerous_restore(context, force=True)
    verb = step.verb
    try:
        with (
            opened(context, verb, writing=True, recover=False) as session,
            _locked_goal(session, step) as goal,
        ):
            result = restore_to(session, goal)
    except StoreMissing as error:
        raise _nothing(verb) from error
    if result.safety_id is not None:
        maintain(context)
    return result


@contextmanager
def _locked_goal(session: Session, step: _Undoing) -> Iterator[Goal]:
    """Yields to which state a step goes, with the root locked, and before it what goes along.

    Which attachment that is, the history says, and that is read under the root's lock, which is
    taken last. So where there is one, all is read once more under both locks.
    """
    with ExitStack() as locks:
        locks.enter_context(locked_root(session, step.verb))
        goal = _goal_of_step(session, step)
        if goal.snapshot.record.attachment is not None:
            locks.close()
            locks.enter_context(session.root.attachments_locked(step.verb))
            locks.enter_context(locked_root(session, step.verb))
            goal = _goal_of_step(session, step)
            goal = _with_attachment(session, goal)
        yield goal


def _with_attachment(session: Session, goal: Goal) -> Goal:
    """Returns a goal with the attachment that goes along; raises what :func:`_change_for` does."""
    change = _change_for(session, goal.snapshot)
    return goal._replace(request=goal.request._replace(attachment=change))


def _change_for(session: Session, snapshot: Snapshot) -> AttachmentChange | None:
    """Returns how an attachment changes with the files; raises Refused where none can say."""
    attachment = snapshot.record.attachment
    if attachment is None:
        return None
    change_for = function_for("attachments", attachment.kind)
    if change_for is None:
        raise Refused(
            f"A {attachment.kind} changes with the files of snapshot {snapshot.id[:12]}, and this "
            f"treesnap was installed without its part for {attachment.kind}s",
            code=ErrorCode.FEATURE_MISSING,
        )
    change: AttachmentChange | None = change_for(session.root, snapshot)
    return change


def _goal_of_step(session: Session, step: _Undoing) -> Goal:
    """Returns to which state a step goes; raises NotFound."""
    verb = step.verb
    history = load_history(session.root)
    moments = history.undo if verb == "undo" else history.redo
    if not moments:
        raise _nothing(verb)
    moment = moments[-1]
    try:
        snapshot = resolve_in(session, moment.snapshot_id)
    except NotFound as error:
        raise NotFound(
            f"The newest {_VERBS[verb]} cannot be undone: the snapshot of the state before "
            f"it, {moment.snapshot_id[:12]}, was deleted",
            code=ErrorCode.NOTHING_TO_UNDO,
        ) from error
    return Goal(
        RestoreRequest(ref=snapshot.id, privileged=step.privileged, list_changes=step.list_changes),
        snapshot,
        moment.scope,
        left_by=_restored_after(session, snapshot),
        label=f"before {verb} to",
        history_step=step.history_step,
        removes_root=moment.is_absent,
    ).judged(session)


def _restored_after(session: Session, safety: Snapshot) -> Snapshot | None:
    """Returns what was restored after a safety snapshot was taken; None if that was deleted."""
    ref = restored_ref(safety)
    if ref is None:
        return None
    ids = session.store.snapshots.listing(session.root.id).beginning(ref)
    with suppress(NotFound, Corrupt):
        return session.store.snapshots.load(session.root.id, ids[0]) if ids else None
    return None


def _nothing(verb: str) -> NotFound:
    return NotFound(f"There is nothing to {verb}", code=ErrorCode.NOTHING_TO_UNDO)


def refuse_dangerous_restore(context: Context, *, force: bool) -> None:
    """Raises Refused for a root that is dangerous, or no longer a directory."""
    if not force:
        refuse_dangerous(context.root, context.store_path)
    if context.has_root() and not os.path.isdir(context.root):
        raise Refused(
            f"The root {quoted(context.root)} is no longer a directory",
            code=ErrorCode.NOT_A_DIRECTORY,
            path=context.root,
        )
