"""``gc``: give back the space of everything that no snapshot needs."""

from __future__ import annotations

from treesnap.ops.access import opened
from treesnap.ops.context import Context
from treesnap.results import GcResult
from treesnap.store.maintenance.collection import collect


def gc(context: Context, *, dry_run: bool, is_automatic: bool = False) -> GcResult:
    """Collects garbage; see :meth:`treesnap.Handle.gc`.

    An automatic one deletes nothing when it meets damage, and returns why.
    """
    with opened(context, "collect garbage", writing=True) as session:
        return collect(
            session.store,
            monitor=context.monitor,
            wait_s=context.wait_s,
            dry_run=dry_run,
            is_automatic=is_automatic,
        )
