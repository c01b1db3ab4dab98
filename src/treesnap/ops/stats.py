"""``stats``: sizes of the store and of its parts."""

from __future__ import annotations

from treesnap.errors import StoreMissing
from treesnap.events import Phase
from treesnap.ops.access import opened
from treesnap.ops.context import Context
from treesnap.results import StatsResult
from treesnap.store.maintenance.stats import measure


def stats(context: Context) -> StatsResult:
    """Returns the sizes; see :meth:`treesnap.Handle.stats`."""
    try:
        with opened(context, "measure the store") as session:
            context.monitor.begin(Phase.MARK, None, None)
            return measure(session.store, session.root.id)
    except StoreMissing:
        numbers = [name for name in StatsResult._fields if not name.startswith("by_")]
        return StatsResult(by_root=(), by_snapshot=(), **dict.fromkeys(numbers, 0))
