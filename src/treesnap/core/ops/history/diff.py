"""``status`` and ``diff``: what changed between two states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from treesnap.core.diff.trees import changes
from treesnap.core.model import treepath
from treesnap.core.model.entities import Change, ChangeList, Snapshot
from treesnap.core.model.errors import StoreMissing
from treesnap.core.model.results import Privileges, StatusResult
from treesnap.core.ops.access import opened, recover
from treesnap.core.ops.capture import live_state, preview
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.privileges import is_own, wanted_state
from treesnap.core.ops.references import position, reading, resolve_in
from treesnap.core.ops.tree_state import (
    State,
    compared,
    effective_scope,
    empty_state,
    recorded_state,
    require_paths,
)


def status(context: Context, ref: str | None = None) -> StatusResult:
    """Compares the live tree with a snapshot, by default the one at the root's position."""
    recovered = recover(context)
    try:
        with opened(context, "look at the tree", sweep=True) as session:
            with suppress(OSError):  # a store that cannot be written to is looked at all the same
                session.store.index.drop_damaged()
            snapshot = position(session) if ref is None else resolve_in(session, ref, anywhere=True)
            if snapshot is None:
                return StatusResult(snapshot=None, changes=(), skipped=(), recovered=recovered)
            scope = effective_scope(snapshot, None)
            seen = preview(session, scope, snapshot.record.rules)
            recorded, left_out = _as_restored(session, snapshot, scope, seen.state)
            return StatusResult(
                snapshot=snapshot,
                changes=compared(
                    recorded, seen.state, scope, session.path_budget(), is_new_live=True
                ),
                skipped=seen.result.skipped,
                recovered=recovered,
                privileges=left_out,
            )
    except StoreMissing:
        if ref is not None:
            raise
        return StatusResult(snapshot=None, changes=(), skipped=())


def _as_restored(
    session: Session, snapshot: Snapshot, scope: tuple[bytes, ...] | None, live: State
) -> tuple[State, Privileges]:
    """Returns what a restore of a snapshot would lead to, and what it leaves out: no change."""
    record, privileged = snapshot.record, is_own(session, snapshot)
    return wanted_state(session, record, scope, live, privileged=privileged)


def diff(context: Context, a: str | None, b: str | None, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns what changed from one state to another."""
    if b is None:
        recover(context)
    with opened(context, "compare") as session:
        old = resolve_in(session, a if a is not None else "latest", paths=paths, anywhere=True)
        new = resolve_in(session, b, paths=paths, anywhere=True) if b is not None else None
        scope = effective_scope(old, paths or None)
        if new is not None:
            scope = effective_scope(new, scope)
            right = recorded_state(session, new.record, scope)
            left = recorded_state(session, old.record, scope)
        else:
            right = live_state(session, scope, old.record.rules)
            left, _ = _as_restored(session, old, scope, right)
        require_paths(paths, left, right)
        return compared(left, right, scope, session.path_budget(), is_new_live=new is None)


def each_change(
    context: Context, a: str | None, b: str, paths: tuple[bytes, ...]
) -> Iterator[Change]:
    """Yields what changed from one snapshot to another, while the trees are read."""
    with opened(context, "compare", recover=False) as session:
        new = resolve_in(session, b, paths=paths, anywhere=True)
        old = resolve_in(session, a, paths=paths, anywhere=True) if a is not None else None
        with reading(session, new):
            scope = effective_scope(new, paths or None)
            if old is not None:
                scope = effective_scope(old, scope)
            right = recorded_state(session, new.record, scope)
            left = (
                recorded_state(session, old.record, scope)
                if old is not None
                else empty_state(session, right.root)
            )
            spine = treepath.ancestors(scope) if scope is not None else set()
            walks = left.trees.walk(), right.trees.walk()
            for change in changes(left.root, right.root, walks[0].entries, walks[1].entries):
                if change.path not in spine:
                    yield change
