"""Writing sessions."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks import ONE_OBJECT_SIZE, block_of
from descriptors import descriptors_of
from treesnap.core.codec.message import pack
from treesnap.core.codec.pack import HEAD_SIZE, ROW_SIZE, BlockTable, decode_table
from treesnap.core.codec.reader import checked_block
from treesnap.core.model.entries import ObjectKind, Totals
from treesnap.core.model.errors import Corrupt, InvalidArgument, StorageFull
from treesnap.core.model.ids import object_id
from treesnap.core.store.collector import CollectorState, write_state
from treesnap.core.store.index import PARTS_MAX
from treesnap.core.store.store import Store
from treesnap.core.store.writer import EpochChanged, Writer
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem

ROOT_ID = "0" * 32
CHUNK = ObjectKind.CHUNK
CHUNKS = [Random(number).randbytes(1000) for number in range(4)]


def tree_bytes(number: int = 0) -> bytes:
    """Returns an empty tree, another one for each number."""
    return pack((1, Totals(number), 0, ()))


def pack_ids(store) -> list[bytes]:
    return sorted(store.packs.sizes())


def record_ids(store) -> list[bytes]:
    """Returns the ids of all records of all packs, repeated ones too."""
    return [item.id for pack_id in pack_ids(store) for item in store.inventory(pack_id).entries]


def test_what_was_put_is_read(open_store, put):
    ids = put(b"one", b"two" * 1000)

    assert [open_store().get(CHUNK, item) for item in ids] == [b"one", b"two" * 1000]


def test_an_object_is_stored_once(store, put):
    first = put(b"one", b"one")
    second = put(b"one")

    assert first == second * 2
    assert record_ids(store) == second


def test_equal_bytes_of_two_kinds_are_two_objects(open_store):
    same = pack((0, bytes(32), 5))

    with Writer(open_store()) as writer:
        ids = {writer.put(kind, same) for kind in (CHUNK, ObjectKind.CHUNK_LIST)}
        writer.flush()

    assert sorted(record_ids(open_store())) == sorted(ids)


def test_a_session_reads_what_it_put(store):
    with Writer(store) as writer:
        identity = writer.put(CHUNK, b"not yet on disk")

        assert writer.get(CHUNK, identity) == b"not yet on disk"


def test_large_amounts_go_through_the_threads_in_order(open_store):
    chunks = [os.urandom(200_000) for _ in range(60)]
    with Writer(open_store()) as writer:
        ids = [writer.put(CHUNK, chunk) for chunk in chunks]
        writer.flush()

    store = open_store()
    assert record_ids(store) == ids
    assert [store.get(CHUNK, item) for item in ids] == chunks


def test_a_full_pack_is_sealed(open_store):
    with Writer(open_store()) as writer:
        for _ in range(9):
            writer.put(CHUNK, os.urandom(4 << 20))
        writer.flush()

    store = open_store()
    assert len(pack_ids(store)) == 2
    assert len(record_ids(store)) == 9


def stored_block(*objects: tuple[ObjectKind, bytes]) -> tuple[BlockTable, bytes]:
    """Returns a block of objects as another store may have it."""
    data = block_of([(kind, object_id(kind, each), each) for kind, each in objects])
    table = decode_table(data, b"p" * 16, 0)
    assert table is not None
    return table, data


def test_a_block_of_another_store_is_taken_as_it_is(open_store):
    table, data = stored_block((CHUNK, b"one"), (ObjectKind.TREE, tree_bytes()))

    with Writer(open_store()) as writer:
        writer.put_block(checked_block(table, data))
        writer.flush()

    store = open_store()
    (path,) = Path(store.layout.packs).iterdir()
    assert data in path.read_bytes()
    assert {store.get(ObjectKind(entry.kind), entry.id) for entry in table.entries} == {
        b"one",
        tree_bytes(),
    }


@pytest.mark.parametrize(
    "block",
    [
        [(CHUNK, object_id(CHUNK, b"one"), b"one"), (CHUNK, bytes(32), b"two")],
        [(ObjectKind.TREE, object_id(ObjectKind.TREE, b"no tree"), b"no tree")],
        [(CHUNK, object_id(ObjectKind.TREE, tree_bytes()), tree_bytes())],
    ],
)
def test_a_block_with_what_no_reader_accepts_is_refused(block):
    data = block_of(block)
    table = decode_table(data, b"p" * 16, 0)
    assert table is not None

    with pytest.raises(Corrupt):
        checked_block(table, data)


@given(position=st.integers(0, 400), mask=st.integers(1, 255))
def test_a_block_of_which_any_byte_was_changed_is_refused(position, mask):
    objects = [(CHUNK, b"roses " * 20), (ObjectKind.TREE, tree_bytes()), (CHUNK, b"tulips " * 20)]
    table, data = stored_block(*objects)
    start = HEAD_SIZE + 3 * ROW_SIZE
    changed = bytearray(data)
    changed[start + position % (len(data) - start)] ^= mask

    with pytest.raises(Corrupt):
        checked_block(table, bytes(changed))


def test_an_object_that_is_too_large_is_refused(store):
    with Writer(store) as writer, pytest.raises(InvalidArgument, match="too large"):
        writer.put(CHUNK, bytes((16 << 20) + 1))


def test_sessions_one_after_the_other_fill_one_pack(store, put):
    for number in range(20):
        put(b"%d" % number)

    assert len(pack_ids(store)) == 1
    assert len(os.listdir(store.layout.slots)) == 1


def test_sessions_at_once_have_packs_of_their_own(open_store):
    with Writer(open_store()) as first, Writer(open_store()) as second:
        ids = [first.put(CHUNK, b"first"), second.put(CHUNK, b"second")]
        first.flush()
        second.flush()

    store = open_store()
    assert len(pack_ids(store)) == 2
    assert [store.get(CHUNK, item) for item in ids] == [b"first", b"second"]


def test_an_abandoned_session_leaves_no_snapshot(open_store, record_of):
    with Writer(open_store()) as writer:
        writer.put(ObjectKind.TREE, tree_bytes())

    store = open_store()
    assert list(store.snapshots.all_names()) == []
    assert os.listdir(store.layout.pending) == []


def test_a_session_removes_what_was_left_pending(open_store):
    store = open_store()
    with open(os.path.join(store.layout.pending, "0" * 16), "wb") as file:
        file.write(b"its slot was lost")

    with Writer(store):
        pass

    assert os.listdir(store.layout.pending) == []


def test_an_empty_session_leaves_no_pack(open_store):
    with Writer(open_store()):
        pass

    assert pack_ids(open_store()) == []


def test_a_session_that_fails_to_begin_keeps_no_slot(store):
    with open(store.layout.collector_state, "wb") as file:
        file.write(b"damaged")
    for _ in range(2):
        with pytest.raises(Exception, match="too short"), Writer(store):
            pass

    assert len(os.listdir(store.layout.slots)) == 1


def test_a_hit_in_the_index_without_its_pack_is_not_believed(open_store, put):
    (identity,) = put(b"one")
    store = open_store()
    (pack_id,) = pack_ids(store)
    os.unlink(store.layout.pack(pack_id))

    (again,) = put(b"one")

    assert again == identity
    assert open_store().get(CHUNK, identity) == b"one"


def test_a_hit_in_an_index_that_lies_is_not_believed(open_store, put):
    (one,) = put(b"one")
    identity = object_id(CHUNK, b"two")
    store = open_store()
    place = store.index.find(one)
    store.index.write_part([place._replace(id=identity)], {place.pack_id: place.offset})

    put(b"two")

    assert open_store().get(CHUNK, identity) == b"two"


def test_an_object_in_a_condemned_pack_is_stored_again(fs, open_store, put):
    (identity,) = put(b"one")
    store = open_store()
    (condemned,) = pack_ids(store)
    write_state(fs, store.layout, CollectorState(epoch=1, condemned=frozenset([condemned])))

    put(b"one")

    assert record_ids(open_store()) == [identity, identity]
    assert len(pack_ids(open_store())) == 2


def test_a_torn_tail_is_never_appended_to(open_store, put):
    (first,) = put(b"one")
    store = open_store()
    (pack_id,) = pack_ids(store)
    with open(store.layout.pack(pack_id), "ab") as file:
        file.write(b"TSBK torn")

    (second,) = put(b"two")

    assert len(pack_ids(open_store())) == 2
    assert open_store().get(CHUNK, first) == b"one"
    assert open_store().get(CHUNK, second) == b"two"


def test_records_that_no_part_covers_are_taken_over_when_they_are_right(open_store, put):
    (identity,) = put(b"one")
    store = open_store()
    store.index.remove_parts(list(store.index.parts))

    put(b"two")

    assert open_store().index.find(identity) is not None


def test_a_pack_with_wrong_content_behind_the_index_is_left_alone(open_store, put):
    put(b"one" * 100)
    store = open_store()
    (pack_id,) = pack_ids(store)
    store.index.remove_parts(list(store.index.parts))
    with open(store.layout.pack(pack_id), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")

    (again,) = put(b"one" * 100)

    assert len(pack_ids(open_store())) == 2
    assert open_store().get(CHUNK, again) == b"one" * 100


def test_nothing_is_taken_over_from_a_pack_with_wrong_content(open_store, put):
    """The first record is right and the second is not: neither belongs to the session."""
    put(b"one" * 100, b"two" * 100)
    store = open_store()
    (pack_id,) = pack_ids(store)
    store.index.remove_parts(list(store.index.parts))
    with open(store.layout.pack(pack_id), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")

    (identity,) = put(b"three")

    assert open_store().get(CHUNK, identity) == b"three"
    assert pack_id not in open_store().index.covered()


def test_objects_are_found_without_any_index(open_store, put):
    ids = put(b"one", b"two")
    store = open_store()
    store.index.remove_parts(list(store.index.parts))

    assert [open_store().get(CHUNK, item) for item in ids] == [b"one", b"two"]


def test_many_objects_are_in_the_index_before_the_session_ends(open_store, monkeypatch):
    """Their entries would take more and more memory."""
    monkeypatch.setattr("treesnap.core.store.writer._ENTRIES_MAX", 2)
    with Writer(open_store()) as writer:
        ids = [writer.put(CHUNK, chunk) for chunk in CHUNKS]
        writer.get(CHUNK, ids[-1])

        other = open_store()
        assert [other.index.find(item) is not None for item in ids] == [True] * 4
        assert [other.get(CHUNK, item) for item in ids] == CHUNKS
        assert [writer.get(CHUNK, item) for item in ids] == CHUNKS


def test_a_pack_that_cannot_be_read_is_not_gone_on_with_and_not_left_open(
    open_store, put, store_path
):
    put(b"one")
    store = open_store()
    store.index.remove_parts(list(store.index.parts))
    pack_path = store.layout.pack(*pack_ids(store))
    fault = Fault(
        methods=frozenset({"read_at"}),
        where=lambda call: pack_path in call.paths and call.arguments[1] == size - 16,
        errno=errno.EIO,
    )
    size = os.path.getsize(pack_path)

    with (
        Store.open(FaultyFileSystem(fault, inner=UnsyncedFileSystem()), store_path) as failing,
        Writer(failing) as writer,
    ):
        two = writer.put(CHUNK, b"two")
        writer.flush()

    assert failing.writing_fs.hits_of(fault) == 1
    assert descriptors_of(pack_path) == 0
    assert os.path.getsize(pack_path) == size
    assert open_store().get(CHUNK, two) == b"two"


class TestPublish:
    def test_the_snapshot_is_listed(self, open_store, record_of):
        with Writer(open_store()) as writer:
            tree = writer.put(ObjectKind.TREE, tree_bytes())
            identity, name = writer.publish(record_of(tree), ROOT_ID, 1)

        store = open_store()
        assert list(store.snapshots.all_names()) == [(ROOT_ID, name)]
        assert store.snapshots.load(ROOT_ID, name).id == identity
        assert os.listdir(store.layout.pending) == []

    @pytest.mark.parametrize("raises", [0, 1])
    def test_one_raise_of_the_epoch_is_no_hindrance(self, fs, open_store, record_of, raises):
        store = open_store()
        with Writer(open_store()) as writer:
            tree = writer.put(ObjectKind.TREE, tree_bytes())
            write_state(fs, store.layout, CollectorState(epoch=raises))

            writer.publish(record_of(tree), ROOT_ID, 1)

        assert len(list(store.snapshots.all_names())) == 1

    def test_after_two_raises_nothing_is_published(self, fs, open_store, record_of):
        store = open_store()
        with Writer(open_store()) as writer:
            tree = writer.put(ObjectKind.TREE, tree_bytes())
            write_state(fs, store.layout, CollectorState(epoch=2))

            with pytest.raises(EpochChanged):
                writer.publish(record_of(tree), ROOT_ID, 1)

        assert list(store.snapshots.all_names()) == []
        assert os.listdir(store.layout.pending) == []

    def test_a_session_that_withdraws_leaves_no_pack_in_the_index_that_went_meanwhile(
        self, fs, open_store, record_of
    ):
        """It had the pack open while a collection removed it."""
        store = open_store()
        with Writer(open_store()) as writer:
            tree = writer.put(ObjectKind.TREE, tree_bytes())
            writer.flush()
            (pack_id,) = pack_ids(store)
            os.unlink(store.layout.pack(pack_id))
            write_state(fs, store.layout, CollectorState(epoch=2))

            with pytest.raises(EpochChanged):
                writer.publish(record_of(tree), ROOT_ID, 1)

        assert open_store().missing_packs() == set()

    def test_many_make_few_parts_and_packs(self, open_store, record_of):
        for number in range(60):
            with Writer(open_store()) as writer:
                tree = writer.put(ObjectKind.TREE, tree_bytes(number))
                writer.publish(record_of(tree, number), ROOT_ID, number + 1)
                parts = [name for name in os.listdir(open_store().layout.index) if name != "lock"]
                assert len(parts) <= PARTS_MAX + 1

        store = open_store()
        assert len(pack_ids(store)) == 1
        assert len(record_ids(store)) == 60


def test_added_bytes_is_what_the_pack_grew_by(open_store):
    with Writer(open_store()) as writer:
        writer.put(CHUNK, b"one")
        writer.flush()

        assert (writer.objects_added, writer.added_bytes) == (1, ONE_OBJECT_SIZE + 1 + 3)


class TestLimit:
    LIMIT = 1_000_000

    def test_counts_what_other_sessions_wrote_before_more_is_written(self, open_store):
        with (
            Writer(open_store(), size_bytes_max=self.LIMIT) as first,
            Writer(open_store(), size_bytes_max=self.LIMIT) as second,
        ):
            first.put(CHUNK, Random(10).randbytes(600_000))
            first.flush()
            second.put(CHUNK, Random(11).randbytes(600_000))
            with pytest.raises(StorageFull) as caught:
                second.flush()

        assert caught.value.limit_bytes == self.LIMIT
        assert caught.value.needed_bytes >= 600_000
        assert open_store().size_bytes() < self.LIMIT
