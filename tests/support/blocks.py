"""Blocks made by hand, and where an object lies in the block of a pack."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from treesnap.core.codec.compress import Compression
from treesnap.core.codec.pack import (
    HEAD_SIZE,
    BlockTable,
    Encoded,
    IndexEntry,
    OpenBlock,
    decode_table,
    encode_table,
    table_size,
)
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import object_id

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


def one_block(*chunks: bytes) -> Encoded:
    """Returns one block of all chunks, not compressed."""
    block = block_of(
        [(ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, chunk), chunk) for chunk in chunks]
    )
    table = decode_table(block, b"", 0)
    assert table is not None
    return Encoded(block, [table])


def damaging(pack: Path | str, entry: IndexEntry, mask: int = 0xFF) -> int:
    """Returns a position in a pack where flipping some bits damages an object.

    It is one that damages few other objects of the block, or none.
    """
    data = Path(pack).read_bytes()[entry.offset : entry.offset + entry.block.size]
    table = decode_table(data, entry.pack_id, entry.offset)
    begin = table_size(data)
    assert table is not None
    assert begin is not None
    found: dict[int, int] = {}
    step = max(1, (len(data) - begin) // 200)
    for position in range(begin, len(data), step):
        changed = bytearray(data)
        changed[position] ^= mask
        block = OpenBlock(table, bytes(changed))
        lost = [each for each in table.entries if not _is_right(block, each)]
        if entry in lost:
            found[position] = len(lost)
            if len(lost) == 1:
                break
    return entry.offset + min(found, key=found.__getitem__)


def _is_right(block: OpenBlock, entry: IndexEntry) -> bool:
    try:
        block.find(entry)
    except Corrupt:
        return False
    return True
