"""Few bytes never make much of anything: claims are checked before memory is taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the library has no types
import pytest
import zstandard

from treesnap.core.codec import (
    chunklist,
    compress,
    journal,
    pack,
    root_files,
    snapshot,
    statcache,
    tree,
)
from treesnap.core.codec.changes import unseal_changed
from treesnap.core.codec.compress import (
    BLOCK_RAW_SIZE_MAX,
    OBJECT_SIZE_MAX,
    Compression,
    decompress,
    decompress_damaged,
)
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.index import IndexPart
from treesnap.core.codec.message import Fields, unpack
from treesnap.core.model.entries import FileContent, ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import object_id
from treesnap.core.worktree.scan.hard_links import load_groups

MEBIBYTE = 1 << 20

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "tree": tree.decode_tree,
    "attributes": tree.decode_xattrs,
    "chunk list": chunklist.decode_list,
    "snapshot": snapshot.decode_snapshot,
    "snapshot state": snapshot.decode_state,
    "history": root_files.HISTORY.decode,
    "journal": journal.decode_journal,
    "name table": root_files.decode_names,
    "gaps": root_files.GAPS.decode,
    "row": lambda data: statcache.decode_row(memoryview(data)),
    "observations": statcache.decode_observations,
    "hard links": lambda data: links(data),  # noqa: PLW0108 - it is defined below
    "change": lambda data: changed(seal(FileKind.PLAN, b"\x80"), data),
    "changed record": lambda data: changed(seal(FileKind.PLAN, data), CHANGES_NOTHING),
}

CHANGES_NOTHING = msgpack.packb({"version": 1, "rows": ()})

BOMBS = {
    "nested arrays that claim 4 million items": b"\xdd\x00\x40\x00\x00" * 500,
    "nested arrays that claim 8192 items": b"\xdc\x20\x00" * 500,
    "nested maps that claim 8192 items": b"\xde\x20\x00\xc4\x01a" * 500,
    "an array that claims 4 billion items": b"\xdd\xff\xff\xff\xff",
    "a map that claims 4 billion items": b"\xdf\xff\xff\xff\xff",
    "a byte string that claims 4 GiB": b"\xc6\xff\xff\xff\xff",
    "a text that claims 4 GiB": b"\xdb\xff\xff\xff\xff",
    "an extension that claims 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "a hundred thousand nested arrays": b"\x91" * 100_000,
    "a hundred thousand nested maps": b"\x81\xc4\x01a" * 100_000,
}


def changed(record: bytes, change: bytes) -> Any:
    data = record + seal(FileKind.CHANGE, change)
    return unseal_changed(data, FileKind.PLAN, "here")


def links(data: bytes) -> Any:
    return load_groups(FileContent((0, bytes(32), max(1, len(data)))), lambda kind, identity: data)


def peak_of(action: Callable[[], Any]) -> int:
    """Returns the most memory that an action took which raises Corrupt or finds nothing."""
    tracemalloc.start()
    try:
        with suppress(Corrupt):
            assert not action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_claim_takes_no_memory(decoder, bomb):
    assert peak_of(lambda: DECODERS[decoder](BOMBS[bomb])) < 40 * MEBIBYTE


@pytest.mark.parametrize("decoder", ["tree", "attributes", "chunk list", "row", "observations"])
def test_maps_are_refused_where_none_can_be(decoder):
    row = msgpack.packb([{}] * 8000)
    data = msgpack.packb([msgpack.unpackb(row)] * 100)

    assert peak_of(lambda: DECODERS[decoder](data)) < 4 * MEBIBYTE


def test_a_block_that_claims_much_takes_nothing():
    head = pack._HEAD.pack(pack.MAGIC, 1, 0, 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1)
    data = bytes(16) + head + pack._CHECK.pack(pack.crc32(head))

    assert peak_of(lambda: list(pack.scan_blocks(memoryview(data), bytes(16)))) < MEBIBYTE


def test_a_damaged_frame_is_decompressed_no_further_than_asked_for():
    stored = zstandard.compress(bytes(1 << 28))

    assert decompress_damaged(Compression.ZSTD, stored, 1000) == bytes(1000)
    begun = b"nonsense in front" + stored[: len(stored) // 2]
    found = len(decompress_damaged(Compression.ZSTD, begun, 1 << 27))
    assert 0 < found <= 1 << 27
    assert peak_of(lambda: not decompress_damaged(Compression.ZSTD, stored, 1000)) < 20 * MEBIBYTE


def test_an_index_that_claims_much_takes_nothing():
    data = b"TREESNAP\x02\x01\x00\x01\0\0\0\0" + b"\xff" * 12 + bytes(100)

    assert peak_of(lambda: IndexPart(memoryview(data), "here")) < MEBIBYTE


def test_an_object_is_decompressed_to_the_size_that_it_claims():
    stored = zstandard.compress(bytes(MEBIBYTE))

    assert decompress(Compression.ZSTD, stored, MEBIBYTE) == bytes(MEBIBYTE)


@pytest.mark.parametrize("claimed", [0, 100, MEBIBYTE, OBJECT_SIZE_MAX])
def test_a_frame_of_another_size_is_refused_before_it_is_decompressed(claimed):
    stored = zstandard.compress(bytes(1 << 26))

    assert peak_of(lambda: decompress(Compression.ZSTD, stored, claimed)) < MEBIBYTE


def test_a_claim_beyond_the_largest_block_is_refused():
    with pytest.raises(Corrupt, match="more than"):
        decompress(Compression.ZSTD, b"", BLOCK_RAW_SIZE_MAX + 1)


def test_a_frame_that_says_no_size_is_refused():
    compressor = zstandard.ZstdCompressor(write_content_size=False)

    with pytest.raises(Corrupt, match="does not hold"):
        decompress(Compression.ZSTD, compressor.compress(bytes(1000)), 1000)


def test_a_frame_that_lies_about_its_size_is_refused():
    honest = bytearray(zstandard.compress(bytes(300)))
    position = honest.index((300 - 256).to_bytes(2, "little"), 4)
    honest[position : position + 2] = (400 - 256).to_bytes(2, "little")

    with pytest.raises(Corrupt, match="cannot be decompressed|claims"):  # noqa: RUF043 - one of two
        decompress(Compression.ZSTD, bytes(honest), 400)


@pytest.mark.parametrize(
    ("compression", "stored", "raw_size"),
    [
        (Compression.NONE, b"abc", 2),
        (Compression.NONE, b"abc", 4),
        (Compression.ZSTD, b"", 0),
        (Compression.ZSTD, b"no frame", 8),
        (Compression.ZSTD, zstandard.compress(b"abc") + b"more", 3),
        (Compression.ZSTD, zstandard.compress(b"abc") * 2, 3),
        (Compression.ZSTD, zstandard.compress(b"abc")[:-1], 3),
        (2, b"abc", 3),
        (255, b"abc", 3),
        (Compression.NONE, b"", -1),
    ],
)
def test_stored_bytes_that_are_not_what_they_claim_are_refused(compression, stored, raw_size):
    with pytest.raises(Corrupt):
        decompress(compression, stored, raw_size)


def test_objects_come_back_however_they_were_stored():
    objects = [b"", b"a" * 64, b"a" * 65, bytes(range(256)), bytes(100_000), b"\0" * 70]

    compressed = [compress.compress(data, 1) for data in objects]

    found = [
        decompress(how, stored, len(data))
        for (how, stored), data in zip(compressed, objects, strict=True)
    ]
    assert found == objects
    assert [how for how, _ in compressed] == [
        Compression.NONE,
        Compression.NONE,
        Compression.ZSTD,
        Compression.NONE,
        Compression.ZSTD,
        Compression.ZSTD,
    ]
    assert compress.compress(b"a", 1) == (Compression.NONE, b"a")


def test_one_chunk_cannot_stand_for_a_huge_table_of_links():
    chunk = msgpack.packb([b"a", b"b"]) * 1000
    identity = object_id(ObjectKind.CHUNK, chunk)
    content = (0, *(identity, len(chunk)) * 16)
    for _ in range(8):
        content = (content[0] + 1, *(listed(content), sum(content[2::2])) * 16)

    assert peak_of(lambda: load_groups(FileContent(content), stored_lists(chunk))) < MEBIBYTE


LISTS: dict[ObjectId, bytes] = {}


def listed(content: tuple[Any, ...]) -> ObjectId:
    data = msgpack.packb(content, use_bin_type=True)
    identity = object_id(ObjectKind.CHUNK_LIST, data)
    LISTS[identity] = data
    return identity


def stored_lists(chunk: bytes) -> Callable[[ObjectKind, ObjectId], bytes]:
    return lambda kind, identity: LISTS.get(identity, chunk)


def test_a_text_that_is_not_utf_8_is_refused():
    with pytest.raises(Corrupt):
        unpack(b"\xa1\xff", "example")


def test_fields_are_of_one_type_or_refused():
    fields = Fields({"number": True, "size": -1, "nothing": None, "version": 2}, "example")

    for read in (
        lambda: fields.get("number", int),
        lambda: fields.get("absent", int),
        lambda: fields.get("nothing", int),
        lambda: fields.optional("number", str),
        lambda: fields.size("size"),
        lambda: fields.require_version(1),
        lambda: Fields((), "example"),
    ):
        with pytest.raises(Corrupt):
            read()
    assert fields.optional("absent", int) is None
    assert fields.optional("nothing", int) is None
    assert fields.optional("number", bool) is True
