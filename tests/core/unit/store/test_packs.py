"""Packs: appending, going on with one, torn tails, sealing, damage."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from typing import Any

import pytest

from blocks import ONE_OBJECT_SIZE, chunk_blocks, one_block
from descriptors import open_descriptors
from treesnap.core.codec.envelope import HEADER_SIZE, FileKind, header
from treesnap.core.codec.pack import (
    PACK_SIZE_TARGET,
    TRAILER_SIZE,
    IndexEntry,
    decode_footer,
    entries_of,
)
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.ops.context import context_at
from treesnap.core.store.packs import PackAppender, PackReader
from treesnap.testing.children import in_child
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    RecordingFileSystem,
    WrappedFileSystem,
)


@pytest.fixture
def layout(store):
    return store.layout


def add(appender: PackAppender, *chunks: bytes):
    """Appends a block for each chunk, uncompressed; returns their places."""
    return list(entries_of(appender.append(chunk_blocks(*chunks))))


@pytest.fixture
def pack(fs, layout):
    """A pack with three blocks, closed but not sealed, and their places."""
    appender = PackAppender.create(fs, layout)
    entries = add(appender, b"one", b"two" * 10, b"three" * 20)
    appender.sync()
    appender.close()
    return appender.pack_id, entries


def path_of(layout, pack_id) -> str:
    return layout.pack(pack_id)


def cut(path: str, size: int) -> None:
    os.truncate(path, size)


def flip(path: str, offset: int) -> None:
    """Damages one byte."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def nothing():
    return []


def seal(fs, layout, pack_id) -> int:
    """Seals a pack; returns where its footer begins."""
    appender, _ = PackAppender.resume(fs, layout, pack_id, 0)
    begin = appender.end
    appender.seal()
    appender.close()
    return begin


def test_what_was_appended_is_read(store, pack):
    _, entries = pack

    assert [store.packs.read(entry) for entry in entries] == [b"one", b"two" * 10, b"three" * 20]


def test_an_inventory_has_every_object_and_the_end(store, layout, pack):
    pack_id, entries = pack

    found = store.packs.inventory(pack_id, 0, nothing)

    assert found.entries == entries
    assert found.end == os.path.getsize(path_of(layout, pack_id))


def test_an_inventory_begins_where_it_is_told(store, pack):
    pack_id, entries = pack

    assert store.packs.inventory(pack_id, 0, nothing, entries[1].offset).entries == entries[1:]


def test_sizes_names_every_pack(store, layout, pack):
    pack_id, _ = pack

    assert store.packs.sizes() == {pack_id: os.path.getsize(path_of(layout, pack_id))}


def test_sizes_leaves_foreign_files_out(store, layout):
    with open(os.path.join(layout.packs, "README"), "w") as file:
        file.write("not a pack")

    assert store.packs.sizes() == {}


def test_sizes_leaves_out_what_a_collection_removes_meanwhile(fs, layout, pack):
    class Collected(WrappedFileSystem):
        def around(self, call: Call):
            result = call.proceed()
            if call.method != "scan":
                return result
            with result as entries:
                found = [*entries]
            os.unlink(layout.pack(pack[0]))
            return nullcontext(found)

    kept = PackAppender.create(fs, layout)
    kept.close()

    assert PackReader(Collected(), layout).sizes() == {kept.pack_id: HEADER_SIZE}


def test_an_inventory_of_the_end_of_a_sealed_pack_goes_on_behind_damage(fs, store, layout, pack):
    pack_id, entries = pack
    seal(fs, layout, pack_id)
    flip(path_of(layout, pack_id), entries[1].offset)

    found = store.packs.inventory(pack_id, 0, nothing, entries[1].offset)

    assert found.entries == [entries[2]]
    assert found.damaged_at == entries[1].offset


def test_a_missing_pack_is_not_found(store, pack):
    entry = elsewhere(pack[1][0], pack_id=bytes(16))

    with pytest.raises(FileNotFoundError):
        store.packs.read(entry)
    assert not store.packs.has_object(entry)


