"""The position: where a root stands, marks of it, and rollbacks to where it stood.

A root stands at its *position*, the newest snapshot of the whole root that is no
safety snapshot: what was saved last. A *mark* is one small record with the state of
an older snapshot; nothing is walked or copied. Being the newest, it moves the
position back to that state whether the files follow or not, and no other record has
to say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treesnap.core.diff.trees import is_time_alone
from treesnap.core.model.entries import Change
from treesnap.core.model.errors import ErrorCode, InvalidArgument, Refused, StoreMissing, quoted
from treesnap.core.model.quantities import first_few
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import PositionResult, StatusResult
from treesnap.core.model.snapshots import IgnoreRules, Snapshot, SnapshotKind
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.capture import publish_again, uncaptured
from treesnap.core.ops.checkpoint_locks import when_alone
from treesnap.core.ops.context import Context, Session, check_root
from treesnap.core.ops.create import check_name, check_words, create, metadata_of
from treesnap.core.ops.history.compare import status
from treesnap.core.ops.history.listing import count_rollback
from treesnap.core.ops.maintenance.space import maintain, with_settings
from treesnap.core.ops.references import position, resolve_in, unknown
from treesnap.core.ops.restore.attempt import restore_to
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import goal_in_root, refuse_dangerous_restore
from treesnap.core.worktree.scan.ignore import given

_SHOWN_MAX = 3

OfContent = Callable[[tuple[Change, ...]], list[Change]]
"""Returns those of some changes that are of content, in the eyes of a caller."""


def compare_with_head(context: Context, of_content: OfContent = list) -> StatusResult:
    """Compares the content of the live tree with the position; times alone are not changes.

    So a file that was written again as it was did not change. The result has neither a
    snapshot nor changes when nothing was captured yet, but what a capture would leave out.
    """
    check_root(context, force=True)
    result = status(context)
    if result.snapshot is None:
        return result._replace(skipped=uncaptured(context))
    changes = tuple(change for change in of_content(result.changes) if not is_time_alone(change))
    return result._replace(changes=changes)


def mark_position(
    context: Context, request: CaptureRequest, of_content: OfContent = list
) -> Snapshot:
    """Marks the position; raises Refused when the content of the tree differs from it.

    Before the first capture there is nothing to differ from: then this captures. What changes
    during the call is in the mark or not as it was at the position.
    """
    result = compare_with_head(context, of_content)
    if result.snapshot is None:
        return create(context, request).snapshot
    if result.changes:
        named = first_few(result.changes, lambda change: quoted(change.path or b"."), _SHOWN_MAX)
        raise Refused(
            f"Not as in snapshot {result.snapshot.id[:12]}: {named}",
            code=ErrorCode.UNSAVED_CHANGES,
            path=result.changes[0].path,
        )
    return mark(context, result.snapshot.id, request)


def mark(context: Context, ref: str, request: CaptureRequest) -> Snapshot:
    """Publishes the state of a snapshot again with the metadata of a request, durably.

    What the request excludes is left alone by a restore of the mark, even where the state
    has it. Costs no look at the root. Raises NotFound, Refused (the name is taken), Busy.
    """
    check_words(request)
    given(request.exclude)
    try:
        with (
            opened(context, "mark a snapshot", writing=True, recover=False) as session,
            locked_root(session, "mark"),
        ):
            rules = with_settings(session, request).rules
            if request.name is not None:
                check_name(session, request.name)
            marked = _published(session, resolve_in(session, ref), metadata_of(request), rules)
    except StoreMissing as error:
        raise unknown(ref, has_any=False) from error
    maintain(context, marked.sequence)
    return marked


def rollback(
    context: Context,
    ref: str,
    *,
    of_session: str | None = None,
    keep_files: bool = False,
    reason: str = "rollback",
) -> PositionResult:
    """Goes back to a snapshot: restores the root unless told to keep the files, then moves
    the position, and counts the roll-back, whose reason the snapshot keeps.

    The files are restored all or nothing. A kill between that and the move leaves them
    restored and the position where it was, so that the difference shows as unsaved; the
    same call again ends it. Raises what ``restore`` does.
    """
    if not keep_files:
        refuse_dangerous_restore(context, force=False)
    result = when_alone(
        lambda: _rolled_back(context, ref, of_session, reason, keep_files=keep_files),
        context.wait_s,
    )
    maintain(context)
    return result


def _rolled_back(
    context: Context,
    ref: str,
    of_session: str | None,
    reason: str,
    *,
    keep_files: bool,
) -> PositionResult:
    with (
        opened(context, "roll back", writing=True, recover=False) as session,
        locked_root(session, "rollback"),
    ):
        goal = goal_in_root(session, RestoreRequest(ref=ref))
        if goal.snapshot.record.scope is not None:
            raise InvalidArgument(f"Snapshot {goal.snapshot.id[:12]} holds only some paths")
        restored = None if keep_files else restore_to(session, goal)
        stands_at = position(session)
        if stands_at is None or stands_at.root_hash != goal.snapshot.root_hash:
            request = CaptureRequest(
                session=of_session,
                kind=SnapshotKind.AUTOMATIC,
                label=f"rolled back to {goal.snapshot.id[:12]}",
            )
            stands_at = _published(session, goal.snapshot, metadata_of(request))
        count_rollback(session, goal.snapshot, reason)
    return PositionResult(snapshot=goal.snapshot, position=stands_at, restore=restored)


def _published(
    session: Session,
    snapshot: Snapshot,
    metadata: dict[str, Any],
    rules: tuple[IgnoreRules, ...] = (),
) -> Snapshot:
    """Publishes a snapshot's state again. The caller holds the root's lock."""
    return publish_again(
        session,
        snapshot,
        "the mark",
        parent=snapshot.id,
        rules=tuple(dict.fromkeys((*snapshot.record.rules, *rules))),
        **metadata,
    )
