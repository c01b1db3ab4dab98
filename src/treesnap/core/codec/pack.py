"""Packs: append-only files of blocks, each of which holds objects in one compressed frame.

    +--------+-------+-------+-- ... --+--------+---------+
    | header | block | block |         | footer | trailer |
    +--------+-------+-------+-- ... --+--------+---------+

A block is a 24-byte head, a table with a 37-byte row for each object, and the stored bytes:

    head   magic "TSBK" | compression u8 | encryption u8 | hash u8 | 0 | count u32
           | raw size u32 | stored size u32 | CRC-32 of the 20 bytes before and the table
    row    id 32 bytes | size u32 | kind u8

Before compression, the bytes of a block are a kind byte and the content for each object, in the
order of the table: an id is the hash of one slice. Encryption is 0 and hash 1, for BLAKE3-256;
other numbers are reserved.

The footer is the u32 offset of each block. The 16-byte trailer is ``"TSFT" | footer offset
u32 | CRC-32 of the footer | CRC-32 of the 12 bytes before``. A pack without a trailer is still
being appended to, or its writer died: a block is there when its head and table are whole and its
bytes lie inside the file. A reader that relies on bytes that were never synced checks them
against their ids first.

This is the one place that knows how an object lies in a pack. Not here: files, locks, lookups
(store).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from zlib import crc32

from treesnap.core.codec.compress import (
    BLOCK_RAW_SIZE_MAX,
    LEVEL_CAPTURE,
    Compression,
    compress,
    decompress,
    decompress_damaged,
    decompress_start,
)
from treesnap.core.codec.envelope import HASH_BLAKE3, HEADER_SIZE, FileKind, header
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import ID_SIZE, prefixed_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Protocol, Self

MAGIC = b"TSBK"
TRAILER_MAGIC = b"TSFT"
PACK_ID_SIZE = 16
PACK_SIZE_TARGET = 32 << 20
"""A pack that has reached this size is sealed."""
PACK_SIZE_MAX = 1 << 30
"""No valid pack is larger."""
BLOCK_SIZE_TARGET = 512 << 10
"""Objects are put into one block up to this size before compression; a larger one is alone."""
BLOCK_OBJECTS_MAX = 4096

_HEAD = struct.Struct("<4sBBBxIII")
_CHECK = struct.Struct("<I")
_ROW = struct.Struct("<32sIB")
_ROW_SIZE = struct.Struct("<32xIx")
"""Of a row only the size."""
_TRAILER = struct.Struct("<4sII")
_OFFSET = struct.Struct("<I")
HEAD_SIZE = _HEAD.size + _CHECK.size
ROW_SIZE = _ROW.size
TRAILER_SIZE = _TRAILER.size + _CHECK.size
TABLE_SIZE_MAX = HEAD_SIZE + BLOCK_OBJECTS_MAX * ROW_SIZE
"""The most that the head and the table of a block take."""
KINDS = frozenset((ObjectKind.CHUNK, ObjectKind.TREE, ObjectKind.CHUNK_LIST, ObjectKind.SNAPSHOT))
"""Those of snapshots are in packs of remotes alone."""
_COMPRESSIONS = frozenset(Compression)
_KIND_BYTES = {kind: bytes([kind]) for kind in ObjectKind}


class Sliced(Protocol):
    """Random access to a pack's bytes; a read may return less than requested."""

    def __len__(self) -> int:
        """How many bytes there are."""

    def __getitem__(self, part: slice, /) -> bytes | memoryview:
        """Returns a part."""


class Block(NamedTuple):
    """The place of a block."""

    pack_id: bytes
    offset: int
    """Position of its first byte in the pack."""
    size: int
    """All its bytes in the pack."""
    raw_size: int
    """Bytes of its objects before compression, with their kind bytes."""


class IndexEntry(NamedTuple):
    """One object and its place: what a block and an index say of it."""

    id: ObjectId
    block: Block
    start: int
    """Position of its kind byte in the block before compression."""
    raw_size: int
    kind: int

    @property
    def pack_id(self) -> bytes:
        """The pack that it lies in."""
        return self.block.pack_id

    @property
    def offset(self) -> int:
        """Position of its block in the pack."""
        return self.block.offset

    @property
    def size_bytes(self) -> int:
        """Its share of the bytes that its block takes; the shares add up to the block."""
        _, _, size, raw_size = self.block
        end = self.start + 1 + self.raw_size
        return size * end // raw_size - size * self.start // raw_size


_NEW_ENTRY = partial(tuple.__new__, IndexEntry)
"""Makes an entry of as many fields, without a call of Python code for each object."""