def elsewhere(entry: IndexEntry, **changes: Any) -> IndexEntry:
    """Returns the entry with another place of its block."""
    return entry._replace(block=entry.block._replace(**changes))


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: elsewhere(entry, offset=HEADER_SIZE + 1),
        lambda entry: elsewhere(entry, size=entry.block.size + 1),
        lambda entry: elsewhere(entry, size=(1 << 32) - 1),
        lambda entry: elsewhere(entry, raw_size=5),
        lambda entry: entry._replace(start=1),
        lambda entry: entry._replace(raw_size=4),
        lambda entry: entry._replace(kind=ObjectKind.TREE),
        lambda entry: entry._replace(id=bytes(32)),
    ],
)
def test_a_wrong_place_is_not_believed(store, pack, change):
    entry = change(pack[1][0])

    assert not store.packs.has_object(entry)
    with pytest.raises(Corrupt):
        store.packs.read(entry)


def test_damaged_content_is_named(store, layout, pack):
    pack_id, entries = pack
    flip(path_of(layout, pack_id), entries[1].offset + ONE_OBJECT_SIZE)

    with pytest.raises(Corrupt, match=entries[1].id.hex()):
        store.packs.read(entries[1])


class TestNear:
    """What lies in the block of which objects were read last."""

    CHUNKS = (b"first", b"second", b"third")

    @pytest.fixture
    def entries(self, fs, layout):
        """The places of all chunks, in one block."""
        appender = PackAppender.create(fs, layout)
        entries = list(entries_of(appender.append(one_block(*self.CHUNKS))))
        appender.close()
        assert len({entry.block for entry in entries}) == 1
        return entries

    @pytest.fixture
    def read(self, store, entries):
        """Reads the first two chunks."""

        def read() -> None:
            for entry in entries[:2]:
                store.packs.read(entry)

        return read

    def test_is_found_without_a_place(self, store, entries, read):
        read()

        assert store.packs.read_near(ObjectKind.CHUNK, entries[2].id) == self.CHUNKS[2]
        assert store.get(ObjectKind.CHUNK, entries[2].id) == self.CHUNKS[2]

    def test_is_of_the_same_kind(self, store, entries, read):
        read()

        assert store.packs.read_near(ObjectKind.TREE, entries[2].id) is None

    def test_is_nowhere_else(self, store, pack, read):
        read()

        assert store.packs.read_near(ObjectKind.CHUNK, pack[1][0].id) is None

    def test_is_verified(self, store, layout, entries, read):
        flip(path_of(layout, entries[0].pack_id), entries[0].offset + entries[0].block.size - 1)
        read()

        assert store.packs.read_near(ObjectKind.CHUNK, entries[2].id) is None

    def test_is_forgotten_with_all_packs(self, store, entries, read):
        read()
        store.packs.close()

        assert store.packs.read_near(ObjectKind.CHUNK, entries[2].id) is None


def test_reading_keeps_few_packs_open(fs, store, layout):
    entries = []
    for number in range(70):
        appender = PackAppender.create(fs, layout)
        entries += add(appender, b"%d" % number)
        appender.close()
    before = len(open_descriptors())

    for entry in entries:
        store.packs.read(entry)

    assert len(open_descriptors()) - before <= 64


