"""What the operations of the library return: frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from treesnap.model import Change, Skipped, Snapshot, SnapshotId
from treesnap.named_tuple import NamedTuple


class CreateStats(NamedTuple):
    """What a capture found and what it cost."""

    files: int
    directories: int
    others: int
    """Symlinks, FIFOs and devices."""
    size_bytes: int
    """Logical bytes of all files, holes included."""
    files_read: int
    """Files whose content was read, because the stat cache could not prove them unchanged."""
    read_bytes: int
    objects_added: int
    added_bytes: int
    """Bytes that were new in the packs, as ``list`` and ``stats`` show them."""


class CreateResult(NamedTuple):
    """Outcome of ``create``.

    ``snapshot`` is the one that was published; with ``skip_unchanged`` and
    nothing changed it is the newest existing one, and ``unchanged`` is true. So it is for a
    step of an agent that was captured before.
    """

    snapshot: Snapshot
    unchanged: bool
    skipped: tuple[Skipped, ...]
    absent: tuple[bytes, ...]
    """The paths of its scope that were absent: a restore removes what is there by then."""
    stats: CreateStats

    @property
    def id(self) -> SnapshotId:
        """The snapshot's id."""
        return self.snapshot.id

    @property
    def root_hash(self) -> str:
        """Identity of the captured state."""
        return self.snapshot.root_hash

    @property
    def complete(self) -> bool:
        """Whether nothing was unreadable."""
        return self.snapshot.complete


class StatusResult(NamedTuple):
    """How the live tree differs from a snapshot."""

    snapshot: Snapshot | None
    """The snapshot compared with, or None when there is none yet."""
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    recovered: str | None = None
    """What was done about an interrupted restore, or None."""


class LogEntry(NamedTuple):
    """A snapshot, and what changed since the one before it."""

    snapshot: Snapshot
    older_id: SnapshotId | None
    """The one that it is compared with; None for the first, which adds all that it holds."""
    added: int
    """Paths, as ``removed`` and ``modified``."""
    removed: int
    modified: int
    """Contents, types or properties."""
    size_change_bytes: int
    change: Change | None = None
    """How the path that was asked for differs itself."""
    is_position: bool = False
    """Whether the tree was saved as it, or restored to it, last."""


class WaysBack(NamedTuple):
    """The states that undo and redo go to, as safety snapshots; None where there is nothing."""

    undo: Snapshot | None
    redo: Snapshot | None


class FoundPath(NamedTuple):
    """A path that ``find`` matched, with the snapshots that hold it."""

    path: bytes
    snapshot_ids: tuple[SnapshotId, ...]
    """Newest first."""


class OpenFile(NamedTuple):
    """A file that a restore replaced or removed while a process had it open."""

    path: bytes
    process_id: int
    program: str


class RestoreResult(NamedTuple):
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
    """Paths that are as in the snapshot and were not touched."""
    untouched: tuple[Skipped, ...]
    """Paths left alone because one of both states does not hold them."""
    changes: tuple[Change, ...]
    """Every path that differed, from the tree's point of view; none if they were only counted."""
    safety_id: SnapshotId | None
    """The snapshot of the state before, to which ``undo`` goes, or None when nothing differed."""
    dry_run: bool
    not_kept: str | None = None
    """Why there is no safety snapshot of what a failed step left: there was no room; else None."""
    open_files: tuple[OpenFile, ...] = ()
    """Files that were replaced while open: the processes still have the old ones."""
    links_broken: tuple[bytes, ...] = ()
    """Replaced files with hard links outside the scope or the root, or that are conflicts, which
    still name the old file."""
    plan_id: str | None = None
    """The plan that went with the files, or None when none did."""
    base_ids: tuple[SnapshotId, ...] = ()
    """The bases that the restore was given."""
    conflicts: tuple[Change, ...] = ()
    """What others changed since the first base where the snapshot differs: left as it is, with
    the directories above it, or overwritten, as the caller wanted."""


class PositionResult(NamedTuple):
    """Outcome of a rollback of the position."""

    snapshot: Snapshot
    """What was rolled back to."""
    position: Snapshot
    """The snapshot that the root stands at now; its state is that of ``snapshot``."""
    restore: RestoreResult | None
    """What happened to the files, or None when they were left alone."""


class RunResult(NamedTuple):
    """Outcome of ``run``."""

    exit_code: int
    """The command's own exit code, of its last attempt."""
    attempts: int
    snapshot_id: SnapshotId
    """The checkpoint taken before the first attempt."""
    rolled_back: bool
    restore: RestoreResult | None
    """The last roll-back, or None when the command succeeded."""


class UnfinishedWork(StrEnum):
    """What can be interrupted half-way."""

    RESTORE = "restore"
    EXPORT = "export"
    """A restore to another directory."""
    COLLECTION = "collection"
    PLAN = "plan"
    MAINTENANCE = "maintenance"
    """What automatic maintenance in the background failed to do."""


