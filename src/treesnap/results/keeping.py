"""What tidying a store and its history returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from treesnap.model import Snapshot, SnapshotId


class Work(StrEnum):
    """What can be interrupted half-way."""

    RESTORE = "restore"
    EXPORT = "export"
    """A restore to another directory."""
    COLLECTION = "collection"
    PLAN = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """One piece of work that was interrupted."""

    work: Work
    root: bytes | None = None
    """The root that it is about, or None for the whole store."""
    outlook: str
    """What becomes of it, in words."""
    blocked: bool = False
    """Whether it waits for something that a person has to do."""
    started_at_ns: int | None = None
    """Nanoseconds since 1970 in UTC, or None where nobody noted it."""
    target_id: SnapshotId | None = None
    """The snapshot that was being restored, once the restore had been committed."""
    safety_id: SnapshotId | None = None
    """The snapshot of the state before."""
    paths: int = 0
    """How many paths the restore has to change."""
    done: int = 0
    """How many of them have the new state."""
    changed: tuple[bytes, ...] = ()
    """Those that somebody else changed since; they will be left as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult:
    """Outcome of ``doctor``."""

    unfinished: tuple[Unfinished, ...]
    looked_at_ns: int
    """Nanoseconds since 1970 in UTC, by the clock of the machine."""
    forgotten: bool
    """Whether an interrupted restore was given up because the caller asked for it."""

    @property
    def blocked(self) -> bool:
        """Whether something waits for a person."""
        return any(item.blocked for item in self.unfinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """Outcome of ``prune``."""

    kept: tuple[Snapshot, ...]
    """Newest first."""
    removed: tuple[Snapshot, ...]
    """Newest first."""
    reasons: Mapping[SnapshotId, tuple[str, ...]]
    """Why each snapshot was kept."""
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GcResult:
    """Outcome of ``gc``."""

    freed_bytes: int
    removed_objects: int
    removed_packs: int
    rewritten_packs: int
    kept_objects: int
    dry_run: bool
    postponed: str | None = None
    """Why part of the garbage was left for the next collection, or None."""
    damaged: tuple[SnapshotId, ...] = ()
    """Snapshots in which damage was met; ``verify`` names all that it concerns."""


class RootDirectory(StrEnum):
    """What is at the path of a root."""

    PRESENT = "present"
    """The directory that was captured last, as far as the file system tells."""
    ABSENT = "absent"
    """Nothing, or nothing that can be looked at."""
    REPLACED = "replaced"
    """Another directory than the one that was captured last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootInfo:
    """A root that a store knows."""

    id: str
    """32 hex digits, which a move does not change."""
    path: bytes
    """Its real path."""
    snapshots: int
    newest_at_ns: int | None
    """When the newest readable snapshot was taken, or None without any."""
    directory: RootDirectory
    interrupted: bool = False
    """Whether a restore of it waits to be finished, or is under way."""
    earlier_paths: tuple[bytes, ...] = ()
    """Where it was before, the newest last."""
