"""Verifying: each kind of damage is named, with what it costs, and repaired where possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blocks import damaging
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.events import NullMonitor, Phase
from treesnap.core.store.store import Store
from treesnap.testing.doubles import RecordingFileSystem


@pytest.fixture
def ids(handle, root):
    """Two snapshots; only the second has the file "new"."""
    (root / "big").write_bytes(os.urandom(3000))
    first = handle.create(name="first").id
    (root / "new").write_bytes(os.urandom(3000))
    return first, handle.create(name="second").id


@pytest.fixture
def store(ids, store_path):
    with Store.open(LocalFileSystem(), str(store_path)) as store:
        yield store


def damage(path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def damage_content(store, place) -> None:
    """Damages a byte of an object, and of no other one in its block."""
    path = store.layout.pack(place.pack_id)
    damage(path, damaging(path, place))


def place_of(handle, store, ref: str, path: str):
    """Returns the place of a one-chunk file's chunk."""
    (entry,) = handle.ls(ref, path)
    return store.index.find(entry.file_content[1])


def codes(result) -> list[str]:
    return sorted(problem.code for problem in result.problems)


class TestLooking:
    def test_a_whole_store_is_ok(self, handle, ids):
        result = handle.verify(read_data=True)

        assert result.ok
        assert result.snapshots == 2
        assert result.read_bytes > 6000

    def test_structure_alone_reads_no_content(self, handle, ids):
        assert handle.verify().read_bytes < 6000

    def test_damaged_content_names_snapshot_and_path(self, handle, ids, store):
        place = place_of(handle, store, "second", "new")
        damage_content(store, place)

        result = handle.verify(read_data=True)

        (problem,) = [item for item in result.problems if item.code == "damaged-object"]
        assert problem.where == place.id.hex()
        assert problem.snapshot_ids == (ids[1],)
        assert problem.paths == (b"new",)

    def test_damage_in_both_names_both(self, handle, ids, store):
        place = place_of(handle, store, "first", "big")
        damage_content(store, place)

        result = handle.verify(read_data=True)

        (problem,) = [item for item in result.problems if item.code == "damaged-object"]
        assert set(problem.snapshot_ids) == set(ids)

    def test_damaged_content_is_left_to_reading(self, handle, ids, store):
        place = place_of(handle, store, "second", "new")
        damage_content(store, place)

        assert handle.verify().ok

    def test_a_missing_pack_makes_objects_missing(self, handle, ids, store):
        (pack_id,) = store.packs.sizes()
        os.unlink(store.layout.pack(pack_id))

        assert set(codes(handle.verify())) == {"missing-object"}

    def test_a_pack_that_was_cut_short_is_named(self, handle, ids, store):
        (pack_id,) = store.packs.sizes()
        path = store.layout.pack(pack_id)
        os.truncate(path, os.path.getsize(path) - 5)

        assert "bad-pack" in codes(handle.verify())

    def test_a_damaged_record_is_named_even_if_nothing_needs_it(self, handle, root, ids, store):
        (root / "lost").write_bytes(os.urandom(3000))
        handle.create(name="third")
        store.index.refresh()
        place = place_of(handle, store, "third", "lost")
        handle.delete("third")
        damage(store.layout.pack(place.pack_id), place.offset)

        result = handle.verify(read_data=True)

        assert codes(result) == ["bad-pack"]
        assert str(place.offset) in result.problems[0].message

    @pytest.mark.parametrize("tail", [bytes(500), b"TSBK torn"])
    def test_a_torn_tail_that_was_never_synced_is_no_damage(self, handle, ids, store, tail):
        (pack_id,) = store.packs.sizes()
        with open(store.layout.pack(pack_id), "ab") as file:
            file.write(tail)

        assert handle.verify(read_data=True).ok

    def test_a_torn_record_that_was_never_synced_is_no_damage(self, handle, root, ids, store):
        parts = list(store.index.parts)
        (root / "lost").write_bytes(os.urandom(3000))
        handle.create(name="third")
        handle.delete("third")
        store.index.refresh()
        store.index.remove_parts(set(store.index.parts) - set(parts))
        (pack_id,) = store.packs.sizes()
        path = store.layout.pack(pack_id)
        damage(path, os.path.getsize(path) - 1)

        assert handle.verify(read_data=True).ok

    def test_a_damaged_snapshot_is_named_alone(self, handle, ids, store_path):
        (path,) = (store_path / "snapshots").glob(f"*/*{ids[0]}")
        damage(path, 60)

        result = handle.verify()

        (problem,) = result.problems
        assert (problem.code, problem.snapshot_ids) == ("bad-snapshot", (ids[0],))
        assert result.snapshots == 1

    def test_a_damaged_index_part_costs_nothing(self, handle, ids, store_path, root):
        part = next(path for path in (store_path / "index").iterdir() if path.name != "lock")
        damage(part, 50)

        assert codes(handle.verify()) == ["bad-index"]
        (root / "big").unlink()
        handle.restore("second")

    def test_damage_is_found_before_it_reaches_the_tree(self, handle, root, ids, store):
        place = place_of(handle, store, "second", "new")
        damage_content(store, place)
        (root / "new").unlink()
        (root / "one").write_bytes(b"changed")

        with pytest.raises(Corrupt):
            handle.restore("second")

        assert not (root / "new").exists()
        assert (root / "one").read_bytes() == b"changed"

    def test_of_two_copies_the_damaged_one_is_found(self, handle, ids, store):
        """Also where the right one is read first, or last."""
        (pack_id,) = store.packs.sizes()
        names = [bytes(16), b"\xff" * 16]
        content = Path(store.layout.pack(pack_id)).read_bytes()
        for name in names:
            Path(store.layout.pack(name)).write_bytes(content)
            entries = [
                entry._replace(block=entry.block._replace(pack_id=name))
                for entry in store.index.entries_of(pack_id)
            ]
            store.index.write_part(entries, {name: len(content)})
        for name in names:
            damage(store.layout.pack(name), len(content) - 1)

        result = handle.verify(read_data=True)

        assert {item.where for item in result.problems} == {f"packs/{name.hex()}" for name in names}
        assert result.partial == ()

    def test_progress_is_counted_in_bytes_that_were_known_before(self, make_handle, ids, store):
        monitor = Counting()

        make_handle(monitor=monitor).verify(read_data=True)

        assert monitor.totals[0] == sum(store.packs.sizes().values())
        assert 0.9 * monitor.totals[0] < monitor.done[0] <= monitor.totals[0]

    def test_progress_of_a_sample_is_a_part_of_it(self, make_handle, ids, store):
        monitor = Counting()

        make_handle(monitor=monitor).verify(sample=(1, 4))

        assert monitor.totals[0] == sum(store.packs.sizes().values()) // 4

    @pytest.mark.parametrize("sample", [(0, 4), (5, 4), (1, 0)])
    def test_a_part_that_there_is_not_is_refused(self, handle, ids, sample):
        with pytest.raises(InvalidArgument, match=f"no part {sample[0]} of {sample[1]}"):
            handle.verify(sample=sample)