class TestResume:
    def test_goes_on_at_the_end(self, fs, store, layout, pack):
        pack_id, entries = pack

        appender, tables = PackAppender.resume(fs, layout, pack_id, 0)
        more = add(appender, b"four")
        appender.close()

        assert [entry.id for entry in entries_of(tables)] == [entry.id for entry in entries]
        assert store.packs.read(more[0]) == b"four"
        assert len(store.inventory(pack_id).entries) == 4

    def test_tells_only_what_the_index_does_not_know(self, fs, layout, pack):
        pack_id, entries = pack

        appender, tables = PackAppender.resume(fs, layout, pack_id, entries[2].offset)

        appender.close()
        assert [entry.id for entry in entries_of(tables)] == [entries[2].id]

    def test_is_refused_for_a_tail_torn_anywhere(self, fs, store, layout, pack):
        """At every byte of the last block: what is whole before stays readable."""
        pack_id, entries = pack
        last = entries[2]
        path = path_of(layout, pack_id)
        for size in range(last.offset + last.block.size - 1, last.offset, -1):
            cut(path, size)

            assert PackAppender.resume(fs, layout, pack_id, 0) is None
            found = store.packs.inventory(pack_id, 0, nothing)
            assert found.entries == entries[:2]
            assert found.end == last.offset

    def test_is_refused_for_a_pack_that_is_shorter_than_it_was(self, fs, layout, pack):
        pack_id, entries = pack
        covered = os.path.getsize(path_of(layout, pack_id))
        cut(path_of(layout, pack_id), entries[2].offset)

        assert PackAppender.resume(fs, layout, pack_id, covered) is None

    def test_is_refused_for_a_sealed_pack(self, fs, layout, pack):
        pack_id, _ = pack
        appender, _ = PackAppender.resume(fs, layout, pack_id, 0)
        appender.seal()
        appender.close()

        assert PackAppender.resume(fs, layout, pack_id, 0) is None

    @pytest.mark.parametrize("content", [bytes(HEADER_SIZE), header(FileKind.PACK)[:8] + bytes(8)])
    def test_is_refused_for_a_pack_whose_header_is_not_whole(self, fs, layout, pack, content):
        pack_id, _ = pack
        with open(path_of(layout, pack_id), "r+b") as file:
            file.write(content)

        assert PackAppender.resume(fs, layout, pack_id, 0) is None
        cut(path_of(layout, pack_id), HEADER_SIZE)
        assert PackAppender.resume(fs, layout, pack_id, 0) is None

    def test_is_refused_for_a_pack_that_is_gone(self, fs, layout):
        assert PackAppender.resume(fs, layout, bytes(16), 0) is None

    def test_that_fails_leaves_no_file_open(self, layout, pack):
        fs = FaultyFileSystem(Fault(number=2, methods=frozenset({"read_at"}), errno=errno.ENOMEM))
        before = open_descriptors()

        with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
            PackAppender.resume(fs, layout, pack[0], 0)

        assert open_descriptors() == before

    def test_is_refused_for_a_full_pack(self, fs, layout, pack):
        pack_id, _ = pack
        cut(path_of(layout, pack_id), PACK_SIZE_TARGET)

        assert PackAppender.resume(fs, layout, pack_id, PACK_SIZE_TARGET) is None


class TestSealing:
    def test_the_footer_lists_every_block(self, fs, layout):
        appender = PackAppender.create(fs, layout)
        entries = add(appender, b"one", b"two")

        appender.seal()
        appender.close()

        with open(path_of(layout, appender.pack_id), "rb") as file:
            offsets = decode_footer(memoryview(file.read()), "pack")
        assert offsets == [entry.offset for entry in entries]

    def test_a_resumed_pack_gets_a_whole_footer_too(self, fs, layout, pack):
        pack_id, entries = pack
        appender, _ = PackAppender.resume(fs, layout, pack_id, entries[2].offset)
        more = add(appender, b"four")

        appender.seal()
        appender.close()

        with open(path_of(layout, pack_id), "rb") as file:
            offsets = decode_footer(memoryview(file.read()), "pack")
        assert offsets == [entry.offset for entry in [*entries, *more]]

    def test_a_pack_is_full_at_the_target_size(self, fs, layout):
        appender = PackAppender.create(fs, layout)
        before = appender.is_full
        appender.end = PACK_SIZE_TARGET

        after = appender.is_full

        appender.close()
        assert (before, after) == (False, True)

    def test_an_empty_pack_is_removed(self, fs, store, layout):
        appender = PackAppender.create(fs, layout)

        appender.discard_if_empty()
        appender.close()

        assert store.packs.sizes() == {}


