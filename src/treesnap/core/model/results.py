"""What the operations of the library return: frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from treesnap.core.model.entries import Change, Skipped, changes_table
from treesnap.core.model.errors import path_fields, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import (
    ID_DIGITS,
    AtPath,
    Fields,
    Record,
    fields_of,
    html_table,
    json_fields,
    path_text,
)
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.snapshots import Snapshot, SnapshotId


class CreateStats(Record):
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


class CreateResult(Record, json_first=("id", "root_hash", "complete")):
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

    def _repr_html_(self) -> str:
        """Returns a sentence and a table for notebooks."""
        stats, taken = self.stats, self.snapshot
        did = "Nothing changed since" if self.unchanged else "Captured"
        above = f"{did} {taken.id[:ID_DIGITS]}: {count_text(stats.files, 'file')}, "
        above += f"{size_text(stats.size_bytes)}, {size_text(stats.added_bytes)} stored"
        rows = [(item.path or ".", item.reason.word) for item in self.skipped]
        return html_table(("not captured", "reason"), rows, above)


class Privilege(Record):
    """A privilege of a path in a snapshot that was restored."""

    path: bytes
    kind: str
    """``set-user-id``, ``set-group-id``, ``device``, or the name of an extended attribute."""
    given: bool
    """Whether the path got it; it was left out otherwise."""


class Privileges(Record):
    """The privileges in what was restored, beside the user's own."""

    listed: tuple[Privilege, ...] = ()
    """The first thousand of either sort."""
    given: int = 0
    """How many were given, also those that are not listed."""
    left_out: int = 0
    """How many were left out."""
    owners_left_out: int = 0
    """How many paths have another owner than in the snapshot: the user, or the one they had."""

    def plus(self, other: Privileges) -> Privileges:
        """Returns both together."""
        return Privileges(
            self.listed + other.listed,
            self.given + other.given,
            self.left_out + other.left_out,
            self.owners_left_out + other.owners_left_out,
        )


class StatusResult(Record, json_names={"snapshot": "id"}):
    """How the live tree differs from a snapshot."""

    snapshot: Snapshot | None
    """The snapshot compared with, or None when there is none yet."""
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    recovered: str | None = None
    """What was done about an interrupted restore, or None."""
    privileges: Privileges = Privileges()
    """What of the snapshot is not here and was not compared, because a restore leaves it out."""

    def _repr_html_(self) -> str:
        """Returns a sentence and a table for notebooks."""
        if self.snapshot is None:
            return html_table((), (), "No snapshot of the whole root")
        paths = count_text(len(self.changes), "path")
        return changes_table(self.changes, f"{paths} changed since {self.snapshot.id[:ID_DIGITS]}")


class PlanStep(Record):
    """The step of a plan that a snapshot belongs to."""

    plan_id: str
    plan: str | None
    """The name of the plan."""
    number: int | None
    """Its place in the plan, from 1 on; None for what was captured between or after steps."""
    name: str | None
    """None where only the snapshot before the step knows it."""


class HistoryGap(Record):
    """What the history lacks between a snapshot and the one before it."""

    pause_s: int | None
    """How long no snapshot was made that is still there; None for less than a day."""
    missing: int
    """Snapshots that were made in between and are no longer there, as far as numbers tell: of the
    newest one that is deleted, the next snapshot takes the number."""
    unreadable: int
    """Damaged ones."""
    not_captured: int
    """Steps of agents that should have been captured and were not."""


class LogEntry(Record):
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
    plan_step: PlanStep | None = None
    """Of a snapshot that ``snap plan`` took, the step that it was taken before or after."""
    gap: HistoryGap | None = None
    """What is missing before it; with a path, since the one that it is compared with. Filters
    change nothing of that."""

    def to_dict(self) -> Fields:
        """Returns an entry as ``snap log --json`` prints it; ``json.dumps`` takes it."""
        kind = None if self.change is None else self.change.change
        return json_fields({**fields_of(self, without={"change"}), "change": kind})


