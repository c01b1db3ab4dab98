"""Snapshot records, and the small files around them.

A snapshot is a sealed file whose payload is a msgpack map; its id is the BLAKE3
of that payload under the kind SNAPSHOT. Unknown fields are ignored, so that a
later minor version may add some. The *state hash* (``root_hash``) is the BLAKE3
under the kind STATE of ``[root entry, links]``: it covers everything that a
restore brings back and nothing else, so that equal states have equal hashes.
"""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Any

from treesnap.core.codec.chunklist import check_content
from treesnap.core.codec.envelope import CHECKSUM_SIZE, HEADER_SIZE, FileKind, Format
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.codec.tree import decode_entry, decode_totals
from treesnap.core.model.entities import (
    Attachment,
    EntryKind,
    FileContent,
    IgnoreRules,
    ObjectKind,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    SnapshotState,
)
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.ids import is_snapshot_id, object_id
from treesnap.core.model.treepath import parse, parse_scope

RECORD_SIZE_MAX = 64 << 20
STATE_SIZE_MAX = 1 << 16
_FRAME = struct.Struct(f"<{HEADER_SIZE}xQ")
"""What stands before the payload of a sealed file, and its length."""

PLAN_ATTACHMENT = "plan"
"""The kind of attachment that records have a field for."""
_ATTACHMENT_NAME = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
"""A ULID: it becomes part of a file's name."""
_TEXTS = ("label", "name", "session", "parent")


def encode_snapshot(record: SnapshotRecord) -> bytes:
    """Returns the payload of a snapshot. Fields without a value are left out."""
    fields: dict[str, Any] = {
        "version": 1,
        "root": record.root,
        "root_path": record.root_path,
        "created_at_ns": record.created_at_ns,
        "totals": record.totals,
        "kind": record.kind.value,
        "host": record.host,
        "links": record.links,
        "scope": record.scope,
        "rules": encode_rules(record.rules),
        "unstable": record.unstable,
        "step": record.step,
        "added_bytes": record.added_bytes,
        "tags": dict(sorted(record.tags.items())),
        **attachment_field(record.attachment),
    }
    fields.update({name: getattr(record, name) for name in _TEXTS})
    kept = {name: value for name, value in fields.items() if value not in (None, (), {})}
    return pack(kept)


CORRECTED_SIZE_MAX = 4 << 10
"""Bytes of the longest payload of which a damaged byte is searched for."""


def snapshot_id(payload: bytes) -> SnapshotId:
    """Returns the id of an encoded snapshot."""
    return SnapshotId(object_id(ObjectKind.SNAPSHOT, payload).hex())


def tag_bytes(key: str, value: str) -> bytes:
    """Returns what an encoded snapshot with a tag contains; another one may do so by chance."""
    return pack(key) + pack(value)


def records_in(data: bytes) -> tuple[bytes, ...]:
    """Returns what may be the payload in the damaged file of a snapshot; nothing is checked.

    One takes the length that the file states, the other the length that the file has.
    """
    if len(data) < _FRAME.size:
        return ()
    (length,) = _FRAME.unpack_from(data)
    return data[_FRAME.size : _FRAME.size + length], data[_FRAME.size : -CHECKSUM_SIZE]


def corrected(payload: bytes, identity: SnapshotId) -> bytes | None:
    """Returns the payload with the one byte put right that keeps it from having an id, or None.

    The id is a hash of every byte, so what is found is what was stored. Costs 255 hashes for each
    byte, 0.3 s for 1 KiB; longer payloads than :data:`CORRECTED_SIZE_MAX` are not tried.
    """
    if len(payload) > CORRECTED_SIZE_MAX:
        return None
    wanted, data = bytes.fromhex(identity), bytearray(payload)
    view = memoryview(data)
    for position, damaged in enumerate(payload):
        for value in range(256):
            data[position] = value
            if object_id(ObjectKind.SNAPSHOT, view) == wanted:
                return bytes(data)
        data[position] = damaged
    return None


def state_hash(record: SnapshotRecord) -> str:
    """Returns the 64 hex digits that identify the captured state."""
    return object_id(ObjectKind.STATE, pack((record.root, record.links))).hex()


def decode_snapshot(payload: bytes) -> SnapshotRecord:
    """Returns the record of an encoded snapshot, or raises Corrupt."""
    fields = Fields(unpack(payload, "snapshot", LONG_ARRAY_LENGTH_MAX), "snapshot")
    fields.require_version(1)
    root = decode_entry(fields.get("root", tuple))
    require(root.name == b"" and root.kind == EntryKind.DIRECTORY, "snapshot", "bad root")
    links = fields.optional("links", tuple)
    if links is not None:
        check_content(links)
    scope = fields.optional("scope", tuple)
    try:
        kind = SnapshotKind(fields.get("kind", str))
        checked_scope = None if scope is None else parse_scope(tuple(map(_bytes, scope)))
        unstable = tuple(parse(_bytes(path)) for path in fields.optional("unstable", tuple) or ())
    except (ValueError, InvalidArgument) as error:
        raise Corrupt(f"Stored snapshot is not valid: {error}") from error
    added_bytes = fields.optional("added_bytes", int)
    require(added_bytes is None or added_bytes >= 0, "snapshot", "it added less than nothing")
    texts = {name: fields.optional(name, str) for name in _TEXTS}
    root_path = fields.get("root_path", bytes)
    require(b"\0" not in root_path, "snapshot", "its root is not a path")
    parent = texts.pop("parent")
    require(parent is None or is_snapshot_id(parent), "snapshot", "its parent is not an id")
    return SnapshotRecord(
        root=root,
        links=None if links is None else FileContent(links),
        root_path=root_path,
        created_at_ns=fields.time("created_at_ns"),
        totals=decode_totals(fields.get("totals", tuple)),
        kind=kind,
        scope=checked_scope,
        rules=decode_rules(fields.optional("rules", tuple) or (), "snapshot"),
        unstable=unstable,
        parent=SnapshotId(parent) if parent is not None else None,
        host=fields.optional("host", str) or "",
        step=fields.optional("step", int),
        added_bytes=added_bytes,
        tags=_decode_tags(fields, "snapshot"),
        attachment=decode_attachment(fields, "snapshot"),
        **texts,
    )


