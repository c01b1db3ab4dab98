"""The records of the library as JSON objects; pure.

A path whose bytes are UTF-8 is given as text, exactly. Otherwise ``path`` is the text
that people see, and ``path_bytes`` beside it is the path in base64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treesnap.errors import printable
from treesnap.facts import (
    TEXTS,
    counters_in,
    is_retired,
    own_tags,
    rollback_count,
    stated_facts,
)
from treesnap.model import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treesnap.cli.failure import Failure
    from treesnap.model import Change, Entry, Skipped, Snapshot
    from treesnap.results import RestoreResult

Fields = dict[str, Any]


def path_fields(path: bytes | str, key: str = "path") -> Fields:
    """Returns a path as one field, or as two when it is not UTF-8."""
    raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    try:
        return {key: raw.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {key: printable(raw), f"{key}_bytes": b64encode(raw).decode("ascii")}


def paths_fields(paths: Iterable[bytes]) -> list[Fields]:
    """Returns paths in the order given."""
    return [path_fields(path) for path in paths]


def failure_fields(failure: Failure) -> Fields:
    """Returns an error."""
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
    record, facts = snapshot.record, stated_facts(snapshot)
    return {
        "id": snapshot.id,
        "scope": None if record.scope is None else paths_fields(record.scope),
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
        **{name: facts.get(name) for name in TEXTS},
        "counters": counters_in(facts),
        "rollback_count": rollback_count(snapshot),
        "rollback_used": rollback_count(snapshot) > 0,
        "retired": is_retired(snapshot),
        "tags": own_tags(snapshot),
        "files": record.totals.files,
        "size_bytes": record.totals.size_bytes,
        "added_bytes": record.added_bytes,
        **path_fields(record.root_path, "root"),
    }


def skipped_fields(skipped: Iterable[Skipped]) -> list[Fields]:
    """Returns paths that a snapshot does not hold, each with the reason."""
    return [{**path_fields(item.path), "reason": item.reason.word} for item in skipped]


def entry_fields(entry: Entry) -> Fields:
    """Returns an entry without its name; fields that its kind lacks are left out."""
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
    """Returns one path that differs, with the entries of both sides."""
    return {
        **path_fields(change.path),
        "change": change.change.value,
        "old": None if change.old is None else entry_fields(change.old),
        "new": None if change.new is None else entry_fields(change.new),
    }


def restore_fields(result: RestoreResult) -> Fields:
    """Returns the outcome of ``restore``, ``undo`` and ``redo``."""
    return {
        "id": result.snapshot.id,
        "scope": None if result.scope is None else paths_fields(result.scope),
        "restored": result.restored,
        "created": result.created,
        "deleted": result.deleted,
        "unchanged": result.unchanged,
        "safety_id": result.safety_id,
        "not_kept": result.not_kept,
        "dry_run": result.dry_run,
        "plan_id": result.plan_id,
        "untouched": skipped_fields(result.untouched),
        "links_broken": paths_fields(result.links_broken),
        "open_files": [
            {**path_fields(item.path), "process_id": item.process_id, "program": item.program}
            for item in result.open_files
        ],
        "changes": [
            {**path_fields(change.path), "change": change.change.value} for change in result.changes
        ],
    }