class RestorePoints(Record):
    """Where a root stands, and the states that undo and redo go to; None where there is nothing."""

    undo: Snapshot | None
    """A safety snapshot, as ``redo``."""
    redo: Snapshot | None
    position: Snapshot | None
    """The snapshot of the state that the root was saved in, or restored to, last."""


class FoundPath(AtPath, Record):
    """A path that ``find`` matched, with the snapshots that hold it."""

    path: bytes
    snapshot_ids: tuple[SnapshotId, ...]
    """Newest first."""


class TextPart(NamedTuple):
    """Lines of both sides of a change, with how many are above them; the rest is equal."""

    old_line_count: int
    """How many lines of the old text are above these."""
    new_line_count: int
    old: bytes
    new: bytes


class ChangedContent(NamedTuple):
    """A change with the bytes of both sides, or why there are none."""

    change: Change
    old: bytes | None
    """None where this side has no content: it is absent, or the change is about properties."""
    new: bytes | None
    is_large: bool = False
    """Whether a side is larger than was asked for, so that neither was read."""
    is_lost: bool = False
    """Whether the live file could not be read: it changed again, most likely."""
    converted_by: str | None = None
    """What printed both sides: a setting ``diff.PATTERN``, or SQLite; else None."""
    not_converted: str | None = None
    """Why they are as in the file although there is such a command, or None."""
    parts: tuple[TextPart, ...] = ()
    """What differs of two texts of which a side is large, from top to bottom; if it is not large,
    and both are texts."""
    is_binary: bool = False
    """Whether a side of a large change was seen to be no text: then no limit shows its lines."""


class OpenFile(AtPath, Record):
    """A file that a restore replaced or removed while a process had it open."""

    path: bytes
    process_id: int
    program: str


class RestoreResult(Record):
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
    privileges: Privileges = Privileges()
    """What the snapshot has of set-user-ID bits, devices and the like. They are given if it is
    proven to be own, or if the caller asked for them; see the threat model."""
    missing: tuple[bytes, ...] = ()
    """Paths that could not be read when the snapshot was taken, so that it does not hold them, and
    that are not there; at most 1,000 of them."""

    def to_dict(self) -> Fields:
        """Returns what ``snap restore --json`` prints; ``json.dumps`` takes it."""
        return json_fields(
            {
                "id": self.snapshot.id,
                **fields_of(self, without={"snapshot", "changes", "conflicts"}),
                "changes": [fields_of(item, without={"old", "new"}) for item in self.changes],
                "conflicts": [fields_of(item, without={"old", "new"}) for item in self.conflicts],
            }
        )

    def _repr_html_(self) -> str:
        """Returns a sentence and a table for notebooks."""
        did = "Would restore" if self.dry_run else "Restored"
        above = (
            f"{did} {self.snapshot.id[:ID_DIGITS]}: {self.restored:,} put back, "
            f"{self.created:,} created, {self.deleted:,} deleted, {self.unchanged:,} unchanged"
        )
        return changes_table(self.changes, above)


class StepGroup(Record):
    """Steps that ran at the same time: their changes cannot be told apart."""

    session: str
    steps: tuple[int, ...]
    """Their numbers in the session."""
    others: tuple[str, ...] = ()
    """Other sessions that worked meanwhile."""

    @property
    def is_one(self) -> bool:
        """Whether it is one step, beside which nothing ran."""
        return len(self.steps) == 1 and not self.others

    @property
    def text(self) -> str:
        """What ran at the same time, as a sentence without its end."""
        first, last = self.steps[0], self.steps[-1]
        numbers = f"{first}"
        if last - first + 1 == len(self.steps) > 2:
            numbers = f"{first} to {last}"
        elif last > first:
            numbers = f"{', '.join(map(str, self.steps[:-1]))} and {last}"
        subjects = [f"Step{'s' if last > first else ''} {numbers}"]
        subjects += [f"session {quoted(name)}" for name in self.others]
        return f"{' and '.join(subjects)} ran at the same time"


