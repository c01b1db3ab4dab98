"""Snapshot records, and the small files around them.

A snapshot is a sealed file whose payload is a msgpack map; its id is the BLAKE3
of that payload under the kind SNAPSHOT. Unknown fields are ignored, so that a
later minor version may add some. The *state hash* (``root_hash``) is the BLAKE3
under the kind STATE of ``[root entry, links]``: it covers everything that a
restore brings back and nothing else, so that equal states have equal hashes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from treesnap.core.codec.chunklist import check_content
from treesnap.core.codec.envelope import CHECKSUM_SIZE, HEADER_SIZE, FileKind, Format
from treesnap.core.codec.fields import (
    ARRAY,
    BYTES,
    MAP,
    PATH,
    SCOPE,
    SIZE,
    TEXT,
    TIME,
    FieldKind,
    Table,
    array,
    omitted,
    optional,
    row,
    where,
    word,
)
from treesnap.core.codec.message import pack, require, unpack
from treesnap.core.codec.tree import decode_entry, decode_totals
from treesnap.core.model.entries import EntryKind, FileContent, ObjectKind
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.ids import object_id
from treesnap.core.model.snapshots import (
    Attachment,
    IgnoreRules,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    SnapshotState,
)
from treesnap.core.model.treepath import parse
from treesnap.core.model.type_names import Any

RECORD_SIZE_MAX = 64 << 20
STATE_SIZE_MAX = 1 << 16
_ULID_DIGITS = 26
_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_FRAME = struct.Struct(f"<{HEADER_SIZE}xQ")
"""What stands before the payload of a sealed file, and its length."""

PLAN_ATTACHMENT = "plan"
"""The kind of attachment that records have a field for."""
_ORDER = (
    *("root", "root_path", "created_at_ns", "totals", "kind", "host", "links", "scope", "rules"),
    *("unstable", "step", "added_bytes", "tags", "plan", "label", "name", "session", "parent"),
)
"""The fields of a snapshot as they are stored: its id depends on it."""
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
    expected, data = bytes.fromhex(identity), bytearray(payload)
    view = memoryview(data)
    for position, damaged in enumerate(payload):
        for value in range(256):
            data[position] = value
            if object_id(ObjectKind.SNAPSHOT, view) == expected:
                return bytes(data)
        data[position] = damaged
    return None


def state_hash(record: SnapshotRecord) -> str:
    """Returns the 64 hex digits that identify the captured state."""
    return object_id(ObjectKind.STATE, pack((record.root, record.links))).hex()


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


def _read_tags(stored: Any, what: str, name: str) -> dict[str, str]:
    tags: dict[str, str] = MAP.read(stored, what, name)
    is_text = all(type(key) is str and type(value) is str for key, value in tags.items())
    require(is_text, what, "a tag is not text")
    return tags


def _read_rules(stored: Any, what: str, name: str) -> tuple[IgnoreRules, ...]:
    return decode_rules(ARRAY.read(stored, what, name), what)


def _read_links(stored: Any, _what: str, _name: str) -> FileContent:
    check_content(stored)
    return FileContent(stored)


_ROOT = where(
    FieldKind(lambda stored, _what, _name: decode_entry(stored)),
    lambda root: root.name == b"" and root.kind == EntryKind.DIRECTORY,
    "is not a directory without a name",
)
_TAGS = optional(FieldKind(_read_tags, lambda tags: dict(sorted(tags.items()))), absent={})


def _is_attachment_name(text: str) -> bool:
    """Returns whether a text is a ULID, whose first digit has three bits.

    It becomes part of a file's name.
    """
    return len(text) == _ULID_DIGITS and text[0] < "8" and not text.strip(_ULID_ALPHABET)


_ATTACHMENT_ROW = row(
    Attachment,
    given={"kind": PLAN_ATTACHMENT},
    name=where(TEXT, _is_attachment_name, "is not that of an attachment"),
)
ATTACHMENT = omitted(_ATTACHMENT_ROW)
"""The kind of attachments, whose payloads are checked when they are read."""
_SNAPSHOT = Table(
    SnapshotRecord,
    "snapshot",
    names={"attachment": PLAN_ATTACHMENT},
    root=_ROOT,
    root_path=where(BYTES, lambda path: b"\0" not in path, "is not a path"),
    links=optional(FieldKind(_read_links)),
    created_at_ns=TIME,
    totals=FieldKind(lambda stored, _what, _name: decode_totals(stored)),
    kind=word(SnapshotKind),
    scope=optional(SCOPE),
    rules=optional(FieldKind(_read_rules, encode_rules), absent=()),
    unstable=optional(array(PATH), absent=()),
    host=optional(TEXT, absent=""),
    added_bytes=optional(SIZE),
    tags=_TAGS,
    attachment=ATTACHMENT,
)
_STATE = Table(
    SnapshotState,
    "snapshot state",
    tags=_TAGS,
    removed_tags=omitted(array(TEXT), absent=()),
    label=omitted(TEXT),
)


def encode_snapshot(record: SnapshotRecord) -> bytes:
    """Returns the payload of a snapshot. Fields without a value are left out."""
    stored = _SNAPSHOT.map_of(record)
    kept = {key: stored[key] for key in _ORDER if stored.get(key) not in (None, (), {})}
    return pack({"version": 1, **kept})


decode_snapshot: Callable[[bytes], SnapshotRecord] = _SNAPSHOT.decode
SNAPSHOT = Format(FileKind.SNAPSHOT, encode_snapshot, decode_snapshot, RECORD_SIZE_MAX)


def encode_state(state: SnapshotState, identity: SnapshotId | None = None) -> bytes:
    """Returns the payload of a snapshot's mutable state, which names the snapshot."""
    named = {} if identity is None else {"snapshot": identity}
    return pack({"version": 1, **_STATE.map_of(state), **named})


def decode_state(payload: bytes, identity: SnapshotId | None = None) -> SnapshotState:
    """Returns a snapshot's mutable state, or raises Corrupt; also for that of another snapshot.

    Earlier versions did not say whose it is, and had neither removed tags nor a label.
    """
    stored = unpack(payload, _STATE.what)
    state = _STATE.record_of(stored)
    named = optional(TEXT).read(stored.get("snapshot"), _STATE.what, "snapshot")
    is_of_it = None in (named, identity) or named == identity
    require(is_of_it, _STATE.what, "it is that of another snapshot")
    return state


def state_format(identity: SnapshotId) -> Format[SnapshotState]:
    """Returns the format of the state of one snapshot."""
    return Format(
        FileKind.SNAPSHOT_STATE,
        partial(encode_state, identity=identity),
        partial(decode_state, identity=identity),
        STATE_SIZE_MAX,
    )
