"""Rows of the stat cache: what one directory looked like when it was captured.

    header | rows ... | meta | hashes u64[] | offsets u64[] | trailer

A row is ``length u32 | BLAKE3 8 bytes | payload``; the payload is the msgpack
array of :class:`Row`. The hashes are the first eight bytes of the BLAKE3 of each
row's path, sorted; the offsets say where each row is. The trailer is ``meta
offset u64 | count u64 | "TSCT"``. Rows are written in the order in which a walk
finishes directories. The file is never synced: every row and the meta carry a
checksum of their own, and a file that is not whole is not used.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from treesnap.codec.message import Fields, pack, require, unpack
from treesnap.errors import Corrupt
from treesnap.hashing import checksum
from treesnap.model import ObjectId, Totals

TRAILER_MAGIC = b"TSCT"
TRAILER = struct.Struct("<QQ4s")
_FRAME = struct.Struct("<I8s")
FRAME_SIZE = _FRAME.size


class Observation(NamedTuple):
    """What ``lstat`` said about one name of a directory.

    All zeros for a name that exclusions hide: its changes are nobody's business.
    """

    name: bytes
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class Row(NamedTuple):
    """One directory: what was seen, and the tree that was stored for it."""

    path: bytes
    tree_id: ObjectId
    totals: Totals
    rules: bytes
    """Fingerprint of the exclusions that were in force."""
    distrusted: tuple[bytes, ...]
    """Names that must be looked at again whatever their observation says."""
    linked: bool
    """Whether a name has more than one hard link."""
    skipped: tuple[tuple[bytes, int], ...]
    """Names that were not captured, with the reason."""
    observations: bytes
    """The msgpack array of all observations, sorted by name."""


def path_hash(path: bytes) -> int:
    """Returns the number under which a directory's row is found."""
    return int.from_bytes(checksum(path, 8), "big")


def frame(payload: bytes) -> bytes:
    """Returns a payload with its length and checksum before it."""
    return _FRAME.pack(len(payload), checksum(payload, 8)) + payload


def unframe(data: memoryview, offset: int) -> memoryview | None:
    """Returns the payload at an offset, or None when it is not whole."""
    if offset < 0 or offset + FRAME_SIZE > len(data):
        return None
    length, check = _FRAME.unpack_from(data, offset)
    payload = data[offset + FRAME_SIZE : offset + FRAME_SIZE + length]
    if len(payload) != length or checksum(payload, 8) != check:
        return None
    return payload


def encode_row(row: Row) -> bytes:
    """Returns the payload of a row."""
    return pack(row)


def decode_row(payload: memoryview) -> Row:
    """Returns the row of a payload, or raises Corrupt."""
    value = unpack(payload, "stat cache row", 1 << 22)
    require(type(value) is tuple and len(value) == len(Row._fields), "stat cache row", "bad fields")
    row = Row._make(value)
    require(
        type(row.path) is bytes
        and type(row.tree_id) is bytes
        and type(row.totals) is tuple
        and len(row.totals) == len(Totals._fields)
        and type(row.observations) is bytes
        and type(row.distrusted) is tuple
        and type(row.skipped) is tuple,
        "stat cache row",
        "bad field types",
    )
    return row._replace(totals=Totals._make(row.totals))


def encode_observations(observations: list[Observation]) -> bytes:
    """Returns the bytes that stand for a whole directory; equal bytes, equal directory."""
    return pack(observations)


def decode_observations(data: bytes) -> dict[bytes, Observation]:
    """Returns what was seen, by name; empty when it cannot be decoded."""
    try:
        value = unpack(data, "observations", 1 << 22)
        return {item[0]: Observation._make(item) for item in value}
    except (Corrupt, TypeError, IndexError):
        return {}


def encode_meta(snapshot_id: str, tree_id: ObjectId) -> bytes:
    """Returns the payload that names the snapshot and root tree of all rows."""
    return pack({"version": 1, "snapshot": snapshot_id, "tree": tree_id})


def decode_meta(payload: memoryview) -> tuple[str, ObjectId]:
    """Returns the snapshot and root tree of all rows, or raises Corrupt."""
    fields = Fields(unpack(payload, "stat cache"), "stat cache")
    return fields.get("snapshot", str), ObjectId(fields.get("tree", bytes))
