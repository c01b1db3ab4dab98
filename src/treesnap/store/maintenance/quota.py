"""Making room in a store that has reached its limit, or on a full disk."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from contextlib import suppress

from treesnap.errors import Busy, TreesnapError
from treesnap.model import Snapshot, SnapshotId
from treesnap.store.maintenance.prune import (
    newest,
    position_kept,
    protected,
    remove,
    without_room,
)
from treesnap.store.maintenance.retention import AUTOMATIC, Policy, decide
from treesnap.store.roots import Root, registered_roots
from treesnap.store.store import Store

ROOM_SHARE = 0.7
"""Making room reduces what is needed to this part of the allowed size.

A collection leaves packs with less than a fifth of waste alone, so that the store may then take
up to 0.7 / 0.8 of what is allowed.
"""


def free_bytes(store: Store) -> int:
    """Returns how many bytes the file system of a store has free for this user."""
    fd = store.fs.open(store.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return store.fs.free_bytes(fd)
    finally:
        store.fs.close(fd)


def trim_outputs(store: Store, limit_bytes: int | None) -> None:
    """Removes what steps of plans wrote, the oldest of a root first; before any snapshot goes.

    Only as much as a limit demands; on a full disk, all outputs that no step writes to.
    """
    excess_bytes = store.size_bytes() - int(limit_bytes * ROOM_SHARE) if limit_bytes else None
    for path in registered_roots(store.fs, store.layout):
        root = store.root(path)
        there_bytes = sum(item.size_bytes for item in root.step_outputs())
        if there_bytes == 0:
            continue
        if excess_bytes is None:
            root.trim_step_outputs(0)
        elif excess_bytes > 0:
            left_bytes = root.trim_step_outputs(max(0, there_bytes - excess_bytes))
            excess_bytes -= there_bytes - left_bytes


def prune_store(
    store: Store, roots: Iterable[Root], target_bytes: int, size_bytes_max: int
) -> bool:
    """Removes the oldest automatic snapshots of some roots until the store needs no more
    than ``target_bytes``; returns whether a root was left as it is because it is in use.

    The newest snapshot of each root stays, and the newest of the whole root, and what
    a policy never removes. Roots in which another process is at work, or a restore was
    interrupted, are left as they are. Removes nothing when what stays in any case takes more
    than ``size_bytes_max``: it would be in vain.
    """
    kept: dict[str, tuple[Root, Container[SnapshotId]]] = {}
    for root in roots:
        with suppress(TreesnapError, OSError):  # nothing goes of a damaged root
            kept[root.id] = root, protected(root)
    safe: list[Snapshot] = []
    others: list[Snapshot] = []
    root_of: dict[SnapshotId, Root] = {}
    for root_id in store.snapshots.root_ids():
        snapshots = list(store.snapshots.readable(root_id))
        position = position_kept(snapshots)
        stays = newest(snapshots)
        for item in snapshots:
            (decision,) = decide([item], Policy(keep_last=0, kinds=AUTOMATIC), 0)
            found = kept.get(root_id)
            is_safe = item in stays or decision.is_kept or item.id in position
            if found is None or is_safe or item.id in found[1]:
                safe.append(item)
            else:
                others.append(item)
                root_of[item.id] = found[0]
    others.sort(key=lambda item: item.record.created_at_ns, reverse=True)
    gone: dict[Root, list[Snapshot]] = {}
    for item in without_room(store, safe, others, target_bytes, size_bytes_max):
        gone.setdefault(root_of[item.id], []).append(item)
    is_in_use = False
    for root, items in gone.items():
        try:
            with root.locked("prune", 0.0):
                if not root.is_interrupted:
                    remove(store, root, _unprotected(store, root, items))
        except Busy:
            is_in_use = True
        except (TreesnapError, OSError):
            continue
    return is_in_use


def _unprotected(store: Store, root: Root, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Returns the snapshots that are still neither pinned nor needed, after the lock was taken."""
    kept = protected(root)
    return [
        item
        for item in snapshots
        if item.id not in kept and not store.snapshots.state(item.id).pinned
    ]