class Unfinished(NamedTuple):
    """One piece of work that was interrupted."""

    work: UnfinishedWork
    resolution: str
    """What becomes of it, in words."""
    root: bytes | None = None
    """The root that it is about, or None for the whole store."""
    blocked: bool = False
    """Whether it waits for something that a person has to do."""
    started_at_ns: int | None = None
    """Nanoseconds since 1970 in UTC, or None where it was not recorded."""
    target_id: SnapshotId | None = None
    """The snapshot that was being restored, once the restore had been committed."""
    safety_id: SnapshotId | None = None
    """The snapshot of the state before."""
    paths: int = 0
    """How many paths the restore has to change."""
    done: int = 0
    """How many of them have the new state."""
    changed: tuple[bytes, ...] = ()
    """Those that another process changed since; they will be left alone."""


class DoctorResult(NamedTuple):
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


class PruneResult(NamedTuple):
    """Outcome of ``prune``."""

    kept: tuple[Snapshot, ...]
    """Newest first."""
    removed: tuple[Snapshot, ...]
    """Newest first."""
    reasons: Mapping[SnapshotId, tuple[str, ...]]
    """Why each snapshot was kept."""
    dry_run: bool


class GcResult(NamedTuple):
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


class RootInfo(NamedTuple):
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
    fetched: str | None = None
    """What names it as a REF, ``REMOTE/HISTORY``, if it is a history that was fetched."""


class RootStats(NamedTuple):
    """Sizes of one root's history."""

    root: bytes
    """Its path."""
    snapshots: int
    logical_bytes: int
    """Sum of the sizes of its snapshots, as if each were a full copy."""
    unique_bytes: int
    """Bytes in packs that no other root needs: what removing all its snapshots would free."""


class SnapshotStats(NamedTuple):
    """Sizes of one snapshot."""

    snapshot: Snapshot
    unique_bytes: int
    """Bytes in packs that no other snapshot needs: what removing this one alone would free."""


class StatsResult(NamedTuple):
    """Sizes of a store and of a root's history in it.

    Objects that are compressed together share the bytes that they take in a pack by their
    sizes. While others write or collect, the numbers may belong to different moments.
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
    """Bytes of all stored objects in their packs."""
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


class SettingSource(StrEnum):
    """Where a setting comes from."""

    DEFAULT = "default"
    STORE = "store"
    ROOT = "root"


class Setting(NamedTuple):
    """One setting that holds for a root."""

    key: str
    value: str | None
    """The value as in ``snap config KEY VALUE``, or None without a limit."""
    source: SettingSource


class ConfigResult(NamedTuple):
    """Outcome of ``config``."""

    settings: tuple[Setting, ...]


class Problem(NamedTuple):
    """One piece of damage that ``verify`` found."""

    code: str
    """What kind of damage: for example ``missing-object``, ``bad-pack``."""
    message: str
    where: str
    """The file of the store, or the object."""
    snapshot_ids: tuple[SnapshotId, ...] = ()
    """The snapshots that are partial because of it."""
    paths: tuple[bytes, ...] = ()
    """The first paths that it makes unrestorable."""
    path_count: int = 0
    """How many paths it makes unrestorable."""


class Partial(NamedTuple):
    """A snapshot that cannot be restored whole, and what of it cannot."""

    snapshot_id: SnapshotId
    name: str | None
    root: bytes
    """The root that was captured."""
    paths: tuple[bytes, ...]
    """The first paths that cannot be restored, sorted; of a directory, what is below it too."""
    path_count: int
    """How many such paths there are."""


class RecoveredObject(NamedTuple):
    """A lost object that was found in a live tree and stored again."""

    object_id: str
    root: bytes
    path: bytes
    """The file or directory below the root that has the same content."""


class VerifyResult(NamedTuple):
    """Outcome of ``verify``."""

    problems: tuple[Problem, ...]
    """What was found, before anything was repaired."""
    snapshots: int
    objects: int
    read_bytes: int
    left: tuple[Problem, ...] = ()
    """What remains after a repair; without one, all that was found."""
    partial: tuple[Partial, ...] = ()
    """The snapshots of which something cannot be restored; after a repair, if there was one."""
    repaired: tuple[str, ...] = ()
    """A sentence for each repair."""
    recovered: tuple[RecoveredObject, ...] = ()
    content_read: bool = False
    """Whether content was read, all or a sample; otherwise damage in it was not looked for."""

    @property
    def ok(self) -> bool:
        """Whether everything that was looked at was as it must be."""
        return not self.problems


class PushFailure(NamedTuple):
    """Why a push failed, in the words of the process that pushed."""

    code: str
    message: str


class PushStatus(NamedTuple):
    """What a watcher does to push its snapshots."""

    remote: str
    pushed_at_ns: int | None
    """When its last push succeeded, or None before the first one did."""
    failure: PushFailure | None
    """Why its last push failed, or None if it did not."""


class WatchStatus(NamedTuple):
    """The status of ``snap watch``."""

    process_id: int
    started_at_ns: int
    directories: int
    """How many it watches."""
    every_ms: int | None
    """How often it makes a snapshot, or None if it does not by time."""
    on_change: bool
    """Whether it makes one after a change."""
    snapshots: int
    """How many it has made."""
    last_snapshot: str | None
    last_error: str | None
    """Why its last attempt at a snapshot failed, or None."""
    why_lost: str | None
    """Why it last lost track and started over, or None."""
    push: PushStatus | None = None
    """What became of its pushes, or None if it does not push."""
