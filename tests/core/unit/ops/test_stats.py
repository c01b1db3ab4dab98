"""Sizes of a store, of its roots and of snapshots, beside what an independent reader counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

import trees
from formats.independent_reader import Reader
from garbage import use_new_pack
from mutations import mutate
from needs import Need, all_blocks_bytes, needs, sizes
from treesnap.core.handle import Handle
from treesnap.core.model.results import StatsResult
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem


def test_without_a_store_everything_is_zero(handle):
    stats = handle.stats()

    assert (stats.snapshots, stats.disk_bytes, stats.packs, stats.roots) == (0, 0, 0, 0)
    assert (stats.by_root, stats.by_snapshot, stats.dedup_ratio) == ((), (), None)


def test_the_numbers_are_those_of_the_files(handle, root, store_path):
    (root / "big").write_bytes(os.urandom(10_000))
    handle.create()
    handle.create()

    stats = handle.stats()

    files = [path for path in store_path.rglob("*") if path.is_file()]
    assert stats.disk_bytes == sum(path.stat().st_size for path in files)
    assert stats.files == len(files)
    assert (stats.snapshots, stats.root_snapshots, stats.roots, stats.packs) == (2, 2, 1, 1)
    assert stats.logical_bytes == 2 * (10_000 + 3 + 3)
    assert stats.raw_bytes > 10_006
    assert stats.objects == 3  # a chunk, two directories, which hold the small files


def test_other_roots_count_for_the_store_only(handle, make_handle, tmp_path):
    handle.create()
    (tmp_path / "other").mkdir()
    make_handle(root=tmp_path / "other").create()

    stats = handle.stats()

    assert (stats.roots, stats.snapshots, stats.root_snapshots) == (2, 2, 1)
    assert [(item.root, item.snapshots) for item in stats.by_root] == [
        (os.fsencode(tmp_path / "other"), 1),
        (os.fsencode(handle.root), 1),
    ]


class Counted:
    """What the independent reader finds in a store."""

    def __init__(self, store: Path) -> None:
        self.reader = Reader(store)
        self.records = dict(self.reader.snapshots())
        self.needs = {identity: needs(self.reader, one) for identity, one in self.records.items()}
        self.needed = self.of(self.needs)
        self.waste_bytes = all_blocks_bytes(store) - sizes(self.reader, self.needed)[1]

    @staticmethod
    def of(chosen: dict[str, set[Need]]) -> set[Need]:
        return set().union(*chosen.values())

    def unique_bytes(self, *chosen: str) -> int:
        """Returns the bytes of what only the chosen snapshots need."""
        mine = self.of({one: self.needs[one] for one in chosen})
        others = self.of({one: found for one, found in self.needs.items() if one not in chosen})
        return sizes(self.reader, mine - others)[1]

    def of_root(self, root: bytes) -> list[str]:
        return [one for one, record in self.records.items() if record["root_path"] == root]

    def logical_bytes(self, chosen: Sequence[str]) -> int:
        files = [self.reader.files(self.records[one]).values() for one in chosen]
        return sum(file.get("size", 0) for each in files for file in each)


def assert_counted(stats: StatsResult, store: Path) -> None:
    """Asserts that all numbers are those of the independent reader."""
    counted = Counted(store)
    raw_bytes, stored_bytes = sizes(counted.reader, counted.needed)
    assert (stats.needed_raw_bytes, stats.needed_bytes) == (raw_bytes, stored_bytes)
    assert stats.waste_bytes == counted.waste_bytes
    assert stats.objects == len(counted.reader.objects)
    assert stats.stored_bytes == sizes(counted.reader, set(counted.reader.objects))[1]
    assert {item.snapshot.id: item.unique_bytes for item in stats.by_snapshot} == {
        one: counted.unique_bytes(one) for one in counted.of_root(stats_root(stats))
    }
    for item in stats.by_root:
        chosen = counted.of_root(item.root)
        assert item.unique_bytes == counted.unique_bytes(*chosen)
        assert item.logical_bytes == counted.logical_bytes(chosen)
    assert stats.all_logical_bytes == counted.logical_bytes(list(counted.records))
    assert stats.damaged_snapshots == 0


def stats_root(stats: StatsResult) -> bytes:
    return stats.by_snapshot[0].snapshot.record.root_path


@pytest.mark.parametrize(
    ("build", "seed"),
    [
        (trees.build_small, 1),
        (trees.build_small, 2),
        pytest.param(trees.build, 3, marks=pytest.mark.slow),
    ],
)
def test_awkward_trees_that_overlap_are_counted_as_by_the_independent_reader(
    make_handle, tmp_path, store_path, build, seed
):
    random = Random(seed)
    roots = [tmp_path / "one", tmp_path / "two"]
    build(roots[0], seed)
    trees.build_small(roots[1], seed)
    shared = random.randbytes(700_000)
    (roots[0] / "shared").write_bytes(shared)
    handles = [make_handle(root=root) for root in roots]
    for number in range(8):
        handle, root = random.choice(list(zip(handles, roots, strict=True)))
        handle.create(name=f"{number}")
        mutate(root, random, 3)
        if number == 4:
            (roots[1] / "shared too").write_bytes(shared)
    for handle in handles:
        handle.create()
    handles[0].delete(handles[0].list()[1].id)

    for handle in handles:
        assert_counted(handle.stats(), store_path)


def test_second_copies_of_what_no_snapshot_needs_are_stored_and_waste(handle, root, store_path):
    for number in range(3):
        (root / f"file {number}").write_bytes(os.urandom(100_000))
        handle.create(name=f"{number}")
    handle.delete("1")

    assert Counted(store_path).reader.seconds
    assert_counted(handle.stats(), store_path)


def test_what_is_unique_to_a_snapshot_is_what_its_removal_frees(handle, root, store_path):
    for number in range(3):
        if number:
            use_new_pack(store_path)
        (root / "own").write_bytes(os.urandom(20_000 + number))
        handle.create(name=f"{number}")
    use_new_pack(store_path)
    unique_bytes = {item.snapshot.name: item.unique_bytes for item in handle.stats().by_snapshot}
    before = sum(path.stat().st_size for path in store_path.glob("packs/*"))

    handle.delete("1")
    handle.gc()

    after = sum(path.stat().st_size for path in store_path.glob("packs/*"))
    header_size = 16
    assert before - after == unique_bytes["1"] + header_size


def test_waste_is_what_a_collection_frees(handle, root, store_path):
    (root / "garbage").write_bytes(os.urandom(50_000))
    handle.create(name="garbage")
    (root / "garbage").unlink()
    handle.create()
    assert handle.stats().waste_bytes == 0

    handle.delete("garbage")
    waste_bytes = handle.stats().waste_bytes
    result = handle.gc()

    assert result.freed_bytes == pytest.approx(waste_bytes, rel=0.01)  # blocks were made anew
    assert waste_bytes > 50_000
    assert handle.stats().waste_bytes == 0


def test_ratios_compare_copies_with_what_is_kept(handle, root):
    (root / "one").write_bytes(b"the same again " * 10_000)
    for _ in range(4):
        handle.create()

    stats = handle.stats()

    assert 3.9 < stats.dedup_ratio <= 4
    assert stats.compression_ratio > 100


def test_a_damaged_snapshot_is_counted_and_the_rest_measured(handle, root, store_path):
    handle.create(name="whole")
    use_new_pack(store_path)
    (root / "directory/two").write_bytes(b"changed")
    handle.create(name="damaged")
    newest = max(store_path.glob("packs/*"), key=os.path.getmtime)
    newest.write_bytes(newest.read_bytes()[:30])

    stats = handle.stats()

    assert (stats.snapshots, stats.damaged_snapshots) == (2, 1)


class Collecting(WrappedFileSystem):
    """Collects garbage in the moment before a pack is looked at for the n-th time."""

    def __init__(self, other: Handle, looks: int) -> None:
        super().__init__(UnsyncedFileSystem())
        self.other = other
        self.looks = looks

    def around(self, call: Call) -> object:
        if call.method == "open" and "/packs/" in os.fsdecode(call.paths[-1]):
            self.looks -= 1
            if self.looks == 0:
                self.other.delete("gone")
                self.other.gc()
        return call.proceed()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("looks", range(1, 8))
def test_what_is_collected_meanwhile_fails_nothing(handle, make_handle, root, store_path, looks):
    handle.create(name="stays")
    use_new_pack(store_path)
    (root / "directory/more").write_bytes(os.urandom(5000))
    handle.create(name="gone")

    stats = make_handle(fs=Collecting(handle, looks)).stats()

    assert stats.damaged_snapshots == 0
    assert "stays" in {item.snapshot.name for item in stats.by_snapshot}


def test_a_snapshot_says_what_it_added(handle, root, store_path):
    before = all_blocks_bytes(store_path) if store_path.exists() else 0
    for number in range(3):
        (root / "new").write_bytes(os.urandom(1000 * (number + 1)))
        made = handle.create()
        after = all_blocks_bytes(store_path)
        (newest,) = handle.list()[:1]
        assert newest.record.added_bytes == made.stats.added_bytes == after - before
        assert after - before > 1000 * (number + 1)
        before = after


def test_a_snapshot_of_the_same_state_added_nothing(handle):
    handle.create()

    assert handle.create().snapshot.record.added_bytes == 0


def test_a_safety_snapshot_says_what_it_added_too(handle, root):
    handle.create(name="before")
    (root / "new").write_bytes(os.urandom(3000))

    handle.restore("before")

    assert handle.list()[0].record.added_bytes > 3000
