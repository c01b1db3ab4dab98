"""The index: parts, merging, damage."""

from __future__ import annotations

import os

import pytest

from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Busy
from treesnap.core.store.index import PARTS_MAX, VERIFIED_SIZE_MAX, ObjectIndex
from treesnap.testing.doubles import RecordingFileSystem

PACK = b"p" * 16
OTHER_PACK = b"q" * 16


def identity(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(32, "big"))


def entry(number: int, pack_id: bytes = PACK) -> IndexEntry:
    return IndexEntry(
        identity(number), Block(pack_id, 16 + number, 10, 20), 0, 19, ObjectKind.CHUNK
    )


@pytest.fixture
def index(fs, store):
    return ObjectIndex(fs, store.layout)


def part_names(store) -> list[str]:
    return [name for name in os.listdir(store.layout.index) if name != "lock"]


def test_an_empty_index_finds_nothing(index):
    assert index.find(identity(1)) is None
    assert index.covered() == {}


def test_a_written_part_is_found_by_all(fs, store, index):
    index.write_part([entry(1), entry(2)], {PACK: 100})

    again = ObjectIndex(fs, store.layout)

    assert index.find(identity(2)) == again.find(identity(2)) == entry(2)
    assert again.covered() == {PACK: 100}


def test_refresh_shows_what_others_wrote(fs, store, index):
    assert index.find(identity(1)) is None
    ObjectIndex(fs, store.layout).write_part([entry(1)], {PACK: 100})

    index.refresh()

    assert index.find(identity(1)) == entry(1)


def test_refresh_forgets_what_others_removed(fs, store, index):
    name = index.write_part([entry(1)], {PACK: 100})
    assert index.find(identity(1)) is not None
    ObjectIndex(fs, store.layout).remove_parts([name])

    index.refresh()

    assert index.find(identity(1)) is None


def test_packs_to_avoid_are_passed_over(index):
    index.write_part([entry(1)], {PACK: 100})
    index.write_part([entry(1, OTHER_PACK)], {OTHER_PACK: 100})

    found = index.find(identity(1), frozenset([PACK]))

    assert found == entry(1, OTHER_PACK)
    assert index.find(identity(1), frozenset([PACK, OTHER_PACK])) is None


def test_every_place_of_an_object_is_known(index):
    index.write_part([entry(1)], {PACK: 100})
    index.write_part([entry(1, OTHER_PACK)], {OTHER_PACK: 100})

    assert sorted(index.find_all(identity(1))) == [entry(1), entry(1, OTHER_PACK)]


def test_what_a_scan_found_counts_in_this_process(index):
    index.add_scanned([entry(7)])

    assert list(index.find_all(identity(7))) == [entry(7)]


def test_entries_of_a_pack_are_told_apart(index):
    index.write_part([entry(1), entry(2, OTHER_PACK)], {PACK: 100, OTHER_PACK: 100})

    assert index.entries_of(OTHER_PACK) == [entry(2, OTHER_PACK)]


def test_covered_takes_the_largest(index):
    index.write_part([entry(1)], {PACK: 100})
    index.write_part([entry(2)], {PACK: 300})
    index.write_part([entry(3)], {PACK: 200})

    assert index.covered() == {PACK: 300}


def test_a_damaged_part_is_left_out_and_named(fs, store, index):
    good = index.write_part([entry(1)], {PACK: 100})
    bad = index.write_part([entry(2)], {PACK: 200})
    path = os.path.join(store.layout.index, bad)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")

    again = ObjectIndex(fs, store.layout)

    assert list(again.parts) == [good]
    assert again.find(identity(1)) == entry(1)
    assert again.find(identity(2)) is None
    assert list(again.damaged) == [bad]


@pytest.fixture
def large_and_damaged(fs, store, index):
    """A part that is not checked when it is opened; the last entry of it is not right."""
    name = index.write_part(map(entry, range(2000)), {PACK: 5000})
    path = os.path.join(store.layout.index, name)
    assert os.path.getsize(path) > VERIFIED_SIZE_MAX
    with open(path, "r+b") as file:
        file.seek(-41, os.SEEK_END)
        file.write(b"\xff")
    return name


def test_a_large_part_is_opened_without_reading_it(fs, store, large_and_damaged):
    again = ObjectIndex(fs, store.layout)

    assert list(again.parts) == [large_and_damaged]
    assert again.damaged == {}
    assert again.find(identity(1)) == entry(1)


def test_damage_does_not_get_into_a_merged_part(fs, store, large_and_damaged):
    again = ObjectIndex(fs, store.layout)
    for number in range(PARTS_MAX):
        again.write_part(map(entry, range(5000 + 2000 * number, 7000 + 2000 * number)), {PACK: 9})

    again.merge_if_many()

    assert list(again.damaged) == [large_and_damaged]
    assert again.find(identity(1)) is None
    assert again.find(identity(5000)) == entry(5000)
    again.drop_damaged()
    assert large_and_damaged not in part_names(store)


