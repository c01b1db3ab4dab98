"""What comparing with snapshots, and looking into them, returns."""

from __future__ import annotations

from dataclasses import dataclass

from treesnap.model import Change, Skipped, Snapshot, SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """How the live tree differs from the newest snapshot."""

    snapshot: Snapshot | None
    """The snapshot compared with, or None when there is none yet."""
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    recovered: str | None = None
    """What was done about an interrupted restore, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPath:
    """A path that ``find`` matched, with the snapshots that hold it."""

    path: bytes
    snapshot_ids: tuple[SnapshotId, ...]
    """Newest first."""