def attachment_field(attachment: Attachment | None) -> dict[str, Any]:
    """Returns the field of a record that carries an attachment, or none."""
    return {} if attachment is None else {attachment.kind: (attachment.name, attachment.payload)}


def decode_attachment(fields: Fields, what: str) -> Attachment | None:
    """Returns the attachment that a record carries, or raises Corrupt.

    The payload is checked when the file is read.
    """
    row = fields.optional(PLAN_ATTACHMENT, tuple)
    if row is None:
        return None
    require(
        len(row) == 2 and type(row[0]) is str and type(row[1]) is bytes,
        what,
        "its plan is not whole",
    )
    require(_ATTACHMENT_NAME.match(row[0]) is not None, what, "the id of its plan is none")
    return Attachment(PLAN_ATTACHMENT, row[0], row[1])


SNAPSHOT = Format(FileKind.SNAPSHOT, encode_snapshot, decode_snapshot, RECORD_SIZE_MAX)


def _bytes(value: Any) -> bytes:
    require(type(value) is bytes, "snapshot", "a path is not a byte string")
    return value  # type: ignore[no-any-return]  # checked above


def _decode_tags(fields: Fields, what: str) -> dict[str, str]:
    tags = fields.optional("tags", dict) or {}
    is_text = all(type(key) is str and type(value) is str for key, value in tags.items())
    require(is_text, what, "a tag is not text")
    return tags


def encode_state(state: SnapshotState, identity: SnapshotId | None = None) -> bytes:
    """Returns the payload of a snapshot's mutable state, which names the snapshot."""
    fields: dict[str, Any] = {
        "version": 1,
        "pinned": state.pinned,
        "tags": dict(sorted(state.tags.items())),
    }
    if state.removed_tags:
        fields["removed_tags"] = state.removed_tags
    if state.label is not None:
        fields["label"] = state.label
    return pack(fields if identity is None else {**fields, "snapshot": identity})


def decode_state(payload: bytes, identity: SnapshotId | None = None) -> SnapshotState:
    """Returns a snapshot's mutable state, or raises Corrupt; also for that of another snapshot.

    Earlier versions did not say whose it is, and had neither removed tags nor a label.
    """
    fields = Fields(unpack(payload, "snapshot state"), "snapshot state")
    fields.require_version(1)
    named = fields.optional("snapshot", str)
    require(
        None in (named, identity) or named == identity,
        "snapshot state",
        "it is that of another snapshot",
    )
    removed = fields.optional("removed_tags", tuple) or ()
    require(all(type(key) is str for key in removed), "snapshot state", "a tag is not text")
    return SnapshotState(
        pinned=fields.get("pinned", bool),
        tags=_decode_tags(fields, "snapshot state"),
        removed_tags=removed,
        label=fields.optional("label", str),
    )


def state_format(identity: SnapshotId) -> Format[SnapshotState]:
    """Returns the format of the state of one snapshot."""
    return Format(
        FileKind.SNAPSHOT_STATE,
        partial(encode_state, identity=identity),
        partial(decode_state, identity=identity),
        STATE_SIZE_MAX,
    )


def encode_rules(rules: tuple[IgnoreRules, ...]) -> tuple[Any, ...]:
    """Returns exclusions as arrays of a directory and its patterns.

    Patterns are byte strings like the names that they stand for: not every one is UTF-8.
    """
    return tuple(
        (
            rule.directory,
            tuple(pattern.encode("utf-8", "surrogateescape") for pattern in rule.patterns),
        )
        for rule in rules
    )


def decode_rules(value: tuple[Any, ...], what: str) -> tuple[IgnoreRules, ...]:
    """Returns stored exclusions, or raises Corrupt."""
    rules = []
    for item in value:
        require(
            type(item) is tuple
            and len(item) == 2
            and type(item[0]) is bytes
            and type(item[1]) is tuple
            and all(type(pattern) is bytes for pattern in item[1]),
            what,
            "its exclusions are not patterns",
        )
        try:
            patterns = tuple(pattern.decode("utf-8", "surrogateescape") for pattern in item[1])
            rules.append(IgnoreRules(parse(item[0]), patterns))
        except InvalidArgument as error:
            raise Corrupt(f"Stored {what} is not valid: {error}") from error
    return tuple(rules)
