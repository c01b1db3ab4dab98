"""What restoring returns, and what restores by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from treesnap.model import Change, Skipped, Snapshot, SnapshotId


class OpenFile(NamedTuple):
    """A file that a restore replaced or removed while a process had it open."""

    path: bytes
    process_id: int
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """Outcome of ``restore``, ``undo`` and ``redo``."""

    snapshot: Snapshot
    """The snapshot that the tree now equals, within the scope."""
    scope: tuple[bytes, ...] | None
    """The paths that it concerned, or None for the whole root."""
    restored: int
    """Paths whose content, type or metadata was put back."""
    created: int
    """Paths that were missing and exist again."""
    deleted: int
    """Paths that the snapshot proves were absent, and that are gone."""
    unchanged: int
    """Paths that were already as in the snapshot and were not touched."""
    untouched: tuple[Skipped, ...]
    """Paths left alone because one of both states does not hold them."""
    changes: tuple[Change, ...]
    """Every path that differed, from the tree's point of view."""
    safety_id: SnapshotId | None
    """The snapshot that takes this restore back, or None when nothing differed."""
    dry_run: bool
    not_kept: str | None = None
    """Why what a failed step left could not be kept, where there was no room for a safety
    snapshot; None where it was kept."""
    open_files: tuple[OpenFile, ...] = ()
    """Files that processes had open when they were replaced: those still have the old ones."""
    links_broken: tuple[bytes, ...] = ()
    """Files that were replaced and have other names, outside of the scope or the root: those
    still name the old file."""
    plan_id: str | None = None
    """The plan that went with the files, or None when none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionResult:
    """Outcome of a rollback of the position."""

    snapshot: Snapshot
    """What was rolled back to."""
    position: Snapshot
    """The snapshot that the root stands at now; its state is that of ``snapshot``."""
    restore: RestoreResult | None
    """What happened to the files, or None when they were left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Outcome of ``run``."""

    exit_code: int
    """The command's own exit code, of its last attempt."""
    attempts: int
    snapshot_id: SnapshotId
    """The checkpoint taken before the first attempt."""
    rolled_back: bool
    restore: RestoreResult | None
    """The last roll-back, or None when the command succeeded."""