class MergeResult(Record):
    """Outcome of ``revert`` and ``adopt``: what was merged into the root."""

    theirs_id: SnapshotId
    """The state that was brought in: before what was reverted, or of the fork."""
    base_id: SnapshotId | None
    """The state that both come from; None where that is the root as it was."""
    snapshot: Snapshot | None
    """What the root now equals, also where nothing was to be changed; None in a dry run."""
    conflicts: tuple[bytes, ...]
    """Paths that both sides changed: they are as the caller wanted."""
    changes: tuple[Change, ...]
    """Every path that differs from before."""
    safety_id: SnapshotId | None
    """The snapshot of the state before, to which ``undo`` goes."""
    kept: tuple[Change, ...] = ()
    """What other programs changed while it ran, and what was left as they made it."""
    dry_run: bool = False
    too_large: tuple[bytes, ...] = ()
    """Of the conflicts, the files that are too large to be merged line by line."""
    left_out: tuple[Skipped, ...] = ()
    """What was not merged, and stays as it is, because a side excludes it or could not read it."""
    together: StepGroup | None = None
    """What ran at the same time as the step that was named, and is undone with it."""

    def to_dict(self) -> Fields:
        """Returns what ``snap revert --json`` prints; ``json.dumps`` takes it."""
        return json_fields(
            {
                "id": None if self.snapshot is None else self.snapshot.id,
                **fields_of(self, without={"snapshot", "changes", "kept"}),
                "changes": [fields_of(item, without={"old", "new"}) for item in self.changes],
                "kept": [fields_of(item, without={"old", "new"}) for item in self.kept],
            }
        )

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        return changes_table(self.changes, f"{count_text(len(self.changes), 'path')} changed")


class PositionResult(Record):
    """Outcome of a rollback of the position."""

    snapshot: Snapshot
    """What was rolled back to."""
    position: Snapshot
    """The snapshot that the root stands at now; its state is that of ``snapshot``."""
    restore: RestoreResult | None
    """What happened to the files, or None when they were left alone."""


class RunResult(Record):
    """Outcome of ``run``."""

    exit_code: int
    """The command's own exit code, of its last attempt."""
    attempts: int
    snapshot_id: SnapshotId
    """The checkpoint taken before the first attempt."""
    rolled_back: bool
    restore: RestoreResult | None
    """The last roll-back, or None when the command succeeded."""

    def to_dict(self) -> Fields:
        """Returns the fields by name, and the ``id``; ``json.dumps`` takes it."""
        return json_fields({"id": self.snapshot_id, **fields_of(self, without={"snapshot_id"})})


class WorkKind(StrEnum):
    """What can be interrupted half-way."""

    RESTORE = "restore"
    EXPORT = "export"
    """A restore to another directory."""
    COLLECTION = "collection"
    PLAN = "plan"
    STEP = "step"
    """A command of ``run``, or a block that is rolled back when it fails."""
    MAINTENANCE = "maintenance"
    """What automatic maintenance in the background failed to do."""


class InterruptedWork(Record):
    """One piece of work that was interrupted."""

    work: WorkKind
    resolution: str
    """What becomes of it, in words."""
    root: bytes | None = None
    """The root that it is about, or None for the whole store."""
    blocked: bool = False
    """Whether it waits for something that a person has to do."""
    started_at_ns: int | None = None
    """Nanoseconds since 1970 in UTC, or None where it was not recorded."""
    target_id: SnapshotId | None = None
    """The snapshot that was being restored, once the restore had been committed; of a step the one
    that would have been."""
    safety_id: SnapshotId | None = None
    """The snapshot of the state before."""
    paths: int = 0
    """How many paths the restore has to change."""
    done: int = 0
    """How many of them have the new state."""
    changed: tuple[bytes, ...] = ()
    """Those that another process changed since; they will be left alone."""