class Counting(NullMonitor):
    """Sums up what each phase says."""

    def __init__(self) -> None:
        self.totals: list[int | None] = []
        self.done: list[int] = []

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Notes the total."""
        self.totals.append(size_bytes)
        self.done.append(0)

    def advance(self, files: int, size_bytes: int) -> None:
        """Adds what was done."""
        self.done[-1] += size_bytes


class TestRepair:
    def test_a_whole_store_needs_none(self, handle, ids):
        assert handle.verify(repair=True).repaired == ()

    def test_the_index_never_covers_what_is_torn(self, handle, ids, store, store_path):
        (pack_id,) = store.packs.sizes()
        path = store.layout.pack(pack_id)
        size = os.path.getsize(path)
        with open(path, "ab") as file:
            file.write(b"TSBK torn")
        part = next(item for item in (store_path / "index").iterdir() if item.name != "lock")
        damage(part, 50)

        handle.verify(repair=True)

        assert handle.verify(read_data=True).ok
        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert again.index.covered() == {pack_id: size}

    def test_what_was_never_synced_is_synced_before_the_index_covers_it(
        self, make_handle, ids, store, store_path
    ):
        for part in (store_path / "index").iterdir():
            if part.name != "lock":
                damage(part, 50)
        fs = RecordingFileSystem()

        make_handle(fs=fs).verify(repair=True)

        places = [os.path.relpath(item.path, store_path).split(os.sep)[0] for item in fs.syncs]
        assert places == ["packs", "packs", "temporary", "index"]

    def test_the_index_is_rebuilt(self, handle, ids, store_path):
        part = next(path for path in (store_path / "index").iterdir() if path.name != "lock")
        damage(part, 50)

        result = handle.verify(repair=True)

        assert len(result.repaired) == 1
        assert handle.verify(read_data=True).ok

    def test_a_damaged_record_takes_nothing_else_out_of_the_index(self, handle, root, ids, store):
        place = place_of(handle, store, "first", "big")
        (root / "big").unlink()
        damage(store.layout.pack(place.pack_id), place.offset)

        handle.verify(read_data=True, repair=True)

        blamed = [item for item in handle.verify(read_data=True).problems if item.paths]
        assert [item.paths for item in blamed] == [(b"big",)]

    def test_a_damaged_snapshot_goes_to_quarantine(self, handle, ids, store_path):
        (path,) = (store_path / "snapshots").glob(f"*/*{ids[0]}")
        damage(path, 60)
        damage(path, 90)  # one byte alone would be put right

        result = handle.verify(repair=True)

        assert len(result.repaired) == 1
        (kept,) = os.listdir(store_path / "quarantine")
        assert kept == f"snapshots.{path.parent.name}.{path.name}"
        assert handle.verify().ok
        assert [item.id for item in handle.list()] == [ids[1]]

    def test_what_cannot_be_repaired_stays_named(self, handle, root, ids, store):
        place = place_of(handle, store, "second", "new")
        damage_content(store, place)
        (root / "new").unlink()

        repaired = handle.verify(read_data=True, repair=True)

        again = handle.verify(read_data=True)
        assert codes(again) == ["missing-object"]
        assert repaired.left == again.problems
        assert repaired.partial == again.partial
        (partial,) = again.partial
        assert (partial.snapshot_id, partial.paths, partial.path_count) == (ids[1], (b"new",), 1)

    def test_what_was_copied_out_of_a_damaged_pack_is_not_stored_once_more(
        self, handle, root, ids, store, store_path
    ):
        """It lies in quarantine too, which is read for what the store lacks."""
        damage_content(store, place_of(handle, store, "second", "new"))
        (root / "new").unlink()
        before = sum(path.stat().st_size for path in (store_path / "packs").iterdir())

        done = handle.verify(read_data=True, repair=True).repaired

        assert [line for line in done if "back from quarantine" in line] == []
        assert sum(path.stat().st_size for path in (store_path / "packs").iterdir()) <= before

    def test_a_repair_that_found_nothing_does_not_speak_of_recovered_objects(
        self, handle, root, ids, store
    ):
        damage_content(store, place_of(handle, store, "second", "new"))
        (root / "new").unlink()

        done = handle.verify(read_data=True, repair=True).repaired[-1]

        assert done.startswith("Made the next capture of each root read every file again; no live")

    def test_objects_that_are_captured_again_are_whole_again(self, handle, root, ids, store):
        """The pack is gone; what is still in the tree comes back with the next capture."""
        (pack_id,) = store.packs.sizes()
        os.unlink(store.layout.pack(pack_id))
        for cache in (root.parent / "store/roots").glob("*/cache"):
            cache.unlink()

        handle.create(name="third")

        problems = handle.verify(read_data=True).problems
        assert not any(ids[1] in problem.snapshot_ids for problem in problems)
