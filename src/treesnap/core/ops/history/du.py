"""``du``: the space that paths of a snapshot take, or the sessions of a root."""

from __future__ import annotations

from treesnap.core.model.errors import StoreMissing
from treesnap.core.model.events import Phase
from treesnap.core.model.results import GroupSpace, PathSpace
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.tree_state import entry_at
from treesnap.core.store.maintenance.space import measure_groups, measure_paths


def du(context: Context, ref: str, path: bytes, depth: int) -> tuple[PathSpace, ...]:
    """Returns the space that a path of a snapshot takes; see :meth:`treesnap.Handle.du`."""
    with opened(context, "measure a snapshot") as session:
        snapshot = resolve_in(session, ref, paths=(path,), anywhere=True)
        context.monitor.begin(Phase.MARK, None, None)
        with reading(session, snapshot):
            entry = entry_at(session.store.trees(), snapshot, path)
            return measure_paths(session.store, snapshot, path, entry, depth, session.path_budget())


def du_sessions(context: Context) -> tuple[GroupSpace, ...]:
    """Returns the space that each session takes; see :meth:`treesnap.Handle.du_sessions`."""
    try:
        with opened(context, "measure the sessions") as session:
            context.monitor.begin(Phase.MARK, None, None)
            return measure_groups(
                session.store, session.root.id, lambda snapshot: snapshot.session or ""
            )
    except StoreMissing:
        return ()
