"""Packs and index parts: found again when whole, recognised when not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies as ours
from blocks import ONE_OBJECT_SIZE, block_of, chunk_blocks
from treesnap.core.codec import pack
from treesnap.core.codec.compress import BLOCK_RAW_SIZE_MAX
from treesnap.core.codec.envelope import FileKind, header
from treesnap.core.codec.index import IndexPart, encode_index, encode_unsorted
from treesnap.core.codec.pack import Block, BlockTable, IndexEntry
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, UnsupportedFormat
from treesnap.core.model.ids import object_id

CONTENTS = [b"one", b"", b"three" * 20]
PACK = bytes(16)
BLOCK = Block(PACK, 16, 100, 200)


def blocks_of(contents: list[bytes]) -> tuple[bytes, list[BlockTable]]:
    """Returns a pack that is not sealed, with a block for each content, and its tables."""
    encoded = chunk_blocks(*contents)
    data = header(FileKind.PACK)
    return data + encoded.data, list(encoded.tables_at(PACK, len(data)))


def sealed(contents: list[bytes]) -> bytes:
    data, tables = blocks_of(contents)
    return data + pack.encode_footer([table.block.offset for table in tables], len(data))


def test_blocks_are_found_by_scanning():
    data, tables = blocks_of(CONTENTS)

    assert list(pack.scan_blocks(memoryview(data), PACK)) == tables
    assert list(pack.scan_blocks(memoryview(sealed(CONTENTS)), PACK)) == tables
    assert list(pack.scan_blocks(memoryview(data), PACK, tables[1].block.offset)) == tables[1:]


def test_a_torn_tail_ends_a_scan_at_every_byte():
    data, tables = blocks_of(CONTENTS)

    for size in range(16, len(data)):
        whole = [table for table in tables if table.end <= size]
        assert list(pack.scan_blocks(memoryview(data[:size]), PACK)) == whole


def test_a_flipped_bit_in_a_table_ends_a_scan():
    data, (first, second, _) = blocks_of(CONTENTS)

    for place in range(second.block.offset, second.block.offset + ONE_OBJECT_SIZE):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        assert list(pack.scan_blocks(memoryview(changed), PACK)) == [first]


def test_a_footer_lists_what_a_scan_finds():
    data = sealed(CONTENTS)

    found = pack.decode_footer(memoryview(data), "here")

    assert found == [table.block.offset for table in pack.scan_blocks(memoryview(data), PACK)]


def opened(objects: list[tuple[int, bytes, bytes]]) -> tuple[list[IndexEntry], pack.OpenBlock]:
    """Returns the entries of a block that is made by hand, and the block."""
    data = block_of(objects)
    table = pack.decode_table(data, PACK, 16)
    assert table is not None
    return table.entries, pack.OpenBlock(table, data)


def test_objects_are_checked_against_their_identity():
    one = object_id(ObjectKind.CHUNK, b"one")
    (right, wrong, tree), block = opened([(1, one, b"one"), (1, one, b"two"), (2, one, b"one")])

    assert block.find(right) == b"one"
    for entry in (wrong, tree):
        with pytest.raises(Corrupt, match="identity"):
            block.find(entry)


def test_the_kind_in_the_table_is_that_in_front_of_the_object():
    content = b"a directory, or so it says"
    identity = object_id(ObjectKind.CHUNK, content)
    data = block_of([(1, identity, content)])
    lying = pack.encode_table([(identity, len(content), 2)], 0, len(content) + 1, len(content) + 1)
    data = lying + data[len(lying) :]
    table = pack.decode_table(data, PACK, 16)

    with pytest.raises(Corrupt, match="identity"):
        pack.OpenBlock(table, data).find(table.entries[0])


def test_an_entry_is_compared_with_what_the_block_says():
    objects = [(1, object_id(ObjectKind.CHUNK, content), content) for content in CONTENTS]
    (one, two, _), block = opened(objects)

    assert block.find(one) == b"one"
    for entry in [
        two._replace(start=one.start),
        one._replace(start=1),
        one._replace(raw_size=4),
        one._replace(kind=2),
        one._replace(id=two.id),
        one._replace(block=one.block._replace(offset=17)),
    ]:
        with pytest.raises(Corrupt, match="does not hold object"):
            block.find(entry)


@pytest.mark.parametrize("level", [1, 3])
def test_objects_are_encoded_as_blocks_that_lie_where_it_says(level):
    contents = [b"", b"long" * 1000, *(b"%d" % number for number in range(5000))]
    contents += [bytes([number]) * 100_000 for number in range(5)]
    objects = [(ObjectKind.CHUNK, content) for content in contents]
    objects += [(ObjectKind.TREE, b"tree"), (ObjectKind.CHUNK_LIST, b"list")]
    objects = [(kind, object_id(kind, content), content) for kind, content in objects]

    encoded = pack.encode_objects(objects, level)

    data = header(FileKind.PACK) + encoded.data
    tables = list(encoded.tables_at(PACK, 16))
    assert list(pack.scan_blocks(memoryview(data), PACK)) == tables
    found = {}
    for table in tables:
        block = pack.OpenBlock(table, data[table.block.offset : table.end])
        found |= {entry.id: (entry.kind, block.find(entry)) for entry in table.entries}
    assert found == {identity: (kind, content) for kind, identity, content in objects}
    assert encoded.object_count == len(objects)
    assert {frozenset(entry.kind == 1 for entry in table.entries) for table in tables} == {
        frozenset([True]),
        frozenset([False]),
    }
    assert max(table.block.raw_size for table in tables) <= pack.BLOCK_SIZE_TARGET
    assert max(len(table.entries) for table in tables) == pack.BLOCK_OBJECTS_MAX
    assert sum(table.block.size for table in tables) < sum(map(len, contents)) // 2
    for table in tables:
        assert sum(entry.size_bytes for entry in table.entries) == table.block.size


def test_an_object_larger_than_a_block_is_alone_in_one():
    objects = [
        (ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, content), content)
        for content in (b"a", bytes(pack.BLOCK_SIZE_TARGET + 1), b"b")
    ]

    tables = pack.encode_objects(objects, 1).tables

    assert [len(table.entries) for table in tables] == [1, 1, 1]


def large_block() -> tuple[list[bytes], pack.BlockTable, bytes]:
    """Returns objects that compress by half, and the block that they fill."""
    contents = [Random(number).randbytes(25_000).hex().encode() for number in range(10)]
    objects = [
        (ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, content), content) for content in contents
    ]
    encoded = pack.encode_objects(objects, 1)
    (table,) = encoded.tables
    return contents, table, encoded.data


@pytest.mark.parametrize("seed", range(20))
def test_objects_of_a_block_are_found_in_any_order(seed):
    contents, table, data = large_block()
    block = pack.OpenBlock(table, data)
    order = Random(seed).choices(range(len(contents)), k=15)

    assert [block.find(table.entries[number]) for number in order] == [
        contents[number] for number in order
    ]


def test_an_object_is_found_without_what_follows_it():
    contents, table, data = large_block()
    changed = bytearray(data)
    changed[-20_000] ^= 1
    block = pack.OpenBlock(table, bytes(changed))

    assert block.find(table.entries[2]) == contents[2]  # a check of the whole block would fail

    with pytest.raises(Corrupt):
        block.find(table.entries[-1])
    assert block.find(table.entries[2]) == contents[2]
    assert block.find(table.entries[1]) == contents[1]


def test_a_damaged_frame_gives_what_comes_before_the_damage():
    objects = [
        (ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, content), content)
        for content in (Random(number).randbytes(25_000).hex().encode() for number in range(5))
    ]
    encoded = pack.encode_objects(objects, 1)
    (table,) = encoded.tables
    cut = encoded.data[: len(encoded.data) - 60_000]

    block = pack.OpenBlock(table, cut)

    first, *_, last = table.entries
    assert block.find(first) == objects[0][2]
    assert block.find_unchecked(first) == objects[0][2]
    with pytest.raises(Corrupt, match="cannot be read"):
        block.find(last)
    assert pack.decode_unchecked(b"nonsense" + cut).startswith(b"\x01" + objects[0][2])


@pytest.mark.parametrize(
    "change",
    [
        {"raw_size": 5},
        {"raw_size": BLOCK_RAW_SIZE_MAX + 1, "rows": [(bytes(32), BLOCK_RAW_SIZE_MAX, 1)]},
        {"stored_size": BLOCK_RAW_SIZE_MAX + 1},
        {"rows": []},
        {"rows": [(bytes(32), 3, 0)]},
        {"rows": [(bytes(32), 3, 77)]},
        {"rows": [(bytes(32), 3, int(ObjectKind.STATE))]},
        {"compression": 2},
        {"rows": [(bytes(32), 0, 1)] * (pack.BLOCK_OBJECTS_MAX + 1), "raw_size": 4097},
    ],
    ids=str,
)
def test_a_block_that_claims_what_cannot_be_ends_a_scan(change):
    said = {"rows": [(bytes(32), 3, 1)], "compression": 1, "raw_size": 4, "stored_size": 4} | change
    data = header(FileKind.PACK) + pack.encode_table(**said) + bytes(BLOCK_RAW_SIZE_MAX + 2)

    assert list(pack.scan_blocks(memoryview(data), PACK)) == []


@pytest.mark.parametrize("place", [5, 6], ids=["encryption", "hash"])
def test_a_block_of_what_is_only_reserved_is_not_read(place):
    rows = [(bytes(32), 3, 1)]
    table = bytearray(pack.encode_table(rows, 0, 4, 4))
    table[place] ^= 3
    head = pack.crc32(table[:20])
    table[20:24] = pack.crc32(table[24:], head).to_bytes(4, "little")

    assert pack.decode_table(bytes(table) + bytes(4), PACK, 16) is None


@pytest.mark.parametrize("change", ["none", "offset", "footer", "trailer", "short"])
def test_a_damaged_footer_is_refused(change):
    data = bytearray(sealed(CONTENTS))
    if change == "none":
        data = data[: pack.footer_offset(data[-pack.TRAILER_SIZE :])]
    elif change == "offset":
        data[-16:] = trailer_of(len(data) + 5, b"")
    elif change == "footer":
        data[-20] ^= 1
    elif change == "trailer":
        data[-1] ^= 1
    else:
        data = data[:5]

    with pytest.raises(Corrupt):
        pack.decode_footer(memoryview(bytes(data)), "here")


def trailer_of(offset: int, footer: bytes) -> bytes:
    """Returns a trailer that is right about itself, and may lie about the rest."""
    trailer = pack._TRAILER.pack(pack.TRAILER_MAGIC, offset, pack.crc32(footer))
    return trailer + pack._CHECK.pack(pack.crc32(trailer))


@pytest.mark.parametrize("footer", [b"abc", bytes(4), b"\xff" * 4, (15).to_bytes(4, "little")])
def test_a_footer_with_impossible_offsets_is_refused(footer):
    data, _ = blocks_of(CONTENTS)
    data += footer + trailer_of(len(data), footer)

    with pytest.raises(Corrupt):
        pack.decode_footer(memoryview(data), "here")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(entries=st.lists(ours.index_entries(), max_size=40, unique_by=lambda item: item.id))
def test_an_index_finds_every_entry_and_no_other(entries):
    covered = {entry.pack_id: number for number, entry in enumerate(entries)}

    part = IndexPart(memoryview(encode_index(sorted(entries), covered)), "here")

    part.verify()
    assert list(part) == sorted(entries)
    assert part.covered == covered
    assert all(part.find(entry.id) == entry for entry in entries)
    assert part.find(object_id(ObjectKind.CHUNK, b"another")) is None
    assert list(IndexPart(encode_unsorted(reversed(entries), covered), "here")) == list(part)


def test_ids_that_begin_alike_are_told_apart():
    ids = [ObjectId(bytes(8) + bytes([number]) * 24) for number in range(5)]
    entries = [IndexEntry(identity, BLOCK, 2, 3, 1) for identity in ids[:4]]

    part = IndexPart(memoryview(encode_index(entries, {bytes(16): 9})), "here")

    assert [part.find(identity) for identity in ids] == [*entries, None]


@pytest.mark.parametrize("place", [28 + 24 + 32, 28 + 24 + 32 + 13], ids=["block", "pack"])
def test_an_entry_that_names_no_pack_is_not_found(place):
    entry = IndexEntry(ObjectId(bytes(32)), BLOCK, 2, 3, 1)
    data = bytearray(encode_index([entry], {bytes(16): 9}))
    data[place] = 7

    part = IndexPart(memoryview(bytes(data)), "here")

    assert part.find(entry.id) is None
    assert list(part) == []


def test_an_index_of_another_kind_length_or_version_is_refused():
    data = bytes(encode_index([], {bytes(16): 9}))

    for changed in (data[:-1], data + b"x", data[:20], header(FileKind.PACK) + data[16:]):
        with pytest.raises(Corrupt):
            IndexPart(memoryview(changed), "here")
    with pytest.raises(UnsupportedFormat):
        IndexPart(memoryview(header(FileKind.INDEX, 2) + data[16:]), "here")
    with pytest.raises(Corrupt, match="checksum"):
        IndexPart(memoryview(data[:-1] + bytes([data[-1] ^ 1])), "here").verify()