class BlockTable(NamedTuple):
    """What the head and the table of a block say."""

    block: Block
    compression: int
    rows: bytes
    """The rows as they are stored: a fifth of the memory of the entries that they stand for."""

    @property
    def object_count(self) -> int:
        """How many objects the block holds."""
        return len(self.rows) // ROW_SIZE

    @property
    def is_content(self) -> bool:
        """Whether all of its objects are chunks, which are any bytes."""
        return not self.rows[ROW_SIZE - 1 :: ROW_SIZE].strip(_KIND_BYTES[ObjectKind.CHUNK])

    @property
    def ids(self) -> list[bytes]:
        """The ids of the objects, in order; made anew each time."""
        rows = self.rows
        return [rows[start : start + ID_SIZE] for start in range(0, len(rows), ROW_SIZE)]

    @property
    def entries(self) -> list[IndexEntry]:
        """The objects of the block, in order; made anew each time."""
        block = self.block
        entries: list[IndexEntry] = []
        start = 0
        for identity, size, kind in _ROW.iter_unpack(self.rows):
            entries.append(_NEW_ENTRY((identity, block, start, size, kind)))
            start += 1 + size
        return entries

    def entry(self, identity: ObjectId) -> IndexEntry:
        """Returns one of the objects of the block."""
        return next(entry for entry in self.entries if entry.id == identity)

    @property
    def end(self) -> int:
        """Position after the block."""
        return self.block.offset + self.block.size


def entries_of(tables: Iterable[BlockTable]) -> Iterator[IndexEntry]:
    """Yields the objects of blocks, in order."""
    for table in tables:
        yield from table.entries


class OpenBlock:
    """A block of which as much is decompressed as was asked for.

    The first object that is asked for has the block decompressed up to its end: of a block of
    512 KiB, 0.25 ms in place of 0.4 on average. What begins with the first one of all, as a reader
    of everything does, and what asks for a second one, gets the whole block. Objects are
    verified; what is wrong with the rest of a block is told when it is asked for.
    """

    __slots__ = ("_compression", "_is_whole", "_problem", "_raw", "_raw_size", "_stored", "entries")

    def __init__(self, table: BlockTable, data: bytes) -> None:
        """Takes all bytes of a block, of which the table was read. Decompresses nothing."""
        self.entries: dict[int, IndexEntry] = {entry.start: entry for entry in table.entries}
        """Its objects, by their starts."""
        self._compression = table.compression
        self._raw_size = table.block.raw_size
        self._stored = data[HEAD_SIZE + len(table.rows) : table.block.size]
        self._raw = b""
        self._is_whole = False
        self._problem = ""

    def find(self, entry: IndexEntry) -> bytes:
        """Returns an object's bytes, verified against its id; raises Corrupt."""
        if self.entries.get(entry.start) != entry:
            raise Corrupt(
                f"Pack {entry.pack_id.hex()} does not hold object {entry.id.hex()} "
                f"at {entry.offset}"
            )
        end = entry.start + 1 + entry.raw_size
        if len(self._raw) < end:
            self._decompress(end if entry.start and not self._raw else self._raw_size)
        if len(self._raw) < end:
            raise Corrupt(f"Object {entry.id.hex()} cannot be read: {self._problem}")
        part = memoryview(self._raw)[entry.start : end]
        if part[0] != entry.kind or prefixed_id(part) != entry.id:
            raise Corrupt(f"Object {entry.id.hex()} does not match its identity")
        return bytes(part[1:])

    def find_unchecked(self, entry: IndexEntry) -> bytes:
        """Returns the bytes at an object's place, as far as there are any."""
        self._decompress(self._raw_size)
        return self._raw[entry.start + 1 : entry.start + 1 + entry.raw_size]

    def _decompress(self, size: int) -> None:
        """Decompresses the first ``size`` bytes, of a damaged block those before the damage."""
        if self._is_whole:
            return
        try:
            if size < self._raw_size:
                self._raw = decompress_start(self._compression, self._stored, self._raw_size, size)
                return
            self._raw = decompress(self._compression, self._stored, self._raw_size)
        except Corrupt as error:
            self._raw = decompress_damaged(self._compression, self._stored, self._raw_size)
            self._problem = error.message
        self._is_whole = True
        self._stored = b""


def verified_objects(table: BlockTable, data: bytes) -> memoryview:
    """Returns the objects of a block, each after its kind byte, one after the other.

    Raises Corrupt unless all of them are whole. Takes half of what :class:`OpenBlock` takes for
    each, which a copy of a whole store is made of.
    """
    stored = data[HEAD_SIZE + len(table.rows) : table.block.size]
    objects = memoryview(decompress(table.compression, stored, table.block.raw_size))
    start = 0
    for identity, size, kind in _ROW.iter_unpack(table.rows):
        end = start + 1 + size
        part = objects[start:end]
        if part[0] != kind or prefixed_id(part) != identity:
            raise Corrupt(f"Object {identity.hex()} does not match its identity")
        start = end
    return objects


