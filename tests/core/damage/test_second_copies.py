"""Trees and chunk lists are stored twice where that is cheap: damage to them costs nothing."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

import treesnap
from sampling import evenly, sized
from state import tree_state
from treesnap.core.codec.pack import BlockTable
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.store.store import Store

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root of 400 files in 21 directories and one large file, with one snapshot."""
    root, random = tmp_path / "root", Random(0)
    for number in range(400):
        directory = root / f"directory-{number % 20}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"file-{number}").write_bytes(random.randbytes(2000))
    (root / "large").write_bytes(random.randbytes(3 << 20))
    treesnap.open(root, tmp_path / "store").create()
    return tmp_path


def tables_in(place: Path) -> list[tuple[Path, BlockTable]]:
    """Returns the blocks of all packs, each with its file."""
    store_path = place / "store"
    with Store.open(LocalFileSystem(), str(store_path)) as store:
        return [
            (store_path / "packs" / pack_id.hex(), table)
            for pack_id in store.packs.sizes()
            for table in store.inventory(pack_id).tables
        ]


def flip(path: Path, position: int) -> None:
    """Changes one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def restored(place: Path, name: str) -> dict:
    """Returns what a restore to another directory gives."""
    treesnap.open(place / "root", place / "store").restore("latest", to=place / name)
    return tree_state(place / name)


def test_every_block_of_trees_and_lists_is_there_twice(place):
    blocks = [table for _, table in tables_in(place) if not table.is_content]

    rows = [table.rows for table in blocks]
    assert {rows.count(each) for each in rows} == {2}


def test_one_flipped_bit_in_them_costs_nothing(place):
    wanted = tree_state(place / "root")
    blocks = [(path, table.block) for path, table in tables_in(place) if not table.is_content]
    positions = [
        (path, block.offset + inside)
        for path, block in blocks
        for inside in range(0, block.size, max(1, block.size // 40))
    ]
    for number, index in enumerate(evenly(len(positions), sized(12, len(positions)))):
        path, position = positions[index - 1]
        flip(path, position)
        assert restored(place, f"to-{number}") == wanted, position
        flip(path, position)


def test_a_repair_stores_them_twice_again(place):
    handle = treesnap.open(place / "root", place / "store")
    wanted = tree_state(place / "root")
    path, block = next((p, t.block) for p, t in tables_in(place) if not t.is_content)
    flip(path, block.offset + block.size - 1)

    handle.verify(read_data=True, repair=True)
    handle.gc()

    assert handle.verify(read_data=True).ok
    for path, table in tables_in(place):
        if not table.is_content:
            flip(path, table.block.offset + table.block.size - 1)
            break
    assert restored(place, "to") == wanted


def test_a_small_step_stores_nothing_twice(place):
    root = place / "root"
    handle = treesnap.open(root, place / "store")
    before = len(tables_in(place))
    (root / "directory-1" / "file-1").write_text("changed")

    handle.create()

    new = [table for _, table in tables_in(place)][before:]
    ids = [identity for table in new for identity in table.ids]
    assert ids
    assert len(ids) == len(set(ids))


def test_collections_leave_the_copies_alone(place):
    handle = treesnap.open(place / "root", place / "store")
    packs = sorted(os.listdir(place / "store" / "packs"))

    for _ in range(3):
        result = handle.gc()
        assert (result.freed_bytes, result.rewritten_packs) == (0, 0)

    assert sorted(os.listdir(place / "store" / "packs")) == packs


@pytest.mark.parametrize("count", [1, 30, 400])
def test_a_store_of_nothing_but_trees_is_not_rewritten_again_and_again(tmp_path, count):
    """Copies count as waste: too many of them, and every collection would rewrite the pack."""
    root = tmp_path / "root"
    for number in range(count):
        (root / f"directory-{number}" / "below").mkdir(parents=True)
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()

    assert handle.gc().rewritten_packs == 0


def test_what_a_collection_removes_is_counted_once(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(Random(0).randbytes(5000))
    handle = treesnap.open(root, tmp_path / "store")
    identity = handle.create().id

    handle.delete(identity)

    assert handle.gc().removed_objects == 2  # the content and its directory
