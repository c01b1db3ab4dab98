"""Packs and index parts: found again when whole, recognised when not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treesnap.codec import pack
from treesnap.codec.compress import OBJECT_SIZE_MAX
from treesnap.codec.envelope import FileKind, header
from treesnap.codec.index import IndexPart, encode_index
from treesnap.codec.message import pack as packed
from treesnap.codec.pack import IndexEntry
from treesnap.errors import Corrupt, UnsupportedFormat
from treesnap.hashing import checksum, object_id
from treesnap.model import ObjectId, ObjectKind
from treesnap.testing import strategies as ours

CONTENTS = [b"one", b"", b"three" * 20]
PACK = bytes(16)


def records_of(contents: list[bytes]) -> tuple[bytes, list[IndexEntry]]:
    """Returns a pack that is not sealed, and its records."""
    data = header(FileKind.PACK)
    records = []
    for content in contents:
        identity = object_id(ObjectKind.CHUNK, content)
        head = pack.encode_record_header(1, 0, len(content), len(content), identity)
        record = pack.decode_record_header(head, PACK, len(data))
        assert record is not None
        records.append(record)
        data += head + content
    return data, records


def sealed(contents: list[bytes]) -> bytes:
    data, records = records_of(contents)
    return data + pack.encode_footer(records, len(data))


def test_records_are_found_by_scanning():
    data, records = records_of(CONTENTS)

    assert list(pack.scan_records(memoryview(data), PACK)) == records
    assert list(pack.scan_records(memoryview(sealed(CONTENTS)), PACK)) == records
    assert list(pack.scan_records(memoryview(data), PACK, records[1].offset)) == records[1:]


def test_a_torn_tail_ends_a_scan_at_every_byte():
    data, records = records_of(CONTENTS)

    for size in range(16, len(data)):
        whole = [record for record in records if record.end <= size]
        assert list(pack.scan_records(memoryview(data[:size]), PACK)) == whole


def test_a_footer_lists_what_a_scan_finds():
    data = sealed(CONTENTS)

    found = pack.decode_footer(memoryview(data), PACK, "here")

    assert found == list(pack.scan_records(memoryview(data), PACK))


def test_objects_are_checked_against_their_identity():
    _, (one, _, three) = records_of(CONTENTS)

    def decoded(entry: IndexEntry, stored: bytes) -> bytes:
        sizes = entry.raw_size, entry.stored_size
        head = pack.encode_record_header(entry.kind, 0, *sizes, entry.id)
        return pack.decode_object(entry, head + stored, "here")

    assert decoded(one, b"one") == b"one"
    with pytest.raises(Corrupt, match="identity"):
        decoded(one, b"two")
    with pytest.raises(Corrupt, match="identity"):
        decoded(one._replace(kind=2), b"one")
    with pytest.raises(Corrupt, match="unknown kind"):
        decoded(one._replace(kind=77), b"one")
    with pytest.raises(Corrupt, match="claims"):
        decoded(three._replace(raw_size=99), CONTENTS[2])


def test_a_record_is_compared_with_what_the_index_says():
    data, (one, two, _) = records_of(CONTENTS)
    record = data[one.offset : one.end]

    assert pack.decode_object(one, record, "here") == b"one"
    for entry, found in [
        (two, record),
        (one._replace(raw_size=4), record),
        (one, record[:-1]),
        (one, record + b"x"),
        (one, b""),
    ]:
        with pytest.raises(Corrupt, match="does not hold object"):
            pack.decode_object(entry, found, "here")


def test_objects_are_encoded_as_records_that_lie_where_it_says():
    objects = [
        (ObjectKind.CHUNK, object_id(ObjectKind.CHUNK, content), content)
        for content in (*CONTENTS, b"long" * 1000)
    ]

    encoded = pack.encode_objects(objects)

    data = header(FileKind.PACK) + encoded.data
    entries = list(encoded.entries_at(PACK, 16))
    assert list(pack.scan_records(memoryview(data), PACK)) == entries
    assert [
        pack.decode_object(entry, data[entry.offset : entry.end], "here") for entry in entries
    ] == [content for _, _, content in objects]
    assert entries[-1].stored_size < entries[-1].raw_size


@pytest.mark.parametrize("field", ["raw_size", "stored_size"])
def test_a_record_that_claims_too_much_ends_a_scan(field):
    sizes = {"raw_size": 3, "stored_size": 3, field: OBJECT_SIZE_MAX + 1}
    head = pack.encode_record_header(1, 1, sizes["raw_size"], sizes["stored_size"], bytes(32))
    data = header(FileKind.PACK) + head + bytes(OBJECT_SIZE_MAX + 2)

    assert list(pack.scan_records(memoryview(data), PACK)) == []


@pytest.mark.parametrize("change", ["none", "offset", "table", "head", "short"])
def test_a_damaged_footer_is_refused(change):
    data = bytearray(sealed(CONTENTS))
    if change == "none":
        data = data[: pack.footer_offset(data[-12:])]
    elif change == "offset":
        trailer = pack._TRAILER.pack(pack.TRAILER_MAGIC, len(data) + 5)
        data[-12:] = trailer + pack._CHECK.pack(pack.crc32(trailer))
    elif change == "table":
        data[-20] ^= 1
    elif change == "head":
        data[pack.footer_offset(data[-12:]) or 0] ^= 1
    else:
        data = data[:5]

    with pytest.raises(Corrupt):
        pack.decode_footer(memoryview(bytes(data)), PACK, "here")


@pytest.mark.parametrize(
    "rows",
    [
        7,
        {},
        (7,),
        ((1, 16, 3, 3),),
        ((1, 16, 3, 3, b"short"),),
        ((1, 16, 3, 3, "t" * 32),),
        ((0, 16, 3, 3, bytes(32)),),
        ((255, 16, 3, 3, bytes(32)),),
        ((1, 15, 3, 3, bytes(32)),),
        ((1, 16, -3, 3, bytes(32)),),
        ((1, True, 3, 3, bytes(32)),),
        ((1, 16, OBJECT_SIZE_MAX + 1, 3, bytes(32)),),
        ((1, 1 << 40, 3, 3, bytes(32)),),
        ((1, 16, 3, 1 << 20, bytes(32)),),
    ],
    ids=repr,
)
def test_a_footer_with_impossible_rows_is_refused(rows):
    data, _ = records_of(CONTENTS)
    table = packed(rows)
    head = pack.encode_record_header(255, 0, len(table), len(table), checksum(table, 32))
    trailer = pack._TRAILER.pack(pack.TRAILER_MAGIC, len(data))
    data += head + table + trailer + pack._CHECK.pack(pack.crc32(trailer))

    with pytest.raises(Corrupt):
        pack.decode_footer(memoryview(data), PACK, "here")


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


def test_ids_that_begin_alike_are_told_apart():
    ids = [ObjectId(bytes(8) + bytes([number]) * 24) for number in range(5)]
    entries = [IndexEntry(identity, bytes(16), 1, 2, 3, 1) for identity in ids[:4]]

    part = IndexPart(memoryview(encode_index(entries, {bytes(16): 9})), "here")

    assert [part.find(identity) for identity in ids] == [*entries, None]


def test_an_entry_that_names_no_pack_is_not_found():
    entry = IndexEntry(ObjectId(bytes(32)), bytes(16), 1, 2, 3, 1)
    data = bytearray(encode_index([entry], {bytes(16): 9}))
    data[24 + 24 + 8 + 24] = 7

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