class Encoded(NamedTuple):
    """Blocks that can be appended to any pack, one after the other."""

    data: bytes
    tables: list[BlockTable]
    """What they hold, as if they stood at the start of a pack without an id."""

    @classmethod
    def of_block(cls, table: BlockTable, data: bytes) -> Self:
        """Returns a block as it is stored, which needs no compression."""
        return cls(data, [table._replace(block=table.block._replace(pack_id=b"", offset=0))])

    @property
    def object_count(self) -> int:
        """How many objects they hold."""
        return sum(table.object_count for table in self.tables)

    @property
    def without_content(self) -> list[Encoded]:
        """Those of the blocks that hold trees and chunk lists, each alone."""
        return [
            Encoded.of_block(table, self.data[table.block.offset : table.end])
            for table in self.tables
            if not table.is_content
        ]

    def tables_at(self, pack_id: bytes, offset: int) -> Iterator[BlockTable]:
        """Yields the tables of the blocks when they begin at an offset."""
        for (_, start, size, raw_size), compression, rows in self.tables:
            yield BlockTable(Block(pack_id, offset + start, size, raw_size), compression, rows)


def encode_objects(
    objects: Sequence[tuple[ObjectKind, ObjectId, bytes]], level: int = LEVEL_CAPTURE
) -> Encoded:
    """Returns the blocks of objects, file content apart from everything else.

    So a reader of trees decompresses nothing else. Most of the time is spent without the GIL.
    """
    pieces: list[bytes] = []
    tables: list[BlockTable] = []
    offset = 0
    for group in _groups(objects):
        each = b"".join([part for kind, _, data in group for part in (_KIND_BYTES[kind], data)])
        compression, stored = compress(each, level)
        rows = [(identity, len(data), int(kind)) for kind, identity, data in group]
        head = encode_table(rows, compression, len(each), len(stored))
        pieces += head, stored
        block = Block(b"", offset, len(head) + len(stored), len(each))
        tables.append(BlockTable(block, compression, head[HEAD_SIZE:]))
        offset += block.size
    return Encoded(b"".join(pieces), tables)


def _groups(
    objects: Iterable[tuple[ObjectKind, ObjectId, bytes]],
) -> Iterator[list[tuple[ObjectKind, ObjectId, bytes]]]:
    """Yields the objects of each block."""
    open_groups: dict[bool, list[tuple[ObjectKind, ObjectId, bytes]]] = {}
    sizes = {True: 0, False: 0}
    for item in objects:
        is_content = item[0] is ObjectKind.CHUNK
        size = 1 + len(item[2])
        group = open_groups.setdefault(is_content, [])
        is_full = sizes[is_content] + size > BLOCK_SIZE_TARGET or len(group) == BLOCK_OBJECTS_MAX
        if group and is_full:
            yield group
            group = open_groups[is_content] = []
            sizes[is_content] = 0
        group.append(item)
        sizes[is_content] += size
    yield from open_groups.values()


def encode_table(
    rows: Sequence[tuple[bytes, int, int]], compression: int, raw_size: int, stored_size: int
) -> bytes:
    """Returns the head and the table of a block; a row is the id, size and kind of an object."""
    head = _HEAD.pack(MAGIC, compression, 0, HASH_BLAKE3, len(rows), raw_size, stored_size)
    table = b"".join([_ROW.pack(*row) for row in rows])
    return head + _CHECK.pack(crc32(table, crc32(head))) + table


def filler(size: int) -> bytes | None:
    """Returns the first bytes of a block of a size of which all that follows is zeros.

    It is a block like any other, with one chunk of zeros, so it may take the place of a block that
    nothing needs: what follows can be a hole then. None for a size that is too small for one.
    """
    stored_size = size - HEAD_SIZE - ROW_SIZE
    if stored_size < 2:
        return None
    kind = _KIND_BYTES[ObjectKind.CHUNK]
    row = prefixed_id(kind + bytes(stored_size - 1)), stored_size - 1, int(ObjectKind.CHUNK)
    return encode_table([row], Compression.NONE, stored_size, stored_size) + kind


def table_size(head: bytes | memoryview) -> int | None:
    """Returns how many bytes the head and the table of a block take, or None for no head."""
    if len(head) < HEAD_SIZE:
        return None
    magic, _, _, _, count, _, _ = _HEAD.unpack_from(head)
    if magic != MAGIC or not 0 < count <= BLOCK_OBJECTS_MAX:
        return None
    return HEAD_SIZE + int(count) * ROW_SIZE


