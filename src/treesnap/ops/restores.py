"""``restore``, ``undo`` and ``redo``: the operations, on :mod:`treesnap.ops.restore`."""

from __future__ import annotations

import os

from treesnap.codec.history import Moment, RestoreHistory
from treesnap.codec.reader import TreeReader
from treesnap.errors import ErrorCode, NotFound, Refused, StoreMissing, printable
from treesnap.model import Snapshot
from treesnap.ops.access import locked_root, opened, recover
from treesnap.ops.auto_maintenance import maintain
from treesnap.ops.capture import preview
from treesnap.ops.context import Context
from treesnap.ops.history import count_rollback
from treesnap.ops.places import refuse_dangerous
from treesnap.ops.references import reading, resolve_in
from treesnap.ops.restore.export import export
from treesnap.ops.restore.goal import (
    Goal,
    HistoryStep,
    RestoreRequest,
    empty_tree,
    goal_of,
    result_of,
    rules_of,
    target_state,
)
from treesnap.ops.restore.plan import make_plan, refuse_blocked, require_paths
from treesnap.ops.restore.reach import reach, refuse_in_the_way
from treesnap.ops.session import Session
from treesnap.ops.state import MemoryObjects, State, walked_state
from treesnap.results import RestoreResult
from treesnap.store.journal import load_history
from treesnap.store.plan_files import move_to


def restore(context: Context, request: RestoreRequest) -> RestoreResult:
    """Restores; see :meth:`treesnap.Handle.restore`."""
    changes_root = request.to is None and not request.dry_run
    if request.dry_run:
        recover(context)
    with opened(context, "restore", writing=True, recover=not changes_root) as session:
        if changes_root:
            refuse_dangerous_restore(context, force=request.force)
            with locked_root(session, "restore"):
                goal = goal_of(session, request)
                result = reach(session, goal)
                if request.counted:
                    count_rollback(session, goal.snapshot)
            if result.safety_id is not None:
                maintain(context)
            return result
        goal = goal_of(session, request)
        with reading(session, goal.snapshot):
            if request.to is not None:
                return export(session, goal, request.to, dry_run=request.dry_run)
            return dry_run(session, goal)


def refuse_dangerous_restore(context: Context, *, force: bool) -> None:
    """Raises Refused for a root that is dangerous, or no directory any more."""
    if not force:
        refuse_dangerous(context.root, context.store_path)
    if os.path.lexists(context.root) and not os.path.isdir(context.root):
        raise Refused(
            f"The root {printable(context.root)!r} is no directory any more",
            code=ErrorCode.NOT_A_DIRECTORY,
            path=context.root,
        )


def dry_run(session: Session, goal: Goal) -> RestoreResult:
    """Returns what a restore would do; writes nothing."""
    target = target_state(session, goal)
    if not os.path.lexists(session.context.root):
        objects = MemoryObjects(session.store)
        empty = target.root._replace(content=empty_tree(objects))
        current = State(root=empty, trees=TreeReader(objects.get), groups={})
    else:
        seen = preview(session, goal.scope, rules_of(goal))
        current = walked_state(seen.result, seen.objects.get)
    require_paths(goal.paths, current, target)
    plan = make_plan(current, target, goal.scope)
    refuse_blocked(plan)
    refuse_in_the_way(session.context, plan, goal.scope)
    return result_of(goal, plan, current, target, safety_id=None, is_dry_run=True)


_VERBS = {"undo": "restore", "redo": "undo"}
"""What each command undoes."""


def undo(context: Context) -> RestoreResult:
    """Takes the newest restore back, within the paths that it concerned."""
    return _step(context, "undo", RestoreHistory.undone)


def redo(context: Context) -> RestoreResult:
    """Takes the newest undo back."""
    return _step(context, "redo", RestoreHistory.redone)


def _step(context: Context, verb: str, history_step: HistoryStep) -> RestoreResult:
    refuse_dangerous_restore(context, force=True)
    try:
        with opened(context, verb, writing=True, recover=False) as session:
            result = _stepped(session, verb, history_step)
            if result is None:
                with session.root.plans_locked(verb):
                    result = _stepped(session, verb, history_step, has_plans=True)
            assert result is not None
    except StoreMissing as error:
        raise _nothing(verb) from error
    if result.safety_id is not None:
        maintain(context)
    return result


def _stepped(
    session: Session, verb: str, history_step: HistoryStep, *, has_plans: bool = False
) -> RestoreResult | None:
    """Takes the step; returns None when a plan goes along that the caller has not locked.

    Its lock is taken before the root's, and the history cannot be read before that is taken.
    """
    with locked_root(session, verb):
        moment = _next(session, verb)
        snapshot = _safety(session, moment, verb)
        if snapshot.record.plan is not None and not has_plans:
            return None
        goal = Goal(
            snapshot=snapshot,
            scope=moment.scope,
            label=f"before {verb} to",
            history_step=history_step,
            removes_root=moment.is_absent,
            move=move_to(session.root, snapshot),
        )
        return reach(session, goal)


def _next(session: Session, verb: str) -> Moment:
    history = load_history(session.root)
    moments = history.undo if verb == "undo" else history.redo
    if not moments:
        raise _nothing(verb)
    return moments[-1]


def _safety(session: Session, moment: Moment, verb: str) -> Snapshot:
    """Returns the snapshot of a moment, or raises NotFound when it was deleted."""
    try:
        return resolve_in(session, moment.snapshot_id)
    except NotFound as error:
        raise NotFound(
            f"The newest {_VERBS[verb]} cannot be undone: the snapshot of the state before "
            f"it, {moment.snapshot_id[:12]}, was deleted",
            code=ErrorCode.NOTHING_TO_UNDO,
        ) from error


def _nothing(verb: str) -> NotFound:
    return NotFound(
        f"There is nothing to {verb}",
        code=ErrorCode.NOTHING_TO_UNDO,
    )
