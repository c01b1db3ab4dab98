"""``stats``: sizes of a store, of its roots, and of the snapshots of one root."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from treesnap.codec.pack import RECORD_HEADER_SIZE
from treesnap.errors import Corrupt, StoreMissing
from treesnap.events import Phase
from treesnap.fs.base import FileSystem
from treesnap.model import Snapshot
from treesnap.ops.access import Opened, opened
from treesnap.ops.history import snapshots_of
from treesnap.ops.shares import Shares
from treesnap.results import RootStats, SnapshotStats, StatsResult
from treesnap.store.packs import PackReader
from treesnap.store.roots import registered_roots, step_output_bytes
from treesnap.store.store import Store

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_COUNTED = -(1 << 62)
"""Stands in the place of a share once the object has been counted."""


@dataclass(slots=True)
class _Walked:
    """All snapshots, and who needs what."""

    snapshots: list[Snapshot] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    """By snapshot, the number of its root."""
    paths: list[bytes] = field(default_factory=list)
    """By root, its path."""
    logical_bytes: Counter[int] = field(default_factory=Counter)
    """By root, the sizes of its snapshots."""
    own: int = -1
    """The number of the handle's own root, or -1."""
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
    """By share."""


_NUMBERS = [item.name for item in fields(StatsResult) if not item.name.startswith("by_")]


def stats(handle: Handle) -> StatsResult:
    """Returns the sizes; see :meth:`treesnap.Handle.stats`."""
    try:
        with opened(handle, "measure the store") as pair:
            handle.monitor.begin(Phase.MARK, None, None)
            shares = Shares(pair.store)
            walked = _walk(pair, shares)
            counted = _count(pair.store.packs, shares)
            files, disk_bytes = _disk_use(handle.fs, pair.store.path)
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
                output_bytes=step_output_bytes(handle.fs, pair.store.layout),
                packs=len(pair.store.packs.sizes()),
                files=files,
                damaged_snapshots=walked.damaged,
                by_root=_by_root(walked, shares, counted),
                by_snapshot=_by_snapshot(walked, counted),
            )
    except StoreMissing:
        return StatsResult(by_root=(), by_snapshot=(), **dict.fromkeys(_NUMBERS, 0))


def _walk(pair: Opened, shares: Shares) -> _Walked:
    """Walks all snapshots. One that was deleted and collected meanwhile is no damage."""
    log = pair.store.snapshots
    paths = _registered(pair.store)
    walked = _Walked()
    for number, root_id in enumerate(log.root_ids()):
        walked.paths.append(paths.get(root_id, b""))
        if root_id == pair.root.id:
            walked.own = number
        for snapshot in snapshots_of(pair, root_id):
            walked.paths[number] = snapshot.record.root_path
            walked.snapshots.append(snapshot)
            walked.roots.append(number)
            walked.logical_bytes[number] += snapshot.record.totals.size_bytes
            try:
                shares.walk(snapshot.record, number)
            except Corrupt:
                walked.damaged += any(name.id == snapshot.id for name in log.names(root_id))
    return walked


def _registered(store: Store) -> dict[str, bytes]:
    paths = registered_roots(store.fs, store.layout)
    return {store.root(path).id: path for path in paths}


def _count(packs: PackReader, shares: Shares) -> _Counted:
    """Adds up all records of all packs, by who needs them. Costs a header per record."""
    counted = _Counted()
    left = shares.of
    for pack_id in packs.sizes():
        with suppress(FileNotFoundError):  # a collection removed it meanwhile
            for record in packs.scan(pack_id)[0]:
                size_bytes = record.stored_size + RECORD_HEADER_SIZE
                share = left.get(record.id)
                if share == _COUNTED:
                    counted.waste_bytes += size_bytes
                    continue
                left[record.id] = _COUNTED
                counted.objects += 1
                counted.raw_bytes += record.raw_size
                counted.stored_bytes += size_bytes
                if share is None:
                    counted.waste_bytes += size_bytes
                else:
                    counted.needed_raw_bytes += record.raw_size
                    counted.needed_bytes[share] += size_bytes
    return counted


def _by_root(walked: _Walked, shares: Shares, counted: _Counted) -> tuple[RootStats, ...]:
    unique_bytes: Counter[int | None] = Counter()
    for share, size_bytes in counted.needed_bytes.items():
        unique_bytes[shares.root_of(share)] += size_bytes
    found = [
        RootStats(
            root=path,
            snapshots=walked.roots.count(number),
            logical_bytes=walked.logical_bytes[number],
            unique_bytes=unique_bytes[number],
        )
        for number, path in enumerate(walked.paths)
    ]
    return tuple(sorted(found, key=lambda item: item.root))


def _by_snapshot(walked: _Walked, counted: _Counted) -> tuple[SnapshotStats, ...]:
    return tuple(
        SnapshotStats(snapshot=snapshot, unique_bytes=counted.needed_bytes[number])
        for number, (snapshot, root) in enumerate(zip(walked.snapshots, walked.roots, strict=True))
        if root == walked.own
    )


def _disk_use(fs: FileSystem, path: str) -> tuple[int, int]:
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
