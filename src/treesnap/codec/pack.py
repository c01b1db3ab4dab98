"""Packs: append-only files of self-describing records.

    +--------+--------+--------+-- ... --+--------+---------+
    | header | record | record |         | footer | trailer |
    +--------+--------+--------+-- ... --+--------+---------+

A record is a 52-byte header and the stored bytes:

    magic "TSRC" | kind u8 | compression u8 | flags u8 | 0 | raw size u32
    | stored size u32 | id 32 bytes | CRC-32 of the 48 bytes before

The footer is a record of kind 255 whose bytes are the msgpack array of
``[kind, offset, raw size, stored size, id]``, one per record, and whose id is
their BLAKE3. The 12-byte trailer is ``"TSFT" | footer offset u32 | CRC-32``. A
pack without a trailer is still being appended to, or its writer died: a record
is there when its header is whole and its bytes lie inside the file. A reader that
relies on bytes that were never synced checks them against their id first.

This is the one place that knows how an object lies in a pack. Not here: files, locks, lookups
(store).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Protocol
from zlib import crc32

from treesnap.codec.compress import OBJECT_SIZE_MAX, Compression, compress, decompress
from treesnap.codec.envelope import HEADER_SIZE
from treesnap.codec.message import pack, unpack
from treesnap.errors import Corrupt
from treesnap.hashing import ID_SIZE, checksum, object_id
from treesnap.model import ObjectId, ObjectKind
from treesnap.named_tuple import NamedTuple

MAGIC = b"TSRC"
TRAILER_MAGIC = b"TSFT"
FOOTER_KIND = 255
RECORD_HEADER_SIZE = 52
PACK_ID_SIZE = 16
PACK_SIZE_TARGET = 32 << 20
"""A pack that has reached this size is sealed."""
PACK_SIZE_MAX = 1 << 30
"""No valid pack is larger."""
FOOTER_RECORDS_MAX = 1 << 20

_RECORD = struct.Struct("<4sBBBxII32s")
_CHECK = struct.Struct("<I")
_TRAILER = struct.Struct("<4sI")
TRAILER_SIZE = _TRAILER.size + _CHECK.size
_COMPRESSION_AT = 5
"""Where the byte for the compression stands in a record."""
_KINDS = {int(kind): kind for kind in ObjectKind}


class Sliced(Protocol):
    """The bytes of a pack, of which any part can be had; a part may be shorter than asked for."""

    def __len__(self) -> int:
        """How many bytes there are."""

    def __getitem__(self, part: slice, /) -> bytes | memoryview:
        """Returns a part."""


class IndexEntry(NamedTuple):
    """One object and the place of its record: what a record, a footer and an index say of it."""

    id: ObjectId
    pack_id: bytes
    offset: int
    """Position of the record's first byte in the pack."""
    stored_size: int
    raw_size: int
    kind: int

    @property
    def size_bytes(self) -> int:
        """Bytes that the object takes in its pack."""
        return RECORD_HEADER_SIZE + self.stored_size

    @property
    def end(self) -> int:
        """Position after the record's last byte."""
        return self.offset + RECORD_HEADER_SIZE + self.stored_size


class Encoded(NamedTuple):
    """Records that can be appended to any pack, one after the other."""

    data: bytes
    rows: list[tuple[ObjectId, int, int, int]]
    """Id, stored size, raw size and kind of each."""

    def entries_at(self, pack_id: bytes, offset: int) -> Iterator[IndexEntry]:
        """Yields what an index says of the records when they begin at an offset."""
        for identity, stored_size, raw_size, kind in self.rows:
            yield IndexEntry(identity, pack_id, offset, stored_size, raw_size, kind)
            offset += RECORD_HEADER_SIZE + stored_size


def encode_objects(objects: Sequence[tuple[ObjectKind, ObjectId, bytes]]) -> Encoded:
    """Returns the records of objects, each compressed where that saves bytes.

    Most of the time is spent without the GIL.
    """
    pieces: list[bytes] = []
    rows: list[tuple[ObjectId, int, int, int]] = []
    compressed = compress([data for _, _, data in objects])
    for (kind, identity, data), (compression, stored) in zip(objects, compressed, strict=True):
        pieces.append(encode_record_header(kind, compression, len(data), len(stored), identity))
        pieces.append(stored)
        rows.append((identity, len(stored), len(data), kind))
    return Encoded(b"".join(pieces), rows)


def encode_record_header(
    kind: int, compression: int, raw_size: int, stored_size: int, identity: bytes
) -> bytes:
    """Returns the 52 bytes that stand before an object's stored bytes."""
    body = _RECORD.pack(MAGIC, kind, compression, 0, raw_size, stored_size, identity)
    return body + _CHECK.pack(crc32(body))


def decode_record_header(
    data: bytes | memoryview, pack_id: bytes, offset: int
) -> IndexEntry | None:
    """Returns what the record header at the start of ``data`` says, or None when there is none.

    ``offset`` is where ``data`` begins in the pack.
    """
    if len(data) < RECORD_HEADER_SIZE:
        return None
    magic, kind, _, _, raw_size, stored_size, identity = _RECORD.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _RECORD.size)
    if magic != MAGIC or check != crc32(data[: _RECORD.size]):
        return None
    return IndexEntry(identity, pack_id, offset, stored_size, raw_size, kind)