class TestInventory:
    def test_of_a_whole_pack_asks_no_writer(self, store, pack):
        pack_id, entries = pack

        found = store.packs.inventory(pack_id, 0, nothing)

        assert (found.entries, found.damaged_at) == (entries, None)

    def test_takes_a_torn_tail_that_was_never_covered_for_no_damage(self, store, layout, pack):
        pack_id, entries = pack
        cut(path_of(layout, pack_id), entries[2].offset + 5)

        found = store.packs.inventory(pack_id, entries[2].offset, nothing)

        assert (found.entries, found.damaged_at) == (entries[:2], None)

    def test_goes_on_behind_damage_where_the_index_knows(self, store, layout, pack):
        pack_id, entries = pack
        size = os.path.getsize(path_of(layout, pack_id))
        flip(path_of(layout, pack_id), entries[1].offset)

        found = store.packs.inventory(pack_id, size, lambda: entries)

        assert found.entries == [entries[0], entries[2]]
        assert (found.damaged_at, found.end) == (entries[1].offset, size)

    def test_goes_on_behind_damage_where_the_footer_knows(self, fs, store, layout, pack):
        pack_id, entries = pack
        appender, _ = PackAppender.resume(fs, layout, pack_id, 0)
        appender.seal()
        appender.close()
        flip(path_of(layout, pack_id), entries[1].offset)

        found = store.packs.inventory(pack_id, 0, nothing)

        assert found.entries == [entries[0], entries[2]]
        assert found.damaged_at == entries[1].offset

    def test_of_a_pack_with_a_damaged_start_relies_on_the_index(self, store, layout, pack):
        pack_id, entries = pack
        size = os.path.getsize(path_of(layout, pack_id))
        flip(path_of(layout, pack_id), 0)

        found = store.packs.inventory(pack_id, size, lambda: entries)

        assert found.entries == entries
        assert found.damaged_at == 0

    def test_notices_a_footer_that_is_damaged_itself(self, fs, store, layout, pack):
        pack_id, entries = pack
        appender, _ = PackAppender.resume(fs, layout, pack_id, 0)
        end = appender.end
        appender.seal()
        appender.close()
        flip(path_of(layout, pack_id), end)
        flip(path_of(layout, pack_id), entries[0].offset)

        found = store.packs.inventory(pack_id, end, lambda: entries)

        assert found.entries == entries[1:]

    def test_notices_a_damaged_footer_of_whole_blocks(self, fs, store, layout, pack):
        pack_id, entries = pack
        end = seal(fs, layout, pack_id)
        flip(path_of(layout, pack_id), end)

        found = store.packs.inventory(pack_id, end, nothing)

        assert (found.entries, found.damaged_at) == (entries, end)

    def test_of_a_pack_cut_inside_its_trailer_has_every_object(self, fs, store, layout, pack):
        pack_id, entries = pack
        appender, _ = PackAppender.resume(fs, layout, pack_id, 0)
        appender.seal()
        appender.close()
        cut(path_of(layout, pack_id), appender.end - TRAILER_SIZE // 2)

        assert store.packs.inventory(pack_id, 0, nothing).entries == entries


class TestReadingWhatIsCutOff:
    """A writer that finds no room cuts off what it wrote, even while a reader reads the pack."""

    class Cut(WrappedFileSystem):
        """Cuts a pack when it was looked into for the first time."""

        def __init__(self, path: str, size: int) -> None:
            super().__init__()
            self._left = (path, size)

        def around(self, call: Call):
            result = call.proceed()
            if call.method in {"map", "read_at"} and self._left and call.path == self._left[0]:
                cut(*self._left)
                self._left = ()
            return result

    @pytest.fixture
    def long(self, fs, layout):
        """A pack of 100 blocks of 10,000 bytes, and their places."""
        appender = PackAppender.create(fs, layout)
        entries = add(appender, *(bytes([number]) * 10_000 for number in range(100)))
        appender.sync()
        appender.close()
        return appender.pack_id, entries

    def test_ends_the_inventory(self, layout, long):
        pack_id, entries = long
        half = entries[50].offset - 6000  # more than a page before the next header

        def scan() -> None:
            reader = PackReader(self.Cut(path_of(layout, pack_id), half), layout)
            found = reader.inventory(pack_id, 0, nothing).entries
            assert found[:50] == entries[:50]
            assert len(found) <= 53  # what was read before

        ended = in_child(scan)
        assert ended.error is None, ended.error

    def test_is_no_footer(self, fs, layout, long):
        pack_id, entries = long
        seal(fs, layout, pack_id)

        def scan() -> None:
            reader = PackReader(
                self.Cut(path_of(layout, pack_id), entries[1].offset - 6000), layout
            )
            assert reader.inventory(pack_id, 0, nothing).entries[:1] == entries[:1]

        ended = in_child(scan)
        assert ended.error is None, ended.error

    def test_no_pack_is_ever_mapped(self, tmp_path):
        recording = RecordingFileSystem()
        (tmp_path / "root").mkdir()
        handle = Handle(
            context_at(root=tmp_path / "root", store_path=str(tmp_path / "store"), fs=recording)
        )
        for number in range(3):
            (tmp_path / "root/file").write_bytes(bytes([number]) * 100_000)
            handle.create(name=f"n{number}")
        handle.delete("n1")
        handle.gc()
        handle.verify(read_data=True, repair=True)
        handle.restore("n0")

        mapped = {
            os.path.basename(os.path.dirname(call.path))
            for call in recording.log
            if call.method == "map"
        }
        assert mapped
        assert "packs" not in mapped
