"""Who needs each object: one snapshot alone, one root alone, or several roots.

Snapshots are walked one after the other. A directory is walked again only when what is
known of it changes, which it does at most twice: whatever needs a directory needs
everything below it. So the cost follows what is stored, not what snapshots share.
"""

from __future__ import annotations

from treesnap.model import ObjectId, ObjectKind, SnapshotRecord
from treesnap.ops.reachable import Reachability
from treesnap.store.store import Store

SEVERAL_ROOTS = -1
"""The share of what snapshots of several roots need."""
_ROOTS = -2
"""The share of what several snapshots of root 0 need; those of the next roots lie below."""


class Shares(Reachability):
    """Walks snapshots and keeps the share of each object: who alone needs it.

    A share is the number of a snapshot, that of a root by :func:`share_of_root`, or
    SEVERAL_ROOTS. Memory is one id and one number per object.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.of: dict[ObjectId, int] = {}
        """The share of each object that was walked."""
        self._roots: list[int] = []

    def walk(self, record: SnapshotRecord, root: int) -> None:
        """Counts the next snapshot, one of a root; raises Corrupt, with part of it counted."""
        self._roots.append(root)
        for _ in self.add(record):
            pass

    def root_of(self, share: int) -> int | None:
        """Returns the root that alone needs what has this share, or None."""
        if share >= 0:
            return self._roots[share]
        return None if share == SEVERAL_ROOTS else _ROOTS - share

    def _is_news(self, kind: ObjectKind, identity: ObjectId) -> bool:  # noqa: ARG002 - overrides
        """Counts the snapshot at hand among those that need an object."""
        snapshot = len(self._roots) - 1
        known = self.of.get(identity)
        if known is None:
            self.of[identity] = snapshot
            return True
        share = _joined(known, self.root_of(known), snapshot, self._roots[snapshot])
        self.of[identity] = share
        return share != known


def share_of_root(root: int) -> int:
    """Returns the share of what several snapshots need, all of one root."""
    return _ROOTS - root


def _joined(known: int, known_root: int | None, snapshot: int, root: int) -> int:
    """Returns the share of something that a further snapshot needs."""
    if known == snapshot:
        return known
    return share_of_root(root) if known_root == root else SEVERAL_ROOTS
