"""Index parts: where objects are, sorted and in columns, read in place.

    header | count u32 | pack count u32 | block count u32 | packs: 16-byte id, covered u64
    | first 8 bytes of each id, u64[] | other 24 bytes of each id
    | place of each: block u32, start u32, size u32, kind u8
    | blocks: pack u32, offset u32, size u32, raw size u32
    | BLAKE3 of everything before

``covered`` says how many bytes of a pack the part knows of, itself and the parts
before it; what lies behind is found by scanning the pack. The first id bytes
are big-endian numbers, so that their order is the order of the ids.

A part is a hint and is never trusted: a reader that finds an object through it checks
the block in the pack. Opening costs nothing but the mapping; a lookup is one
bisection.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from operator import lt

from treesnap.core.codec.envelope import CHECKSUM_SIZE, HEADER_SIZE, FileKind, check_header, header
from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import ID_SIZE, checksum

_COUNTS = struct.Struct("<III")
_PACK = struct.Struct("<16sQ")
_PLACE = struct.Struct("<IIIB")
_BLOCK = struct.Struct("<IIII")
_FIRST = struct.Struct(">Q")
_BATCH = 4096
"""Entries that are encoded together."""
_TABLE_START = HEADER_SIZE + _COUNTS.size


def encode_index(entries: Iterable[IndexEntry], covered: Mapping[bytes, int]) -> memoryview:
    """Returns the bytes of an index part.

    The entries come in the order of their ids, and every entry's pack is in
    ``covered``. Memory is that of the part; entries are not kept.
    """
    blocks: dict[Block, int] = {}
    return _of_records(_records(entries, blocks), blocks, covered)


def encode_unsorted(entries: Iterable[IndexEntry], covered: Mapping[bytes, int]) -> memoryview:
    """Returns the same for entries in any order. Needs 90 bytes more for each."""
    blocks: dict[Block, int] = {}
    return _of_records(sorted(_records(entries, blocks)), blocks, covered)


def _records(entries: Iterable[IndexEntry], blocks: dict[Block, int]) -> Iterator[bytes]:
    """Yields the id and the place of each entry, and numbers the blocks."""
    for identity, block, start, size, kind in entries:
        number = blocks.setdefault(block, len(blocks))
        yield identity + _PLACE.pack(number, start, size, kind)


def _of_records(
    records: Iterable[bytes], blocks: Mapping[Block, int], covered: Mapping[bytes, int]
) -> memoryview:
    """Returns the part of sorted records; the blocks are complete when they come to an end."""
    first, rest, places = list[bytes](), list[bytes](), list[bytes]()
    count = 0
    records = iter(records)
    while batch := list(islice(records, _BATCH)):
        count += len(batch)
        first.append(b"".join([record[7::-1] for record in batch]))
        rest.append(b"".join([record[8:ID_SIZE] for record in batch]))
        places.append(b"".join([record[ID_SIZE:] for record in batch]))
    packs = sorted(covered)
    numbers = {pack_id: number for number, pack_id in enumerate(packs)}
    body = bytearray(header(FileKind.INDEX) + _COUNTS.pack(count, len(packs), len(blocks)))
    for pack_id in packs:
        body += _PACK.pack(pack_id, covered[pack_id])
    for column in (first, rest, places):
        column.reverse()
        while column:  # so that no column is there twice
            body += column.pop()
    for pack_id, *fields in blocks:
        body += _BLOCK.pack(numbers[pack_id], *fields)
    body += checksum(memoryview(body), CHECKSUM_SIZE)
    return memoryview(body)


class IndexPart:
    """Reads one part in place. Raises Corrupt when its sizes do not fit together."""

    def __init__(self, data: memoryview, where: str) -> None:
        check_header(data, FileKind.INDEX, where)
        self._data = data
        self.where = where
        if len(data) < _TABLE_START + CHECKSUM_SIZE:
            raise Corrupt(f"Index {where} is cut short", path=where)
        self.count: int
        self.count, pack_count, self._block_count = _COUNTS.unpack_from(data, HEADER_SIZE)
        first_start = _TABLE_START + pack_count * _PACK.size
        self._rest_start = first_start + 8 * self.count
        self._place_start = self._rest_start + 24 * self.count
        self._block_start = self._place_start + _PLACE.size * self.count
        self._blocks: dict[int, Block | None] = {}
        end = self._block_start + _BLOCK.size * self._block_count
        if end + CHECKSUM_SIZE != len(data):
            raise Corrupt(f"Index {where} does not have the length it states", path=where)
        self.covered: dict[bytes, int] = {}
        self._packs: list[bytes] = []
        for number in range(pack_count):
            pack_id, size = _PACK.unpack_from(data, _TABLE_START + number * _PACK.size)
            self._packs.append(pack_id)
            self.covered[pack_id] = size
        self._first = self._numbers(data[first_start : self._rest_start])

    @staticmethod
    def _numbers(column: memoryview) -> memoryview:
        if struct.pack("<H", 1) == struct.pack("=H", 1):
            return column.cast("Q")
        swapped = struct.unpack(f"<{len(column) // 8}Q", column)
        return memoryview(struct.pack(f"={len(swapped)}Q", *swapped)).cast("Q")

    def find(self, object_id: ObjectId) -> IndexEntry | None:
        """Returns one entry of an object, or None."""
        position = self.position(object_id)
        return self._entry(object_id, position) if position is not None else None

    def find_all(self, object_id: ObjectId) -> Iterator[IndexEntry]:
        """Yields the entries of an object: more than one when several packs hold it."""
        position = self.position(object_id)
        while position is not None:
            entry = self._entry(object_id, position)
            if entry is not None:
                yield entry
            position = self.position(object_id, position + 1)

    def position(self, object_id: ObjectId, start: int = 0) -> int | None:
        """Returns the first position from ``start`` on at which an object stands, or None."""
        (prefix,) = _FIRST.unpack_from(object_id)
        first = self._first
        position = bisect_left(first, prefix, start)
        while position < self.count and first[position] == prefix:
            rest_at = self._rest_start + 24 * position
            if self._data[rest_at : rest_at + 24] == object_id[8:]:
                return position
            position += 1
        return None

    def is_in_order(self) -> bool:
        """Tells whether the ids rise, as all searches take for granted; reads all of them."""
        first = self._first.tolist()
        if all(map(lt, first, islice(first, 1, None))):  # of different objects in one order
            return True
        start, data = self._rest_start, self._data
        rest = (bytes(data[at : at + 24]) for at in range(start, self._place_start, 24))
        return all(one <= other for one, other in pairwise(zip(first, rest, strict=True)))

    def _block(self, number: int) -> Block | None:
        """Returns the block with a number, or None where there is none or it names no pack."""
        if number not in self._blocks:
            block = None
            if number < self._block_count:
                pack, *fields = _BLOCK.unpack_from(
                    self._data, self._block_start + _BLOCK.size * number
                )
                if pack < len(self._packs):
                    block = Block(self._packs[pack], *fields)
            self._blocks[number] = block
        return self._blocks[number]

    def _entry(self, object_id: ObjectId, position: int) -> IndexEntry | None:
        number, start, size, kind = _PLACE.unpack_from(
            self._data, self._place_start + _PLACE.size * position
        )
        block = self._block(number)
        return IndexEntry(object_id, block, start, size, kind) if block is not None else None

    def at(self, position: int) -> IndexEntry | None:
        """Returns the entry at a position, or None for one that names no pack."""
        start = self._rest_start + 24 * position
        object_id = _FIRST.pack(self._first[position]) + self._data[start : start + 24]
        return self._entry(ObjectId(object_id), position)

    def __iter__(self) -> Iterator[IndexEntry]:
        """Yields all entries in the order of their ids."""
        places = _PLACE.iter_unpack(self._data[self._place_start : self._block_start])
        rest = self._rest_start
        for first, (number, start, size, kind) in zip(self._first, places, strict=True):
            block = self._block(number)
            if block is not None:
                object_id = ObjectId(_FIRST.pack(first) + self._data[rest : rest + 24])
                yield IndexEntry(object_id, block, start, size, kind)
            rest += 24

    def verify(self) -> None:
        """Raises Corrupt unless the part matches its checksum. Reads all of it."""
        body = self._data[:-CHECKSUM_SIZE]
        if checksum(body, CHECKSUM_SIZE) != bytes(self._data[-CHECKSUM_SIZE:]):
            raise Corrupt(f"Index {self.where} does not match its checksum", path=self.where)