class FileSystemCapabilities(Record):
    """What the file system of a directory does, as it was found there."""

    folds_case: bool
    """Names that differ in case alone are one name."""
    folds_accents: bool
    """Names that differ in the form of their accents alone are one name."""
    keeps_spelling: bool
    """A name is listed as it was written."""
    any_bytes: bool
    """Names need not be UTF-8."""
    name_size_max: int
    """Bytes of a name."""
    modes: bool
    """Files have permissions of their own."""
    attributes: bool
    """Files have extended attributes."""
    hard_links: bool
    symlinks: bool
    fifos: bool
    holes: bool
    """A file takes no space where nothing was written, and tells where."""
    clones: bool
    """Files share their blocks."""
    birth_times: bool
    """A directory tells when it was made."""
    time_step_ns: int
    """Modification times are kept in steps of so many nanoseconds."""
    exchange: bool
    """Two names change places in one step; otherwise a path is absent for a moment."""
    rename_to_absent: bool
    """A rename replaces nothing that another process makes meanwhile."""
    locks: bool
    """Files can be locked, as a store needs it."""
    directory_sync: bool
    """The names in a directory can be made durable alone."""


class DoctorResult(Record):
    """Outcome of ``doctor``."""

    unfinished: tuple[InterruptedWork, ...]
    looked_at_ns: int
    """Nanoseconds since 1970 in UTC, by the clock of the machine."""
    forgotten: bool
    """Whether an interrupted restore was given up because the caller asked for it."""
    implementation: str
    """In which language directories are looked at: ``C``, or ``Python`` without that module."""
    system: Mapping[str, bool]
    """What depends on the system, by the names of ``system_parts`` in ``treesnap.core.fs``."""
    capabilities: FileSystemCapabilities | None = None
    """What the file system of the directory does, if that was asked."""

    @property
    def blocked(self) -> bool:
        """Whether something waits for a person."""
        return any(item.blocked for item in self.unfinished)

    def to_dict(self) -> Fields:
        """Returns what ``snap doctor --json`` prints; ``json.dumps`` takes it."""
        return json_fields(
            {
                "ok": not self.unfinished,
                "forgotten": self.forgotten,
                "unfinished": self.unfinished,
                "implementation": self.implementation,
                "system": self.system,
                "capabilities": self.capabilities,
            }
        )


class PolicySource(StrEnum):
    """Where the rules of a ``prune`` come from."""

    GIVEN = "given"
    """From its caller."""
    SETTINGS = "settings"
    """From ``snap config``, and for rules that are not set there, from the default policy."""
    DEFAULT = "default"
    """The default policy, because no rule was given or set."""


class PrunePolicy(Record):
    """The rules by which a ``prune`` decided."""

    source: PolicySource
    rules: Mapping[str, int | tuple[str, ...]]
    """By their keyword in :class:`Policy`, without ``keep_``: last, within_s, hourly, tags."""

    def to_dict(self) -> Fields:
        """Returns this as JSON; ``json.dumps`` takes it."""
        return {"source": self.source.value, **self.rules}


class PruneResult(Record):
    """Outcome of ``prune``."""

    kept: tuple[Snapshot, ...]
    """Newest first."""
    removed: tuple[Snapshot, ...]
    """Newest first."""
    reasons: Mapping[SnapshotId, tuple[str, ...]]
    """Why each snapshot was kept."""
    dry_run: bool
    policy: PrunePolicy

    def to_dict(self) -> Fields:
        """Returns what ``snap prune --json`` prints; ``json.dumps`` takes it."""
        return {
            "removed": [item.to_dict() for item in self.removed],
            "kept": [
                {**item.to_dict(), "reasons": list(self.reasons[item.id])} for item in self.kept
            ],
            "dry_run": self.dry_run,
            "policy": self.policy.to_dict(),
        }


class GcResult(Record):
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
    newer: int = 0
    """Snapshots that a newer treesnap wrote. What they need is not known: nothing was deleted."""
    snapshots: int = 0
    """Snapshots that need what was kept, of all roots and of histories that were fetched."""
    roots: int = 0
    """How many roots and histories these are of."""
    waste_bytes: int = 0
    """Garbage in packs that are left alone, because most of each is needed."""


