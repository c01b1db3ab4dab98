"""What operations keep in memory for each file, counted in bytes: no clock can disprove these."""

from __future__ import annotations

import tracemalloc

import pytest

import treesnap
from treesnap.core.codec import pack, reader
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.store import packs
from treesnap.core.store.maintenance.pack_usage import StoreUsage
from treesnap.core.store.maintenance.reachability import SeenObjects
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer

pytestmark = pytest.mark.sampled(3)

FEW, MANY = 500, 1500
EACH = 10
"""Files of a directory."""
FLAT_BYTES = 40
"""For each file; keeping its path and its entry takes some 500."""
PACKED_BYTES = 190
"""For each object of a pack that gc reads; a list of all places alone takes 200."""

WRITTEN_BYTES = 340
"""For each object that a session stored and has not indexed yet; with an entry of each 430."""


@pytest.fixture
def peak_bytes(tmp_path, monkeypatch):
    """Returns the most memory that a restore to another directory takes, for a number of files.

    Few directories and blocks are kept at hand, so that even a small tree has more.
    """
    monkeypatch.setattr(reader, "_CACHED_ENTRIES", 10 * EACH)
    monkeypatch.setattr(pack, "BLOCK_SIZE_TARGET", 1 << 10)
    monkeypatch.setattr(packs, "_OPEN_BLOCKS_SIZE_MAX", 4 << 10)

    def measured(count: int, **options: bool) -> int:
        root = tmp_path / f"root-{count}"
        for number in range(count):
            path = root / f"{number // 100}" / f"{number // EACH}" / f"file-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"what all files hold")
        handle = treesnap.open(root, tmp_path / "store")
        handle.create()
        tracemalloc.start()
        try:
            result = handle.restore("latest", to=tmp_path / f"target-{count}", **options)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert result.created == count + count // EACH + count // 100
        return peak

    measured(FEW // 5)  # what is loaded and made once
    return measured


def test_a_restore_to_another_directory_that_only_counts_keeps_nothing_for_each_file(peak_bytes):
    few = peak_bytes(FEW, list_changes=False)

    assert peak_bytes(MANY, list_changes=False) - few < FLAT_BYTES * (MANY - FEW)


def test_one_that_lists_what_changed_keeps_that(peak_bytes):
    few = peak_bytes(FEW)

    assert peak_bytes(MANY) - few > FLAT_BYTES * (MANY - FEW)


def test_what_is_in_a_pack_is_read_without_a_list_of_all_its_objects(tmp_path):
    """A pack may hold 400,000, and gc reads every pack."""

    def measured(count: int) -> int:
        store = Store.open(LocalFileSystem(), str(tmp_path / f"store-{count}"), create=True)
        with Writer(store) as writer:
            for number in range(count):
                writer.put(ObjectKind.CHUNK, b"%d" % number)
            writer.flush()
        store.index.refresh()
        needed = SeenObjects(store.index)
        tracemalloc.start()
        try:
            usage = StoreUsage(store, needed)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [item.count for item in usage.packs.values()] == [count]
        return peak

    assert measured(20_000) - measured(10_000) < PACKED_BYTES * 10_000


def test_a_session_keeps_little_for_each_object_that_it_stored(tmp_path):
    store = Store.open(LocalFileSystem(), str(tmp_path / "store"), create=True)
    with Writer(store) as writer:
        writer.put(ObjectKind.CHUNK, b"the first one")
        writer.pause()
        tracemalloc.start()
        try:
            for number in range(MANY):
                writer.put(ObjectKind.CHUNK, b"%d" % number)
            writer.pause()
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert kept < MANY * WRITTEN_BYTES


def test_encoding_a_batch_joins_one_block_at_a_time():
    size = pack.BLOCK_SIZE_TARGET - 1
    batch = [(ObjectKind.CHUNK, ObjectId(bytes([n]) * 32), bytes([n]) * size) for n in range(8)]
    pack.encode_objects(batch[:1])  # what is loaded and made once
    tracemalloc.start()
    try:
        pack.encode_objects(batch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * size
