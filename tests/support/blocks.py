"""Blocks made by hand, and where an object lies in the block of a pack."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from treesnap.codec.compress import Compression
from treesnap.codec.pack import (
    HEAD_SIZE,
    BlockTable,
    Encoded,
    IndexEntry,
    decode_table,
    encode_table,
    table_size,
)
from treesnap.hashing import object_id
from treesnap.model import ObjectKind

ONE_OBJECT_SIZE = HEAD_SIZE + 37
"""Bytes before the stored ones in a block of one object."""


def block_of(objects: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Returns one block that is not compressed, of kind, id and bytes, whatever they are."""
    objects = list(objects)
    raw = b"".join(bytes([kind]) + data for kind, _, data in objects)
    rows = [(identity, len(data), kind) for kind, identity, data in objects]
    return encode_table(rows, Compression.NONE, len(raw), len(raw)) + raw


def chunk_blocks(*chunks: bytes) -> Encoded:
    """Returns a block for each chunk, not compressed."""
    data = b""
    tables: list[BlockTable] = []
    for chunk in chunks:
        block = block_of([(ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, chunk), chunk)])
        table = decode_table(block, b"", len(data))
        assert table is not None
        tables.append(table)
        data += block
    return Encoded(data, tables)


def middle_of(pack: Path | str, entry: IndexEntry) -> int:
    """Returns a position in a pack that is about in the middle of an object's stored bytes."""
    data = Path(pack).read_bytes()[entry.offset :]
    begin = table_size(data)
    assert begin is not None
    stored_size = entry.block.size - begin
    middle = (2 * entry.start + 2 + entry.raw_size) * stored_size // (2 * entry.block.raw_size)
    return entry.offset + begin + middle