class RootDirectory(StrEnum):
    """What is at the path of a root."""

    PRESENT = "present"
    """The directory that was captured last, as far as the file system tells."""
    ABSENT = "absent"
    """Nothing, or nothing that can be looked at."""
    REPLACED = "replaced"
    """Another directory than the one that was captured last."""


class RootInfo(AtPath, Record):
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
    origin: ForkOrigin | None = None
    """Where it comes from, if it is a fork."""


class RootStats(Record):
    """Sizes of one root's history."""

    root: bytes
    """Its path."""
    snapshots: int
    logical_bytes: int
    """Sum of the sizes of its snapshots, as if each were a full copy."""
    unique_bytes: int
    """Bytes in packs that no other root needs: what removing all its snapshots would free."""

    @property
    def path_text(self) -> str:
        """The path as text that Python's file functions take."""
        return path_text(self.root)


class SnapshotStats(Record):
    """Sizes of one snapshot."""

    snapshot: Snapshot
    unique_bytes: int
    """Bytes in packs that no other snapshot needs: what removing this one alone would free."""

    def to_dict(self) -> Fields:
        """Returns the fields by name; ``json.dumps`` takes it."""
        record = self.snapshot.record
        return {
            "id": self.snapshot.id,
            "logical_bytes": record.totals.size_bytes,
            "added_bytes": record.added_bytes,
            "unique_bytes": self.unique_bytes,
        }


class StatsResult(Record):
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

    def to_dict(self) -> Fields:
        """Returns what ``snap stats --json`` prints; ``json.dumps`` takes it."""
        return json_fields(
            {
                **self._asdict(),
                "dedup_ratio": _rounded(self.dedup_ratio),
                "compression_ratio": _rounded(self.compression_ratio),
            }
        )


class SettingSource(StrEnum):
    """Where a setting comes from."""

    DEFAULT = "default"
    STORE = "store"
    ROOT = "root"
    USER = "user"


class Setting(Record):
    """One setting that holds for a root."""

    key: str
    value: str | None
    """The value as in ``snap config KEY VALUE``, or None without a limit."""
    source: SettingSource


class ConfigResult(Record):
    """Outcome of ``config``."""

    settings: tuple[Setting, ...]


class Problem(Record):
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

    def to_dict(self) -> Fields:
        """Returns the fields by name; ``json.dumps`` takes it."""
        return json_fields({**self._asdict(), "where": printable(self.where)})


class PartialSnapshot(Record, json_names={"snapshot_id": "id"}):
    """A snapshot that cannot be restored whole, and what of it cannot."""

    snapshot_id: SnapshotId
    name: str | None
    root: bytes
    """The root that was captured."""
    paths: tuple[bytes, ...]
    """The first paths that cannot be restored, sorted; of a directory, what is below it too."""
    path_count: int
    """How many such paths there are."""

    @property
    def path_text(self) -> str:
        """The path as text that Python's file functions take."""
        return path_text(self.root)


class RecoveredObject(AtPath, Record, json_names={"object_id": "object"}):
    """A lost object that was found in a live tree and stored again."""

    object_id: str
    root: bytes
    path: bytes
    """The file or directory below the root that has the same content."""


class VerifyResult(Record, json_first=("ok",)):
    """Outcome of ``verify``."""

    problems: tuple[Problem, ...]
    """What was found, before anything was repaired."""
    snapshots: int
    objects: int
    read_bytes: int
    left: tuple[Problem, ...] = ()
    """What remains after a repair; without one, all that was found."""
    partial: tuple[PartialSnapshot, ...] = ()
    """The snapshots of which something cannot be restored; after a repair, if there was one."""
    repaired: tuple[str, ...] = ()
    """A sentence for each repair."""
    recovered: tuple[RecoveredObject, ...] = ()
    content_read: bool = False
    """Whether content was read, all or a sample; otherwise damage in it was not looked for."""
    newer: tuple[str, ...] = ()
    """Files of the store that a newer treesnap wrote, and this one cannot judge."""

    @property
    def ok(self) -> bool:
        """Whether everything that was looked at was as it must be."""
        return not self.problems


