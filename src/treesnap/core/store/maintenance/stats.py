"""Sizes of a store, of its roots, and of the snapshots of one root.

Snapshots are walked one after the other to find the owner of each object: one snapshot alone,
one root alone, or several roots. A directory is walked again only when its owner changes, which
happens at most twice: what needs a directory needs everything below it. So the cost follows
what is stored, not what snapshots have in common.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from treesnap.core.codec.reader import Reference
from treesnap.core.fs.base import ReadingFileSystem
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.results import RootStats, SnapshotStats, StatsResult
from treesnap.core.model.snapshots import Snapshot, SnapshotRecord
from treesnap.core.store.maintenance.reachability import Reachability
from treesnap.core.store.roots import registered_records, step_output_bytes
from treesnap.core.store.store import Store

_COUNTED = -(1 << 62)
"""Stands in the place of an owner once the object has been counted."""


@dataclass(slots=True)
class _Walked:
    """All snapshots, and where each belongs."""

    snapshots: list[Snapshot] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    """By snapshot, the number of its root."""
    paths: list[bytes] = field(default_factory=list)
    """By root, its path."""
    logical_bytes: Counter[int] = field(default_factory=Counter)
    """By root, the sizes of its snapshots."""
    own: int = -1
    """The number of the root that was asked for, or -1."""
    damaged: int = 0


@dataclass(slots=True)
class _Counted:
    """What is in the packs."""

    objects: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    needed_raw_bytes: int = 0
    waste_bytes: int = 0
    needed_bytes: Counter[int] = field(default_factory=Counter)
    """By owner."""


def measure(store: Store, root_id: str) -> StatsResult:
    """Returns the sizes of a store, of its roots, and of the snapshots of one root."""
    ownership = Ownership(store)
    walked = _walk(store, root_id, ownership)
    counted = _count(store, ownership)
    files, disk_bytes = _disk_use(store.fs, store.path)
    return StatsResult(
        roots=len(walked.paths),
        snapshots=len(walked.snapshots),
        root_snapshots=walked.roots.count(walked.own),
        logical_bytes=walked.logical_bytes[walked.own],
        all_logical_bytes=walked.logical_bytes.total(),
        objects=counted.objects,
        raw_bytes=counted.raw_bytes,
        stored_bytes=counted.stored_bytes,
        needed_raw_bytes=counted.needed_raw_bytes,
        needed_bytes=counted.needed_bytes.total(),
        waste_bytes=counted.waste_bytes,
        disk_bytes=disk_bytes,
        output_bytes=step_output_bytes(store.fs, store.layout),
        packs=len(store.packs.sizes()),
        files=files,
        damaged_snapshots=walked.damaged,
        by_root=_by_root(walked, ownership, counted),
        by_snapshot=_by_snapshot(walked, counted),
    )


def _walk(store: Store, own_id: str, ownership: Ownership) -> _Walked:
    """Walks all snapshots. One that was deleted and collected meanwhile is not damaged."""
    log = store.snapshots
    paths = {record.id: record.path for record in registered_records(store.fs, store.layout)}
    walked = _Walked()
    for number, root_id in enumerate(log.root_ids()):
        walked.paths.append(paths.get(root_id, b""))
        if root_id == own_id:
            walked.own = number
        for snapshot in log.readable(root_id):
            walked.paths[number] = snapshot.record.root_path
            walked.snapshots.append(snapshot)
            walked.roots.append(number)
            walked.logical_bytes[number] += snapshot.record.totals.size_bytes
            try:
                ownership.walk(snapshot.record, number)
            except Corrupt:
                walked.damaged += any(name.id == snapshot.id for name in log.names(root_id))
    return walked


def _count(store: Store, ownership: Ownership) -> _Counted:
    """Adds up all objects of all packs, by their owners. Costs a table per block.

    Objects in one block share its bytes by their sizes. The second copy that a writer puts into
    the same pack is needed, or waste, as the first one is.
    """
    counted = _Counted()
    left = ownership.of
    for pack_id in store.packs.sizes():
        with suppress(FileNotFoundError):  # a collection removed it meanwhile
            once: dict[ObjectId, int | None] = {}  # owners of what stands here once so far
            for entry in store.inventory(pack_id).entries:
                owner = left.get(entry.id)
                size_bytes = entry.size_bytes
                if owner == _COUNTED:
                    if entry.id in once:
                        counted.stored_bytes += size_bytes
                    owner = once.pop(entry.id, None)
                    if owner is None:
                        counted.waste_bytes += size_bytes
                    else:
                        counted.needed_bytes[owner] += size_bytes
                    continue
                if entry.kind != ObjectKind.CHUNK:
                    once[entry.id] = owner
                left[entry.id] = _COUNTED
                counted.objects += 1
                counted.raw_bytes += entry.raw_size
                counted.stored_bytes += size_bytes
                if owner is None:
                    counted.waste_bytes += size_bytes
                else:
                    counted.needed_raw_bytes += entry.raw_size
                    counted.needed_bytes[owner] += size_bytes
    return counted


def _by_root(walked: _Walked, ownership: Ownership, counted: _Counted) -> tuple[RootStats, ...]:
    unique_bytes: Counter[int | None] = Counter()
    for owner, size_bytes in counted.needed_bytes.items():
        unique_bytes[ownership.root_of(owner)] += size_bytes
    by_root = [
        RootStats(
            root=path,
            snapshots=walked.roots.count(number),
            logical_bytes=walked.logical_bytes[number],
            unique_bytes=unique_bytes[number],
        )
        for number, path in enumerate(walked.paths)
    ]
    return tuple(sorted(by_root, key=lambda item: item.root))


def _by_snapshot(walked: _Walked, counted: _Counted) -> tuple[SnapshotStats, ...]:
    return tuple(
        SnapshotStats(snapshot=snapshot, unique_bytes=counted.needed_bytes[number])
        for number, (snapshot, root) in enumerate(zip(walked.snapshots, walked.roots, strict=True))
        if root == walked.own
    )


def _disk_use(fs: ReadingFileSystem, path: str) -> tuple[int, int]:
    """Returns how many files lie below a directory, and their bytes; others may remove some."""
    files = size_bytes = 0
    pending = [path]
    while pending:
        with suppress(FileNotFoundError, PermissionError), fs.scan(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    size_bytes += entry.stat(follow_symlinks=False).st_size
                    files += 1
    return files, size_bytes


SEVERAL_ROOTS = -1
"""The owner of what snapshots of several roots need."""
_ROOTS = -2
"""The owner of what several snapshots of root 0 need; those of the next roots lie below."""


class Ownership(Reachability):
    """Walks snapshots and keeps the owner of each object: what alone needs it.

    An owner is the number of a snapshot, that of a root by :func:`owner_of_root`, or
    SEVERAL_ROOTS. Memory is one id and one number per object.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.of: dict[ObjectId, int] = {}
        """The owner of each object that was walked."""
        self._roots: list[int] = []

    def walk(self, record: SnapshotRecord, root: int) -> None:
        """Counts the next snapshot, one of a root; raises Corrupt, with part of it counted."""
        self._roots.append(root)
        for _ in self.add(record):
            pass

    def root_of(self, owner: int) -> int | None:
        """Returns the root that alone needs what has this owner, or None."""
        if owner >= 0:
            return self._roots[owner]
        return None if owner == SEVERAL_ROOTS else _ROOTS - owner

    def _is_new(self, reference: Reference) -> bool:
        """Counts the current snapshot among those that need an object."""
        snapshot = len(self._roots) - 1
        owner_then = self.of.get(reference.id)
        if owner_then is None:
            self.of[reference.id] = snapshot
            return True
        if owner_then == snapshot:
            return False
        root = self._roots[snapshot]
        owner = owner_of_root(root) if self.root_of(owner_then) == root else SEVERAL_ROOTS
        self.of[reference.id] = owner
        return owner != owner_then


def owner_of_root(root: int) -> int:
    """Returns the pseudo-owner for objects shared by several snapshots of one root."""
    return _ROOTS - root
