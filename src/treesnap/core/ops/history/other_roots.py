"""Comparing the live trees of two roots of one store: a fork and its origin, or two forks."""

from __future__ import annotations

import os

from treesnap.core.model.entities import ChangeList
from treesnap.core.model.errors import ErrorCode, NotFound, quoted
from treesnap.core.model.treepath import without_nested
from treesnap.core.ops.access import opened, recover
from treesnap.core.ops.capture import live_state
from treesnap.core.ops.context import Context, Session, absolute, context_at, is_root_of
from treesnap.core.ops.maintenance.space import settings_or_defaults
from treesnap.core.ops.tree_state import State, compared, require_paths
from treesnap.core.worktree.scan.ignore import given


def diff_root(context: Context, directory: str, paths: tuple[bytes, ...]) -> ChangeList:
    """Returns what another root's live tree has that differs from this one's."""
    other = other_context(context, directory)
    scope = without_nested(list(paths)) if paths and b"" not in paths else None
    for each in (context, other):
        recover(each)
    with opened(context, "compare") as mine, opened(other, "compare") as theirs:
        old, new = _live(mine, scope), _live(theirs, scope)
        require_paths(paths, old, new)
        return compared(old, new, scope, None)


def other_context(context: Context, directory: str) -> Context:
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
    settings = settings_or_defaults(session)
    rules = given(settings.excluded if settings is not None else ())
    return live_state(session, scope, rules)
