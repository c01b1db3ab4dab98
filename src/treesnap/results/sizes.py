"""Sizes of a store, of its roots and of its snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from treesnap.model import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RootStats:
    """Sizes of one root's history."""

    root: bytes
    """Its path."""
    snapshots: int
    logical_bytes: int
    """Sum of the sizes of its snapshots, as if each were a full copy."""
    unique_bytes: int
    """Bytes in packs that no other root needs: what removing all its snapshots would free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStats:
    """Sizes of one snapshot."""

    snapshot: Snapshot
    unique_bytes: int
    """Bytes in packs that no other snapshot needs: what removing this one alone would free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsResult:
    """Sizes of a store and of a root's history in it.

    Bytes in packs are those of compressed objects with a header of 52 bytes each. While
    others write or collect, the numbers may belong to different moments.
    """

    roots: int
    snapshots: int
    root_snapshots: int
    """Snapshots of the handle's own root."""
    logical_bytes: int
    """Sum of the sizes of the root's snapshots, as if each were a full copy."""
    all_logical_bytes: int
    """The same of all roots."""
    objects: int
    raw_bytes: int
    """Bytes of all stored objects before compression."""
    stored_bytes: int
    """Bytes of all stored objects in their packs: compressed, with a header of 52 bytes each."""
    needed_raw_bytes: int
    """Bytes of the objects that snapshots need, before compression."""
    needed_bytes: int
    """Bytes in packs of the objects that snapshots need."""
    waste_bytes: int
    """Bytes in packs of objects that no snapshot needs, and of second copies."""
    disk_bytes: int
    """Bytes of all files of the store."""
    output_bytes: int
    """Bytes of what steps of plans wrote, as far as it is kept."""
    packs: int
    files: int
    damaged_snapshots: int
    """Snapshots that could not be walked: what they need counts as waste, or as unique."""
    by_root: tuple[RootStats, ...]
    """Every root that was captured, by path."""
    by_snapshot: tuple[SnapshotStats, ...]
    """The snapshots of the handle's own root, newest first."""

    @property
    def dedup_ratio(self) -> float | None:
        """How many times larger full copies of all snapshots are than what is kept of them."""
        return self.all_logical_bytes / self.needed_raw_bytes if self.needed_raw_bytes else None

    @property
    def compression_ratio(self) -> float | None:
        """How many times larger the needed objects are before compression."""
        return self.needed_raw_bytes / self.needed_bytes if self.needed_bytes else None