def decode_object(entry: IndexEntry, record: bytes, where: str) -> bytes:
    """Returns an object's bytes, verified against its id; raises Corrupt.

    ``record`` is what lies at the place of the entry.
    """
    found = decode_record_header(record, entry.pack_id, entry.offset)
    if found != entry or len(record) != entry.size_bytes:
        raise Corrupt(
            f"Pack {entry.pack_id.hex()} does not hold object {entry.id.hex()} at {entry.offset}",
            path=where,
        )
    if entry.kind not in _KINDS:
        raise Corrupt(f"Object {entry.id.hex()} has the unknown kind {entry.kind}")
    data = decompress(record[_COMPRESSION_AT], record[RECORD_HEADER_SIZE:], entry.raw_size)
    if object_id(_KINDS[entry.kind], data) != entry.id:
        raise Corrupt(f"Object {entry.id.hex()} does not match its identity")
    return data


def decode_unchecked(record: bytes) -> bytes:
    """Returns the bytes of an object as far as a damaged record has any."""
    stored = record[RECORD_HEADER_SIZE:]
    found = decode_record_header(record, b"", 0)
    if found is None:
        return stored
    try:
        return decompress(record[_COMPRESSION_AT], stored, found.raw_size)
    except Corrupt:
        return stored


def scan_records(data: Sliced, pack_id: bytes, start: int = HEADER_SIZE) -> Iterator[IndexEntry]:
    """Yields the records of a pack from ``start`` on, up to the first that is not whole.

    Costs one header each; content is not read.
    """
    offset, size = start, len(data)
    while True:
        head = data[offset : offset + RECORD_HEADER_SIZE]
        entry = decode_record_header(head, pack_id, offset)
        if entry is None or entry.kind not in _KINDS or (end := entry.end) > size:
            return
        if entry.raw_size > OBJECT_SIZE_MAX or entry.stored_size > OBJECT_SIZE_MAX:
            return
        yield entry
        offset = end


def encode_footer(records: Sequence[IndexEntry], offset: int) -> bytes:
    """Returns the footer and trailer that seal a pack which ends at ``offset``."""
    table = pack(
        tuple(
            (record.kind, record.offset, record.raw_size, record.stored_size, record.id)
            for record in records
        )
    )
    head = encode_record_header(
        FOOTER_KIND, Compression.NONE, len(table), len(table), checksum(table, 32)
    )
    trailer = _TRAILER.pack(TRAILER_MAGIC, offset)
    return head + table + trailer + _CHECK.pack(crc32(trailer))


def footer_offset(trailer: bytes | memoryview) -> int | None:
    """Returns where the footer begins, from a pack's last 12 bytes; None for an unsealed pack."""
    if len(trailer) != TRAILER_SIZE:
        return None
    magic, offset = _TRAILER.unpack_from(trailer)
    (check,) = _CHECK.unpack_from(trailer, _TRAILER.size)
    if magic != TRAILER_MAGIC or check != crc32(trailer[: _TRAILER.size]):
        return None
    return int(offset)


def decode_footer(data: Sliced, pack_id: bytes, where: str) -> list[IndexEntry]:
    """Returns the records that the footer of a whole sealed pack lists; raises Corrupt."""
    offset = footer_offset(data[-TRAILER_SIZE:])
    if offset is None or offset >= len(data):
        raise Corrupt(f"Pack {where} has no footer", path=where)
    header = decode_record_header(data[offset : offset + RECORD_HEADER_SIZE], pack_id, offset)
    if header is None or header.kind != FOOTER_KIND or header.end != len(data) - TRAILER_SIZE:
        raise Corrupt(f"Pack {where} has a damaged footer", path=where)
    table = data[offset + RECORD_HEADER_SIZE : header.end]
    if checksum(table, 32) != header.id:
        raise Corrupt(f"Pack {where} has a footer that does not match its checksum", path=where)
    rows = unpack(table, "pack footer", FOOTER_RECORDS_MAX, maps=False)
    if type(rows) is not tuple or not all(_is_footer_row(row, offset) for row in rows):
        raise Corrupt(f"Pack {where} has a footer with an impossible row", path=where)
    return [
        IndexEntry(ObjectId(identity), pack_id, position, stored_size, raw_size, kind)
        for kind, position, raw_size, stored_size, identity in rows
    ]


def _is_footer_row(row: object, footer_offset: int) -> bool:
    return (
        type(row) is tuple
        and len(row) == 5
        and all(type(number) is int and number >= 0 for number in row[:4])
        and row[0] in _KINDS
        and row[2] <= OBJECT_SIZE_MAX
        and row[3] <= OBJECT_SIZE_MAX
        and row[1] >= HEADER_SIZE
        and row[1] + RECORD_HEADER_SIZE + row[3] <= footer_offset
        and type(row[4]) is bytes
        and len(row[4]) == ID_SIZE
    )