def decode_table(data: bytes | memoryview, pack_id: bytes, offset: int) -> BlockTable | None:
    """Returns what the block says that begins with ``data``, or None where that is damaged.

    ``offset`` is where ``data`` begins in the pack.
    """
    size = table_size(data)
    if size is None or len(data) < size:
        return None
    _, compression, encryption, hash_number, count, raw_size, stored_size = _HEAD.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _HEAD.size)
    if check != crc32(data[HEAD_SIZE:size], crc32(data[: _HEAD.size])):
        return None
    rows = bytes(data[HEAD_SIZE:size])
    if (
        compression not in _COMPRESSIONS
        or encryption != 0
        or hash_number != HASH_BLAKE3
        or raw_size > BLOCK_RAW_SIZE_MAX
        or stored_size > BLOCK_RAW_SIZE_MAX
        or raw_size != count + sum([row[0] for row in _ROW_SIZE.iter_unpack(rows)])
        or not KINDS.issuperset(rows[ROW_SIZE - 1 :: ROW_SIZE])
    ):
        return None
    return BlockTable(Block(pack_id, offset, size + stored_size, raw_size), compression, rows)


def decode_unchecked(data: bytes) -> bytes:
    """Returns the bytes before compression of a block whose table is damaged, if there are any."""
    return decompress_damaged(Compression.ZSTD, data, BLOCK_RAW_SIZE_MAX) or data


def scan_blocks(data: Sliced, pack_id: bytes, start: int = HEADER_SIZE) -> Iterator[BlockTable]:
    """Yields the blocks of a pack from ``start`` on, up to the first that is not whole.

    Costs the head and the table of each; content is not read.
    """
    offset, size = start, len(data)
    while True:
        head_size = table_size(data[offset : offset + HEAD_SIZE])
        if head_size is None:
            return
        table = decode_table(data[offset : offset + head_size], pack_id, offset)
        if table is None or table.end > size:
            return
        yield table
        offset = table.end


def encode_footer(offsets: Sequence[int], end: int) -> bytes:
    """Returns the footer and trailer that seal a pack of blocks which ends at ``end``."""
    footer = struct.pack(f"<{len(offsets)}I", *offsets)
    trailer = _TRAILER.pack(TRAILER_MAGIC, end, crc32(footer))
    return footer + trailer + _CHECK.pack(crc32(trailer))


def taken(blocks: list[Encoded]) -> Iterator[Encoded]:
    """Yields blocks, and takes them out of the list: their memory is needed for their pack."""
    blocks.reverse()
    while blocks:
        yield blocks.pop()


def encode_pack(blocks: Iterable[Encoded]) -> tuple[bytes, list[BlockTable]]:
    """Returns the bytes of a sealed pack, and its blocks as if the pack had no id.

    No block is needed any more when the next one is taken.
    """
    content, tables, end = BytesIO(), list[BlockTable](), HEADER_SIZE
    content.write(header(FileKind.PACK))
    for encoded in blocks:
        content.write(encoded.data)
        tables += encoded.tables_at(b"", end)
        end += len(encoded.data)
    content.write(encode_footer([table.block.offset for table in tables], end))
    return content.getvalue(), tables


def footer_offset(trailer: bytes | memoryview) -> int | None:
    """Returns where the footer begins, from the end of a pack; None for an unsealed pack."""
    if len(trailer) != TRAILER_SIZE:
        return None
    magic, offset, _ = _TRAILER.unpack_from(trailer)
    (check,) = _CHECK.unpack_from(trailer, _TRAILER.size)
    if magic != TRAILER_MAGIC or check != crc32(trailer[: _TRAILER.size]):
        return None
    return int(offset)


def decode_footer(data: Sliced, where: str) -> list[int]:
    """Returns the offsets of blocks that the footer of a sealed pack lists; raises Corrupt."""
    trailer = data[-TRAILER_SIZE:]
    offset = footer_offset(trailer)
    end = len(data) - TRAILER_SIZE
    if offset is None or not HEADER_SIZE <= offset <= end:
        raise Corrupt(f"Pack {where} has no footer", path=where)
    footer = data[offset:end]
    _, _, check = _TRAILER.unpack_from(trailer)
    if crc32(footer) != check or len(footer) % _OFFSET.size:
        raise Corrupt(f"Pack {where} has a damaged footer", path=where)
    offsets = [row[0] for row in _OFFSET.iter_unpack(footer)]
    if not all(HEADER_SIZE <= each < offset for each in offsets):
        raise Corrupt(f"Pack {where} has a footer with an impossible offset", path=where)
    return offsets