class FollowFailure(Record):
    """Why the command that follows snapshots failed."""

    exit_code: int | None
    """Negative for a signal; None if it was not run."""
    message: str
    """How it failed, with the last lines that it printed."""


class FollowStatus(Record):
    """What a watcher does to run a command after its snapshots."""

    command: str
    running: bool
    succeeded_at_ns: int | None
    """When it last succeeded, or None before it first did."""
    failures: int
    """How often it has failed since."""
    failure: FollowFailure | None
    """Why it last failed, or None if it did not."""


class StoreInfo(Record):
    """Where a store is, and what is in it."""

    path: str
    """As it was named."""
    real_path: str
    """After all links."""
    id: str
    """Of the store and of its copies: 32 hex digits. Empty where its format file has no such id,
    as only a forged or damaged one does; ``verify`` says so."""
    format: int
    size_bytes: int
    files: int
    packs: int
    snapshots: int
    roots: tuple[bytes, ...]
    """The paths of all roots."""
    own: bool
    """Whether it is proven that this user made it on this machine, or said so."""


class StoreCopy(Record):
    """Outcome of ``store copy``."""

    source: str
    target: str
    files: int
    size_bytes: int
    unreadable: tuple[str, ...]
    """Files of the store that could not be read, or not to their end."""
    verified: VerifyResult
    """What a check of the whole copy found."""


class StoreMove(Record):
    """Outcome of ``store move``."""

    old: str
    """Where a link leads to the new place now."""
    new: str
    left: str | None
    """Where the old store still is after a move to another file system, else None."""


class WatchStatus(Record):
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
    then: FollowStatus | None = None
    """What became of the command that follows its snapshots, or None if there is none."""


class ArchiveResult(Record, json_names={"snapshot": "id"}):
    """Outcome of ``archive``."""

    snapshot: Snapshot
    target: bytes
    """The file that was written."""
    path: bytes
    """What of the root is in it; empty for everything."""
    members: int
    """Paths in it."""
    skipped: int
    """Names that the snapshot knows of and does not hold, and the archive neither."""
    content_bytes: int
    """Bytes of its files, holes included."""
    size_bytes: int
    """Bytes of the archive."""

    @property
    def id(self) -> SnapshotId:
        """The snapshot's id."""
        return self.snapshot.id


class MatchedLine(Record):
    """A line of a file that a pattern matches."""

    number: int
    """From 1 on."""
    text: bytes
    """Without the newline."""
    spans: tuple[tuple[int, int], ...]
    """Where the pattern matches, as offsets of bytes; the first thousand matches of a line."""


class FileMatches(AtPath, Record, json_names={"snapshot": "id"}):
    """A file of a snapshot in which ``grep`` found something."""

    ref: str
    """What the snapshot was asked for by."""
    snapshot: Snapshot
    path: bytes
    is_binary: bool
    """Whether it is not text; then ``lines`` is empty."""
    lines: tuple[MatchedLine, ...]


class BlameLine(Record):
    """A line of a file, and where it came from."""

    number: int
    """From 1 on."""
    text: bytes
    """With its newline; the last line may lack it."""
    snapshot: Snapshot
    """The oldest snapshot of the run of versions in which the line stands."""
    step: Snapshot | None = None
    """What was taken before the step in which the line came, of an agent, a plan, a numbered
    session or ``run``; None for a line that came between steps."""

    def to_dict(self) -> Fields:
        """Returns the fields by name, ids in place of the snapshots."""
        text = self.text.removesuffix(b"\n")
        return {
            "number": self.number,
            **path_fields(text, "text"),
            "id": self.snapshot.id,
            "step_id": self.step.id if self.step is not None else None,
        }


