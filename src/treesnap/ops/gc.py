"""``gc``: give back the space of everything that no snapshot needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.fs.durable import open_lock
from treesnap.ops.access import opened
from treesnap.results import GcResult
from treesnap.store.lock import held
from treesnap.store.maintenance.collection import Collection
from treesnap.store.reserve import Reserve

if TYPE_CHECKING:
    from treesnap.ops.context import Context


def gc(context: Context, *, dry_run: bool, is_automatic: bool = False) -> GcResult:
    """Collects garbage; see :meth:`treesnap.Handle.gc`.

    One that is automatic deletes nothing where it meets damage, and returns why.
    """
    with opened(context, "collect garbage", writing=True) as session:
        layout = session.store.layout
        reserve = Reserve(context.fs, layout)
        reserve.backs(lambda: _make_lock(context, layout.collector_lock))
        with held(
            context.fs,
            layout.collector_lock,
            operation="gc",
            what="The garbage collector",
            wait_s=context.wait_s,
        ):
            collection = Collection(
                session.store,
                reserve,
                monitor=context.monitor,
                wait_s=context.wait_s,
                is_automatic=is_automatic,
            )
            return collection.collect(dry_run=dry_run)


def _make_lock(context: Context, path: str) -> None:
    context.fs.close(open_lock(context.fs, path))
