"""Where a fork comes from, as its oldest snapshot says.

A fork's history begins with its *base*: the state that it was forked from, named ``forked`` and
pinned. Tags of it name the root that it was forked from, and the snapshot there. So a fork needs no
file of its own, and is a root like any other. When its base was deleted, it is a fork no longer.
"""

from __future__ import annotations

from treesnap.core.model.errors import Corrupt, NotFound
from treesnap.core.model.ids import is_snapshot_id
from treesnap.core.model.reserved_tags import facts_of, is_fork_base
from treesnap.core.model.results import ForkOrigin
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.store.layout import is_hex
from treesnap.core.store.roots import Root
from treesnap.core.store.store import Store

BASE_NAME = "forked"
"""The name of a fork's base."""


def base_of(store: Store, root: Root) -> Snapshot | None:
    """Returns the base of a root, or None if it is not a fork. Costs a listing and one read."""
    oldest = next(reversed(store.snapshots.names(root.id)), None)
    if oldest is None:
        return None
    try:
        snapshot = store.snapshots.load(root.id, oldest)
    except (Corrupt, NotFound):
        return None
    return snapshot if is_fork_base(snapshot) else None


def origin_in(store: Store, root: Root) -> ForkOrigin | None:
    """Returns where a root was forked from, or None if it is not a fork."""
    base = base_of(store, root)
    if base is None:
        return None
    facts = facts_of(base)
    if not (is_hex(facts["fork_of"], 32) and is_snapshot_id(facts["forked"])):
        return None  # the store may come from anywhere
    origin = store.root_by_id(facts["fork_of"])
    return ForkOrigin(
        root_id=origin.id,
        path=origin.path if origin.record is not None else None,
        snapshot_id=SnapshotId(facts["forked"]),
        base_id=base.id,
    )