class BlameResult(Record):
    """Outcome of ``blame``."""

    snapshot: Snapshot
    """The snapshot whose file it is."""
    path: bytes
    lines: tuple[BlameLine, ...]
    is_complete: bool
    """Whether all versions were looked at that had to be; some are too large."""

    def to_dict(self) -> Fields:
        """Returns what ``snap blame --json`` prints; ``json.dumps`` takes it."""
        named = (item for line in self.lines for item in (line.snapshot, line.step) if item)
        snapshots = {snapshot.id: snapshot for snapshot in named}
        return {
            "id": self.snapshot.id,
            **path_fields(self.path),
            "is_complete": self.is_complete,
            "lines": [line.to_dict() for line in self.lines],
            "snapshots": [item.to_dict() for item in snapshots.values()],
        }


class PathSpace(AtPath, Record):
    """The space that a path of a snapshot takes, with all below it."""

    path: bytes
    is_directory: bool
    size_bytes: int
    """Bytes of its files, holes included."""
    stored_bytes: int
    """Bytes in packs that it needs, without what paths before it need as well."""
    unique_bytes: int
    """Bytes of these that no other snapshot needs."""


class GroupSpace(Record):
    """The space that some snapshots of a root take together."""

    name: str
    """The session; empty for the snapshots without one."""
    snapshots: int
    logical_bytes: int
    """Sum of their sizes, as if each were a full copy."""
    unique_bytes: int
    """Bytes in packs that no other snapshot needs: what removing them all would free."""

    def to_dict(self) -> Fields:
        """Returns the fields by name; ``json.dumps`` takes it."""
        return json_fields({"session": self.name or None, **fields_of(self, without={"name"})})


class Hunk(Record):
    """Lines of a live file that differ from a snapshot, between lines that do not.

    Lines are counted from 0 and end with their newlines, which the last one of a file may lack.
    """

    number: int
    """Its place among the hunks of the file, from 0."""
    live_start: int
    live_lines: tuple[bytes, ...]
    """The lines from there on that a restore removes; none where it only puts lines back."""
    snapshot_start: int
    snapshot_lines: tuple[bytes, ...]
    """The lines that a restore puts back."""
    lines_before: tuple[bytes, ...]
    """Up to three equal lines above, to be shown with it."""
    lines_after: tuple[bytes, ...]

    def to_dict(self) -> Fields:
        """Returns the fields by name, lines as one text; ``json.dumps`` takes it."""
        fields = self._asdict().items()
        return json_fields(
            {name: b"".join(each) if isinstance(each, tuple) else each for name, each in fields}
        )


class FileHunks(AtPath, Record, json_names={"snapshot": "id"}):
    """Where a live file differs from a snapshot."""

    snapshot: Snapshot
    path: bytes
    live_hash: str
    """Of the live file's content (BLAKE3, 64 hex digits): a restore is about that content alone."""
    hunks: tuple[Hunk, ...]
    """From top to bottom; none where the contents are equal."""


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


class ForkOrigin(Record):
    """Where a fork comes from."""

    root_id: str
    """The id of the root that it was forked from."""
    path: bytes | None
    """Where that root is, or was when it was last seen; None once it was forgotten."""
    snapshot_id: SnapshotId
    """The snapshot of that root that was forked."""
    base_id: SnapshotId
    """The first snapshot of the fork itself, which holds the same."""

    @property
    def path_text(self) -> str | None:
        """The path as text that Python's file functions take."""
        return path_text(self.path) if self.path is not None else None


class Fork(AtPath, Record):
    """One directory that was forked."""

    path: bytes
    root_id: str
    base_id: SnapshotId
    """Its first snapshot, which is named ``forked``."""
    cloned_files: int
    """Files that share their blocks with the origin, or with another fork."""
    cloned_bytes: int
    copied_files: int
    """Files that were written; empty ones are in neither number."""
    copied_bytes: int


class ForkResult(Record):
    """Outcome of ``fork``."""

    snapshot_id: SnapshotId
    """What was forked."""
    files: int
    """Files of each fork."""
    size_bytes: int
    """Bytes of each fork, as if nothing was shared."""
    forks: tuple[Fork, ...]
    """In the order in which the directories were named."""
    privileges: Privileges = Privileges()
    """What was left out of each, of a snapshot that is not proven to be own."""
