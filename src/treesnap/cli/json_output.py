"""The records of the library as JSON; pure.

A record becomes an object with the names of its fields. A path whose bytes are UTF-8 is given
as text, exactly. Otherwise ``path`` is the text that people see, and ``path_bytes`` beside it
is the path in base64.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from treesnap.model import Entry, EntryKind, SkipReason, Snapshot, utc_text

if TYPE_CHECKING:
    from treesnap.cli.failure import Failure
    from treesnap.results import RestoreResult

Fields = dict[str, Any]

_PLAIN = (str, int, float, type(None))
"""What JSON takes as it is. As a tuple, because to ask a union takes three times as long."""


def json_fields(values: Mapping[str, Any]) -> Fields:
    """Returns named values as JSON; ``bytes`` are a path, in one field or in two."""
    fields: Fields = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            fields |= path_fields(value, name)
        else:
            fields[name] = json_value(value)
    return fields


def json_value(value: Any) -> Any:
    """Returns a value as JSON, with everything in it: records as objects, tuples as lists."""
    if isinstance(value, Entry):
        return entry_fields(value)
    if isinstance(value, SkipReason):
        return value.word
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, bytes):
        return path_fields(value)
    if isinstance(value, Snapshot):
        return json_fields(snapshot_fields(value))
    if isinstance(value, dict):
        return json_fields(value)
    if hasattr(value, "_asdict"):
        return json_fields(value._asdict())
    return [json_value(item) for item in value]


def fields_of(record: Any, without: Collection[str] = ()) -> Fields:
    """Returns the fields of a named tuple or dataclass by name, as they are."""
    names = getattr(record, "_fields", None) or record.__dataclass_fields__
    return {name: getattr(record, name) for name in names if name not in without}


def path_fields(path: bytes | str, key: str = "path") -> Fields:
    """Returns a path as one field, or as two when it is not UTF-8."""
    raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    try:
        return {key: raw.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {key: printable(raw), f"{key}_bytes": b64encode(raw).decode("ascii")}


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
        "scope": record.scope,
        "label": record.label,
        "name": record.name,
        "created_at": utc_text(record.created_at_ns),
        "created_at_ns": record.created_at_ns,
        "root_hash": snapshot.root_hash,
        "complete": snapshot.complete,
        "pinned": snapshot.pinned,
        "kind": record.kind,
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
        "root": record.root_path,
    }


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


def restore_fields(result: RestoreResult) -> Fields:
    """Returns the outcome of ``restore``, ``undo`` and ``redo``, its changes without entries."""
    return {
        "id": result.snapshot.id,
        **fields_of(result, without={"snapshot", "changes", "conflicts"}),
        **{
            name: [fields_of(change, without={"old", "new"}) for change in changes]
            for name, changes in (("changes", result.changes), ("conflicts", result.conflicts))
        },
    }
