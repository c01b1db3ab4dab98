"""What a garbage collection makes of damage: nothing worse, and no damage that lasts for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blocks import damaging
from garbage import add_garbage, add_garbage_to_pack, pack_files, use_new_pack
from state import tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.ops.maintenance.space import gc
from treesnap.core.store.store import Store


@pytest.fixture
def store(handle, store_path):
    """The store after a first snapshot, open beside the handle."""
    handle.create(name="first")
    with Store.open(LocalFileSystem(), str(store_path)) as store:
        yield store


def test_nothing_goes_by_itself_when_a_snapshot_cannot_be_read(handle, store, root, store_path):
    add_garbage(handle, root, store_path)
    before = pack_files(store_path)
    (snapshot,) = (store_path / "snapshots").glob("*/*")
    snapshot.write_bytes(b"damaged")

    result = gc(handle.context, dry_run=False, is_automatic=True)

    assert result.damaged == (snapshot.name.partition("-")[2],)
    assert result.postponed == "1 snapshot is damaged"
    assert (result.freed_bytes, result.removed_objects) == (0, 0)
    assert pack_files(store_path) == before
    assert handle.gc().damaged == result.damaged  # asked for, it goes around the damage


def test_a_damaged_pack_is_left_alone_with_all_it_holds(handle, store, root, store_path):
    """One byte of one table is wrong; nothing else is lost by collecting."""
    (root / "kept").write_bytes(os.urandom(200))
    handle.create()
    (root / "garbage").write_bytes(os.urandom(50_000))
    handle.create(name="garbage")
    (root / "garbage").unlink()
    handle.delete("garbage")
    (pack_id,) = store.packs.sizes()
    entries = store.inventory(pack_id).entries
    block = next(entry.block for entry in entries if entry.kind == ObjectKind.CHUNK)
    lost = [entry.id.hex() for entry in entries if entry.block == block]
    with open(store.layout.pack(pack_id), "r+b") as file:
        file.seek(block.offset)
        file.write(b"X")

    result = handle.gc()

    assert result.postponed == "1 pack is damaged"
    assert os.path.exists(store.layout.pack(pack_id))
    problems = handle.verify(read_data=True).problems
    assert {problem.where for problem in problems if problem.paths} == set(lost)


@pytest.mark.parametrize("is_first", [True, False])
def test_damaged_content_stops_neither_other_packs_nor_is_it_copied(
    handle, store, root, store_path, is_first
):
    """What is needed of a wasteful pack is damaged, with whole headers; others can go."""
    (root / "one").write_bytes(os.urandom(20_000 if is_first else 100))
    (root / "garbage").write_bytes(os.urandom(50_000))
    handle.create(name="garbage")
    (root / "garbage").unlink()
    handle.create(name="without")
    wasteful = pack_files(store_path)
    use_new_pack(store_path)
    (root / "two").write_bytes(os.urandom(5000))
    (root / "more").write_bytes(os.urandom(50_000))
    handle.create(name="more")
    (root / "more").unlink()
    handle.create(name="less")
    handle.delete("garbage", "more")
    other = pack_files(store_path) - wasteful
    add_garbage(handle, root, store_path)
    (pack_id,) = map(bytes.fromhex, wasteful)
    needed = store.inventory(pack_id).entries[0]
    with open(store.layout.pack(pack_id), "r+b") as file:
        position = damaging(file.name, needed)
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0xFF]))
    damaged = handle.verify(read_data=True).problems
    assert damaged

    result = handle.gc()

    assert result.postponed == "1 pack is damaged"
    assert (result.removed_packs, result.rewritten_packs) == (1, 1)
    assert pack_files(store_path) >= wasteful
    assert not pack_files(store_path) & other
    assert {item.where for item in handle.verify(read_data=True).problems} == {
        item.where for item in damaged
    }


@pytest.mark.parametrize("kind", ["pipe", "directory", "damaged"])
def test_a_damaged_state_is_named_when_a_pack_is_to_be_rewritten(handle, store, root, kind):
    for _ in range(3):
        add_garbage_to_pack(handle, root)
    state = Path(store.layout.collector_state)
    state.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(state)
    elif kind == "directory":
        state.mkdir()
    else:
        state.write_bytes(b"damaged")

    with pytest.raises(Corrupt) as damage:
        handle.gc()

    assert str(state) in damage.value.message
    handle.verify(repair=True)
    assert handle.gc().rewritten_packs == 1
    assert handle.verify(read_data=True).ok


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_covered", [True, False])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_record_that_nothing_needs_goes_with_its_pack(
    handle, store, root, store_path, number, is_covered
):
    """The pack goes, and what is needed of it stays; also when it was never synced."""
    state = tree_state(root)
    for _ in range(3):
        add_garbage_to_pack(handle, root)
    (pack_id,) = store.packs.sizes()
    store.index.refresh()
    needed = {item.id for item in store.inventory(pack_id).entries[:4]}
    records = [item for item in store.inventory(pack_id).entries if item.id not in needed]
    record = records[number]
    with open(store.layout.pack(pack_id), "r+b") as file:
        file.seek(record.offset)
        file.write(bytes(record.block.size))
    if not is_covered:
        store.index.remove_parts(list(store.index.parts))

    result = handle.gc()

    assert (result.postponed, result.rewritten_packs) == (None, 1)
    assert not os.path.exists(store.layout.pack(pack_id))
    assert handle.verify(read_data=True).ok
    handle.restore("first")
    assert tree_state(root) == state


def test_a_torn_pack_that_nothing_needs_goes(handle, store, root, store_path):
    before = pack_files(store_path)
    torn = store_path / "packs" / ("a" * 32)
    torn.write_bytes(bytes(1000))

    result = handle.gc()

    assert (result.postponed, result.removed_packs) == (None, 1)
    assert pack_files(store_path) == before


def test_a_torn_pack_stays_while_something_needed_is_missing(handle, store, root, store_path):
    (pack_id,) = store.packs.sizes()
    record = store.inventory(pack_id).entries[0]
    with open(store.layout.pack(pack_id), "r+b") as file:
        file.seek(record.offset)
        file.write(b"X")
    torn = store_path / "packs" / ("a" * 32)
    torn.write_bytes(bytes(1000))

    result = handle.gc()

    assert result.postponed == "2 packs are damaged"
    assert torn.exists()


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_copies_the_right_one_stays(handle, store, root, is_first):
    """Whichever of the two packs is seen first."""
    state = tree_state(root)
    (pack_id,) = store.packs.sizes()
    twin = b"t" * 16
    with open(store.layout.pack(pack_id), "rb") as file:
        content = file.read()
    with open(store.layout.pack(twin), "wb") as file:
        file.write(content)
    entries = [
        entry._replace(block=entry.block._replace(pack_id=twin))
        for entry in store.index.entries_of(pack_id)
    ]
    store.index.write_part(entries, {twin: len(content)})
    with open(store.layout.pack(list(store.packs.sizes())[not is_first]), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")

    handle.gc()

    handle.verify(repair=True)
    assert handle.verify(read_data=True).ok
    handle.restore("first")
    assert tree_state(root) == state