@pytest.mark.parametrize("size", [0, 10, 40])
def test_a_part_that_is_cut_short_is_left_out(fs, store, index, size):
    name = index.write_part([entry(1)], {PACK: 100})
    os.truncate(os.path.join(store.layout.index, name), size)

    again = ObjectIndex(fs, store.layout)

    assert again.parts == {}
    assert list(again.damaged) == [name]


def test_few_parts_are_not_merged(store, index):
    for number in range(PARTS_MAX):
        index.write_part([entry(number)], {PACK: number})

    index.merge_if_many()

    assert len(part_names(store)) == PARTS_MAX


def test_merging_keeps_every_lookup(fs, store, index):
    for number in range(PARTS_MAX + 1):
        index.write_part([entry(number)], {PACK: 100 + number})

    index.merge_if_many()

    again = ObjectIndex(fs, store.layout)
    assert len(part_names(store)) < PARTS_MAX
    assert [again.find(identity(number)) for number in range(PARTS_MAX + 1)] == [
        entry(number) for number in range(PARTS_MAX + 1)
    ]
    assert again.covered() == {PACK: 100 + PARTS_MAX}


def test_merging_keeps_both_places_of_an_object(fs, store, index):
    for number in range(PARTS_MAX):
        index.write_part([entry(number)], {PACK: 100})
    index.write_part([entry(0, OTHER_PACK)], {OTHER_PACK: 100})

    index.merge_if_many()

    again = ObjectIndex(fs, store.layout)
    assert sorted(again.find_all(identity(0))) == [entry(0), entry(0, OTHER_PACK)]


def test_a_large_part_is_not_rewritten_for_small_ones(store, index):
    large = index.write_part([entry(number) for number in range(1000)], {PACK: 100})
    for number in range(PARTS_MAX):
        index.write_part([entry(2000 + number)], {PACK: 100})

    index.merge_if_many()

    assert large in part_names(store)


def test_merging_is_left_to_the_process_that_does_it(fs, store, index):
    for number in range(PARTS_MAX + 1):
        index.write_part([entry(number)], {PACK: 100})
    lock = fs.open(os.path.join(store.layout.index, "lock"), os.O_RDWR | os.O_CREAT)
    assert fs.lock(lock, exclusive=True)

    index.merge_if_many()

    fs.close(lock)
    assert len(part_names(store)) == PARTS_MAX + 1


def test_of_packs_that_are_gone_nothing_stays_and_all_else_does(fs, store, index):
    mixed = index.write_part([entry(1), entry(2, OTHER_PACK)], {PACK: 100, OTHER_PACK: 200})
    gone = index.write_part([entry(3)], {PACK: 300})
    other = index.write_part([entry(4, OTHER_PACK)], {OTHER_PACK: 400})

    index.forget({PACK}, 0.0)

    again = ObjectIndex(fs, store.layout)
    assert again.covered() == index.covered() == {OTHER_PACK: 400}
    assert [again.find(identity(number)) for number in (1, 3)] == [None, None]
    assert again.find(identity(2)) == entry(2, OTHER_PACK)
    assert other in part_names(store)
    assert not {mixed, gone} & {*part_names(store)}


def test_what_is_gone_is_forgotten_when_another_process_has_merged(fs, store, index):
    lock = fs.open(os.path.join(store.layout.index, "lock"), os.O_RDWR | os.O_CREAT)
    assert fs.lock(lock, exclusive=True)

    with pytest.raises(Busy, match="The index is in use"):
        index.forget({PACK}, 0.0)

    fs.close(lock)


def test_every_entry_is_rewritten_a_logarithmic_number_of_times(store):
    """256 parts of one entry each: no quadratic amount of rewriting."""
    fs = RecordingFileSystem()
    index = ObjectIndex(fs, store.layout)
    for number in range(256):
        index.write_part([entry(number)], {PACK: 100})
        index.merge_if_many()
    written = fs.written_bytes()

    assert len(part_names(store)) <= PARTS_MAX + 1
    assert written < 256 * 170 + 256 * 8 * 60 * 2


def test_a_merged_part_knows_the_other_place_of_an_object_to_avoid(fs, store, index):
    for number in range(PARTS_MAX):
        index.write_part([entry(number)], {PACK: 100})
    index.write_part([entry(0, OTHER_PACK)], {OTHER_PACK: 100})

    index.merge_if_many()

    again = ObjectIndex(fs, store.layout)
    assert again.find(identity(0), frozenset([PACK])) == entry(0, OTHER_PACK)
    assert again.find(identity(0), frozenset([OTHER_PACK])) == entry(0)
