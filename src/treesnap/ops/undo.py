"""``undo`` and ``redo``: restores of the states before restores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.codec.history import Moment, RestoreHistory
from treesnap.errors import ErrorCode, NotFound, StoreMissing
from treesnap.ops.access import Opened, locked_root, opened
from treesnap.ops.history import resolve_in
from treesnap.ops.plan_files import move_to
from treesnap.ops.restore import Goal, HistoryStep, reach, refuse_dangerous_restore
from treesnap.ops.restore_history import load_history
from treesnap.ops.upkeep import keep_up
from treesnap.results import RestoreResult

if TYPE_CHECKING:
    from treesnap.model import Snapshot
    from treesnap.ops.handle import Handle

_VERBS = {"undo": "restore", "redo": "undo"}
"""What each command takes back."""


def undo(handle: Handle) -> RestoreResult:
    """Takes the newest restore back, within the paths that it concerned."""
    return _step(handle, "undo", RestoreHistory.undone)


def redo(handle: Handle) -> RestoreResult:
    """Takes the newest undo back."""
    return _step(handle, "redo", RestoreHistory.redone)


def _step(handle: Handle, verb: str, history_step: HistoryStep) -> RestoreResult:
    refuse_dangerous_restore(handle, force=True)
    try:
        with opened(handle, verb, writing=True, recover=False) as pair:
            result = _stepped(handle, pair, verb, history_step)
            if result is None:
                with pair.root.plans_locked(verb):
                    result = _stepped(handle, pair, verb, history_step, has_plans=True)
            assert result is not None
    except StoreMissing as error:
        raise _nothing(verb) from error
    if result.safety_id is not None:
        keep_up(handle)
    return result


def _stepped(
    handle: Handle, pair: Opened, verb: str, history_step: HistoryStep, *, has_plans: bool = False
) -> RestoreResult | None:
    """Takes the step; returns None when a plan goes along that the caller has not locked.

    Its lock is taken before the root's, and the history cannot be read before that is taken.
    """
    with locked_root(handle, pair, verb):
        moment = _next(pair, verb)
        snapshot = _safety(pair, moment, verb)
        if snapshot.record.plan is not None and not has_plans:
            return None
        goal = Goal(
            snapshot=snapshot,
            scope=moment.scope,
            label=f"before {verb} to",
            history_step=history_step,
            removes_root=moment.is_absent,
            move=move_to(pair.root, snapshot),
        )
        return reach(handle, pair, goal)


def _next(pair: Opened, verb: str) -> Moment:
    history = load_history(pair.root)
    moments = history.undo if verb == "undo" else history.redo
    if not moments:
        raise _nothing(verb)
    return moments[-1]


def _safety(pair: Opened, moment: Moment, verb: str) -> Snapshot:
    """Returns the snapshot of a moment, or raises NotFound when it was deleted."""
    try:
        return resolve_in(pair, moment.snapshot_id)
    except NotFound as error:
        raise NotFound(
            f"The newest {_VERBS[verb]} cannot be taken back: the snapshot of the state before "
            f"it, {moment.snapshot_id[:12]}, was deleted",
            code=ErrorCode.NOTHING_TO_UNDO,
        ) from error


def _nothing(verb: str) -> NotFound:
    return NotFound(
        f"There is no {_VERBS[verb]} to take back",
        code=ErrorCode.NOTHING_TO_UNDO,
    )
