"""The records of the library as JSON objects; pure.

A path is given as text, exactly, when its bytes are UTF-8. Otherwise ``path`` is
the text that people see, and ``path_bytes`` beside it is the path in base64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treesnap.errors import printable
from treesnap.model import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treesnap.cli.failure import Failure
    from treesnap.model import Change, Entry, Skipped, Snapshot
    from treesnap.results import (
        CreateResult,
        FoundPath,
        GcResult,
        RestoreResult,
        RunResult,
        SnapshotList,
        StatusResult,
    )

Fields = dict[str, Any]

CREATE_STATS_FIELDS = (
    "files",
    "directories",
    "others",
    "size_bytes",
    "files_read",
    "read_bytes",
    "objects_added",
    "added_bytes",
)
GC_FIELDS = (
    "freed_bytes",
    "removed_objects",
    "removed_packs",
    "rewritten_packs",
    "kept_objects",
    "dry_run",
    "postponed",
)


def path_fields(path: bytes | str, key: str = "path") -> Fields:
    """Returns a path as one field, or as two when it is not UTF-8."""
    raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    try:
        return {key: raw.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {key: printable(raw), f"{key}_bytes": b64encode(raw).decode("ascii")}


def failure_fields(failure: Failure) -> Fields:
    """Returns an error; ``path`` is null when it is about none."""
    path = {"path": None} if failure.path is None else path_fields(failure.path)
    return {
        "code": failure.code,
        "message": printable(failure.message),
        "hint": failure.hint,
        "exit_code": failure.exit_code,
        **path,
    }


def snapshot_fields(snapshot: Snapshot) -> Fields:
    """Returns a snapshot as ``list`` has it."""
    record = snapshot.record
    return {
        "id": snapshot.id,
        "scope": scope_fields(record.scope),
        "label": record.label,
        "name": record.name,
        "created_at": snapshot.created_at.isoformat().replace("+00:00", "Z"),
        "created_at_ns": record.created_at_ns,
        "root_hash": snapshot.root_hash,
        "complete": snapshot.complete,
        "pinned": snapshot.pinned,
        "kind": record.kind.value,
        "session": record.session,
        "step": record.step,
        "step_name": record.step_name,
        "phase": record.phase,
        "type": record.type,
        "reason": record.reason,
        "source_tool": record.source_tool,
        "counters": dict(record.counters),
        "rollback_count": snapshot.state.rollback_count,
        "rollback_used": snapshot.state.rollback_used,
        "retired": snapshot.state.retired,
        "tags": dict(record.tags),
        "files": record.totals.files,
        "size_bytes": record.totals.size_bytes,
        "added_bytes": record.added_bytes,
        **path_fields(record.root_path, "root"),
    }


def scope_fields(scope: tuple[bytes, ...] | None) -> list[Fields] | None:
    """Returns the paths that something is about, or None for the whole root."""
    return None if scope is None else [path_fields(path) for path in scope]


def list_fields(snapshots: SnapshotList) -> Fields:
    """Returns snapshots in the order given, and the ids of damaged ones."""
    return {
        "snapshots": [snapshot_fields(snapshot) for snapshot in snapshots],
        "damaged": list(snapshots.damaged),
    }


def show_fields(snapshot: Snapshot, skipped: Iterable[Skipped]) -> Fields:
    """Returns everything that is known of a snapshot."""
    record = snapshot.record
    return {
        **snapshot_fields(snapshot),
        "parent": record.parent,
        "host": record.host,
        "totals": record.totals._asdict(),
        "rules": [
            {**path_fields(rules.directory, "directory"), "patterns": list(rules.patterns)}
            for rules in record.rules
        ],
        "unstable": [path_fields(path) for path in record.unstable],
        "skipped": skipped_fields(skipped),
    }


def skipped_fields(skipped: Iterable[Skipped]) -> list[Fields]:
    """Returns paths that are not held, each with the reason."""
    return [{**path_fields(item.path), "reason": item.reason.word} for item in skipped]


def entry_fields(entry: Entry) -> Fields:
    """Returns what is recorded of one path; fields that its kind lacks are left out."""
    kind = EntryKind(entry.kind)
    if kind is EntryKind.SKIPPED:
        return {"kind": "skipped", "reason": entry.skip_reason.word}
    fields: Fields = {
        "kind": kind.name.lower(),
        "mode": f"{entry.mode:04o}",
        "uid": entry.uid,
        "gid": entry.gid,
        "mtime_ns": entry.mtime_ns,
    }
    if kind is EntryKind.FILE:
        fields["size"] = entry.size
    elif kind is EntryKind.SYMLINK:
        fields |= path_fields(entry.target, "target")
    elif kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
        fields["device"] = list(entry.device)
    return fields


def change_fields(change: Change) -> Fields:
    """Returns one path that differs, with what is recorded of both sides."""
    return {
        **path_fields(change.path),
        "change": change.change.value,
        "old": None if change.old is None else entry_fields(change.old),
        "new": None if change.new is None else entry_fields(change.new),
    }


def create_fields(result: CreateResult) -> Fields:
    """Returns the outcome of ``create``."""
    stats = {name: getattr(result.stats, name) for name in CREATE_STATS_FIELDS}
    return {
        "id": result.id,
        "root_hash": result.root_hash,
        "complete": result.complete,
        "unchanged": result.unchanged,
        "skipped": skipped_fields(result.skipped),
        "absent": [path_fields(path) for path in result.absent],
        "stats": stats,
        "snapshot": snapshot_fields(result.snapshot),
    }


def ls_fields(snapshot_id: str, entries: Iterable[Entry]) -> Fields:
    """Returns entries of a snapshot; paths are relative to the one that was asked for."""
    return {
        "id": snapshot_id,
        "entries": [{**path_fields(entry.name), **entry_fields(entry)} for entry in entries],
    }


def cat_fields(snapshot_id: str, path: bytes | str, content: bytes) -> Fields:
    """Returns a file's content, as text when it is UTF-8 and in base64 otherwise."""
    fields = {"id": snapshot_id, **path_fields(path), "size": len(content)}
    try:
        return fields | {"content": content.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return fields | {"content_base64": b64encode(content).decode("ascii")}


def find_fields(found: Iterable[FoundPath]) -> Fields:
    """Returns the paths that ``find`` matched."""
    return {
        "paths": [
            {**path_fields(item.path), "snapshot_ids": list(item.snapshot_ids)} for item in found
        ]
    }


def status_fields(result: StatusResult) -> Fields:
    """Returns the outcome of ``status``; ``id`` is null before the first snapshot."""
    return {
        "id": None if result.snapshot is None else result.snapshot.id,
        "changes": [change_fields(change) for change in result.changes],
        "skipped": skipped_fields(result.skipped),
        "recovered": result.recovered,
    }


def diff_fields(old_id: str, new_id: str | None, changes: Iterable[Change]) -> Fields:
    """Returns what differs; ``new_id`` is null for the live tree."""
    return {
        "old_id": old_id,
        "new_id": new_id,
        "changes": [change_fields(change) for change in changes],
    }


def restore_fields(result: RestoreResult) -> Fields:
    """Returns the outcome of ``restore``, ``undo`` and ``redo``."""
    return {
        "id": result.snapshot.id,
        "scope": scope_fields(result.scope),
        "restored": result.restored,
        "created": result.created,
        "deleted": result.deleted,
        "unchanged": result.unchanged,
        "safety_id": result.safety_id,
        "not_kept": result.not_kept,
        "dry_run": result.dry_run,
        "plan_id": result.plan_id,
        "untouched": skipped_fields(result.untouched),
        "links_broken": [path_fields(path) for path in result.links_broken],
        "open_files": [
            {**path_fields(item.path), "process_id": item.process_id, "program": item.program}
            for item in result.open_files
        ],
        "changes": [
            {**path_fields(change.path), "change": change.change.value} for change in result.changes
        ],
    }


def run_fields(result: RunResult, exit_code: int) -> Fields:
    """Returns the outcome of ``run``; ``exit_code`` is the one that ``snap`` ends with."""
    return {
        "id": result.snapshot_id,
        "exit_code": exit_code,
        "attempts": result.attempts,
        "rolled_back": result.rolled_back,
        "restore": None if result.restore is None else restore_fields(result.restore),
    }


def gc_fields(result: GcResult) -> Fields:
    """Returns the outcome of ``gc``."""
    fields: Fields = {name: getattr(result, name) for name in GC_FIELDS}
    return {**fields, "damaged": list(result.damaged)}
