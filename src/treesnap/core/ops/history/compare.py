"""``status`` and ``diff``: what changed between two states of one root, or of two roots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from treesnap.core.diff.trees import changes
from treesnap.core.model import treepath
from treesnap.core.model.entries import Change, ChangeList
from treesnap.core.model.errors import ErrorCode, NotFound, StoreMissing, quoted
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import Privileges, StatusResult
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.access import opened, recover
from treesnap.core.ops.capture import live_state, preview
from treesnap.core.ops.context import Context, Session, absolute, context_at, is_root_of
from treesnap.core.ops.databases import with_logs, with_logs_told_once
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
    recovery = recover(context)
    recovered = recovery.done if recovery is not None else None
    try:
        with opened(context, "look at the tree", sweep=True) as session:
            with suppress(OSError):  # a store that cannot be written to is looked at all the same
                session.store.index.drop_damaged()
            snapshot = position(session) if ref is None else resolve_in(session, ref, anywhere=True)
            if snapshot is None:
                return StatusResult(snapshot=None, changes=(), skipped=(), recovered=recovered)
            scope = effective_scope(snapshot, None)
            seen = preview(session, CaptureRequest(scope=scope, rules=snapshot.record.rules))
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
    """Returns the state that a restore would make, and what it leaves out, which does not count."""
    record, privileged = snapshot.record, is_own(session, snapshot)
    return wanted_state(session, record, scope, live, privileged=privileged)


def diff(context: Context, a: str | None, b: str | None, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns what changed from one state to another."""
    if b is None:
        recover(context)
    with opened(context, "compare") as session:
        old = resolve_in(session, a if a is not None else "latest", paths=paths, anywhere=True)
        new = resolve_in(session, b, paths=paths, anywhere=True) if b is not None else None
        snapshots = [old] if new is None else [old, new]
        named = with_logs(session, snapshots, paths)
        scope = effective_scope(old, named or None)
        if new is not None:
            scope = effective_scope(new, scope)
            right = recorded_state(session, new.record, scope)
            left = recorded_state(session, old.record, scope)
        else:
            right = live_state(session, CaptureRequest(scope=scope, rules=old.record.rules))
            left, _ = _as_restored(session, old, scope, right)
        require_paths(paths, left, right)
        found = compared(left, right, scope, session.path_budget(), is_new_live=new is None)
        return with_logs_told_once(found, paths)


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


def diff_root(context: Context, directory: str, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns how the live tree of another root of the store, such as a fork, differs from this."""
    other = _other_context(context, directory)
    scope = treepath.without_nested(list(paths)) if paths and b"" not in paths else None
    for each in (context, other):
        recover(each)
    with opened(context, "compare") as mine, opened(other, "compare") as theirs:
        old, new = _live(mine, scope), _live(theirs, scope)
        require_paths(paths, old, new)
        return compared(old, new, scope, None)


def _other_context(context: Context, directory: str) -> Context:
    """Returns the context of another root of the store; raises NotFound for what is none."""
    path = os.path.realpath(absolute(directory))
    if path == context.root or not is_root_of(context.store_path, path):
        raise NotFound(
            f"{quoted(path)} is not another root of this store",
            code=ErrorCode.UNKNOWN_ROOT,
            path=path,
        )
    return context_at(
        path, context.store_path, fs=context.fs, monitor=context.monitor, wait_s=context.wait_s
    )


def _live(session: Session, scope: tuple[bytes, ...] | None) -> State:
    from treesnap.core.ops.maintenance.space import with_settings

    return live_state(session, with_settings(session, CaptureRequest(scope=scope)))
