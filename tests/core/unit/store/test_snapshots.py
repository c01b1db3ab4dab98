"""The snapshots of a store."""

from __future__ import annotations

import os

import pytest

from treesnap.core.codec.snapshot import SNAPSHOT
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.errors import Corrupt, NotFound
from treesnap.core.model.snapshots import SnapshotState
from treesnap.core.store.snapshots import SnapshotLog, SnapshotName
from treesnap.testing.doubles import RecordingFileSystem

ROOT_ID = "0" * 32
TREE = ObjectId(b"t" * 32)


@pytest.fixture
def log(store):
    return store.snapshots


@pytest.fixture
def publish(store, log, record_of):
    def publisher(sequence: int) -> SnapshotName:
        pending = os.path.join(store.layout.pending, "a" * 16)
        record = record_of(TREE, sequence)
        name = SnapshotName(sequence, log.write_pending(pending, SNAPSHOT.payload(record)))
        log.promote(pending, ROOT_ID, name)
        return name

    return publisher


def test_a_published_snapshot_is_loaded(log, publish, record_of):
    name = publish(1)

    snapshot = log.load(ROOT_ID, name)

    assert (snapshot.id, snapshot.sequence) == (name.id, 1)
    assert snapshot.record == record_of(TREE, 1)


def test_names_are_newest_first(log, publish):
    names = [publish(number) for number in (1, 2, 10, 300)]

    assert log.names(ROOT_ID) == names[::-1]


def test_a_root_without_snapshots_has_no_names(log):
    assert log.names("f" * 32) == []


def test_all_names_covers_all_roots(store, log, publish):
    name = publish(1)
    os.rename(store.layout.root_snapshots(ROOT_ID), store.layout.root_snapshots("1" * 32))
    other = publish(2)

    assert list(log.all_names()) == [(ROOT_ID, other), ("1" * 32, name)]


def test_foreign_files_are_no_snapshots(store, log, publish):
    name = publish(1)
    directory = store.layout.root_snapshots(ROOT_ID)
    for stranger in ("README", "1-2", f"{'0' * 16}-{'g' * 64}"):
        with open(os.path.join(directory, stranger), "w") as file:
            file.write("stranger")

    assert log.names(ROOT_ID) == [name]


def test_a_pending_snapshot_is_not_listed(store, log, record_of):
    log.write_pending(
        os.path.join(store.layout.pending, "a" * 16), SNAPSHOT.payload(record_of(TREE))
    )

    assert list(log.all_names()) == []


def test_a_snapshot_that_is_gone_is_not_found(log):
    with pytest.raises(NotFound):
        log.load(ROOT_ID, SnapshotName(1, "a" * 64))


def test_a_snapshot_under_a_wrong_name_is_damaged(log, publish):
    name = publish(1)
    wrong = SnapshotName(1, "a" * 64)
    os.rename(log.path(ROOT_ID, name), log.path(ROOT_ID, wrong))

    with pytest.raises(Corrupt, match="does not match its id"):
        log.load(ROOT_ID, wrong)


def test_a_damaged_snapshot_takes_no_other_with_it(log, publish):
    bad, good = publish(1), publish(2)
    with open(log.path(ROOT_ID, bad), "r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")

    with pytest.raises(Corrupt):
        log.load(ROOT_ID, bad)
    assert log.load(ROOT_ID, good).id == good.id


def test_state_is_kept_beside_the_snapshot(log, publish):
    name = publish(1)
    before = log.load(ROOT_ID, name).state

    log.change_state(name.id, lambda _: SnapshotState(pinned=True, tags={"a": "1"}))

    assert before == SnapshotState()
    assert log.load(ROOT_ID, name).state == SnapshotState(pinned=True, tags={"a": "1"})


def test_a_damaged_state_counts_as_pinned(store, log, publish):
    name = publish(1)
    log.change_state(name.id, lambda _: SnapshotState())
    with open(store.layout.state(name.id), "wb") as file:
        file.write(b"damaged")

    assert log.load(ROOT_ID, name).pinned


def test_remove_takes_the_state_along(store, log, publish):
    name, stays = publish(1), publish(2)
    log.change_state(name.id, lambda _: SnapshotState(pinned=True))

    log.remove(ROOT_ID, [name])

    assert log.names(ROOT_ID) == [stays]
    assert os.listdir(store.layout.states) == []


def test_no_power_cut_leaves_a_state_without_its_snapshot(store, log, publish):
    """What was not synced may be lost in any order, so the states are synced first."""
    names = [publish(1), publish(2)]
    for name in names:
        log.change_state(name.id, lambda _: SnapshotState(tags={"a": "1"}))
    recording = RecordingFileSystem()

    SnapshotLog(recording, store.layout).remove(ROOT_ID, names)

    calls = [
        (item.method, os.path.relpath(item.path, store.path).split(os.sep)[0])
        for item in recording.calls("unlink", "sync")
    ]
    assert calls == [
        *[("unlink", "states")] * 2,
        ("sync", "states"),
        *[("unlink", "snapshots")] * 2,
        ("sync", "snapshots"),
    ]


def test_removing_twice_is_no_error(log, publish):
    name = publish(1)
    log.remove(ROOT_ID, [name])

    log.remove(ROOT_ID, [name])

    assert log.names(ROOT_ID) == []


class TestByAFullId:
    def test_many_are_looked_up_with_one_listing(self, store, log, publish):
        names = [publish(number) for number in range(1, 9)]
        recording = RecordingFileSystem()
        looking = SnapshotLog(recording, store.layout)

        found = [looking.load_by_id(ROOT_ID, name.id) for name in names]

        assert [item.sequence for item in found] == [name.sequence for name in names]
        assert len(recording.calls("list_names")) == 1

    def test_one_that_was_published_or_deleted_since_the_last_is_seen(self, store, log, publish):
        first = publish(1)
        assert log.load_by_id(ROOT_ID, first.id) is not None
        second = publish(2)

        assert log.load_by_id(ROOT_ID, second.id).sequence == 2
        os.unlink(log.path(ROOT_ID, first))
        assert log.load_by_id(ROOT_ID, first.id) is None

    def test_one_that_went_and_came_back_with_another_number_is_found(self, log, publish):
        name = publish(1)
        assert log.load_by_id(ROOT_ID, name.id).sequence == 1
        os.rename(log.path(ROOT_ID, name), log.path(ROOT_ID, SnapshotName(7, name.id)))

        assert log.load_by_id(ROOT_ID, name.id).sequence == 7

    def test_what_is_no_full_id_is_none(self, log, publish):
        name = publish(1)

        assert log.load_by_id(ROOT_ID, name.id[:12]) is None
        assert log.load_by_id(ROOT_ID, "latest") is None
