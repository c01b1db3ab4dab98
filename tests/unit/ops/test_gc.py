"""Garbage collection, and what it must never take."""

from __future__ import annotations

import os

import pytest

from treesnap.errors import Busy, Corrupt
from treesnap.fs.local import LocalFileSystem
from treesnap.model import Entry, EntryKind, ObjectKind, SnapshotRecord, Totals
from treesnap.ops.gc import gc
from treesnap.store.collector import CollectorState, read_state, write_state
from treesnap.store.lock import held
from treesnap.store.store import Store
from treesnap.store.writer import EpochChanged, Writer
from treesnap.testing.faulty import Fault, FaultyFileSystem
from treesnap.testing.state import tree_state
from treesnap.testing.wrapped import Call, WrappedFileSystem

ROOT_ID = "0" * 32
EMPTY_TREE = b"\x93\x00\x96\x00\x00\x00\x00\x00\x00\x90"


@pytest.fixture
def store(handle, store_path):
    """The store after a first snapshot, open beside the handle."""
    handle.create(name="first")
    with Store.open(LocalFileSystem(), str(store_path)) as store:
        yield store


def pack_files(store_path) -> set[str]:
    return set(os.listdir(store_path / "packs"))


def use_new_pack(store_path) -> None:
    """Lets the next writer begin a pack of its own."""
    for slot in (store_path / "slots").iterdir():
        slot.unlink()


def add_garbage(handle, root, store_path, size: int = 5000) -> None:
    """Makes a pack that nothing needs."""
    use_new_pack(store_path)
    (root / "garbage").write_bytes(os.urandom(size))
    handle.create(name="garbage")
    (root / "garbage").unlink()
    handle.delete("garbage")
    use_new_pack(store_path)


def add_garbage_to_pack(handle, root) -> None:
    """Appends what nothing needs to the one pack."""
    (root / "garbage").write_bytes(os.urandom(5000))
    status = root.stat()
    handle.create(name="garbage")
    (root / "garbage").unlink()
    os.utime(root, ns=(status.st_atime_ns, status.st_mtime_ns))
    handle.delete("garbage")


def tree_record(tree_id) -> SnapshotRecord:
    return SnapshotRecord(
        root=Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, tree_id, None),
        links=None,
        root_path=b"/elsewhere",
        created_at_ns=0,
        totals=Totals(),
    )


class Meanwhile(WrappedFileSystem):
    """Does something just before the n-th replacement of the collector's state."""

    def __init__(self, number: int, action) -> None:
        super().__init__()
        self.left = number
        self.action = action

    def around(self, call: Call):
        if call.method == "rename" and call.paths[1].endswith("collector/state"):
            self.left -= 1
            if self.left == 0:
                self.action()
        return call.proceed()


class TestSpace:
    def test_a_store_without_garbage_is_left_alone(self, handle, store, store_path):
        before = pack_files(store_path)

        result = handle.gc()

        assert (result.freed_bytes, result.removed_objects, result.removed_packs) == (0, 0, 0)
        assert pack_files(store_path) == before

    def test_a_pack_that_nothing_needs_goes(self, handle, store, root, store_path):
        before = pack_files(store_path)
        add_garbage(handle, root, store_path)

        result = handle.gc()

        assert pack_files(store_path) == before
        assert result.removed_packs == 1
        assert result.freed_bytes > 5000

    def test_a_pack_that_is_mostly_waste_is_rewritten(self, handle, store, root, store_path):
        (root / "garbage").write_bytes(os.urandom(50_000))
        handle.create(name="garbage")
        (root / "garbage").unlink()
        handle.delete("garbage")
        size = handle.stats().disk_bytes

        result = handle.gc()

        assert result.rewritten_packs == 1
        assert size - handle.stats().disk_bytes >= 50_000
        assert handle.verify(read_data=True).ok

    def test_a_dry_run_says_the_same_and_removes_nothing(self, handle, store, root, store_path):
        add_garbage(handle, root, store_path)
        before = pack_files(store_path)

        planned = handle.gc(dry_run=True)

        assert pack_files(store_path) == before
        done = handle.gc()
        assert (planned.freed_bytes, planned.removed_objects) == (
            done.freed_bytes,
            done.removed_objects,
        )
        assert planned.dry_run

    def test_the_index_forgets_packs_that_are_gone(self, handle, store, root, store_path):
        add_garbage(handle, root, store_path)

        handle.gc()

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert set(again.index.covered()) == set(again.packs.sizes())

    @pytest.mark.parametrize("how", ["lost", "torn"])
    def test_the_index_covers_again_what_it_lost(self, handle, store, store_path, how):
        sizes = store.packs.sizes()
        for part in (store_path / "index").iterdir():
            part.unlink() if how == "lost" else part.write_bytes(bytes(100))

        handle.gc()

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert (again.index.covered(), again.index.damaged) == (sizes, {})
            assert len(list(*again.index.parts.values())) == handle.stats().objects

    def test_the_index_forgets_a_pack_that_somebody_removed(self, handle, store, store_path):
        store.index.write_part([], {b"p" * 16: 100})

        handle.gc()

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert again.has_all_packs()

    def test_pinned_or_not_every_snapshot_counts(self, handle, store, root, store_path):
        (root / "one").write_bytes(b"changed")
        handle.create(name="second")

        handle.gc()

        handle.restore("first")
        assert (root / "one").read_bytes() == b"one"


class TestDamage:
    def test_nothing_goes_when_a_snapshot_cannot_be_read(self, handle, store, root, store_path):
        add_garbage(handle, root, store_path)
        before = pack_files(store_path)
        (snapshot,) = (store_path / "snapshots").glob("*/*")
        snapshot.write_bytes(b"damaged")

        with pytest.raises(Corrupt):
            handle.gc()

        assert pack_files(store_path) == before

    def test_a_damaged_pack_is_left_alone_with_all_it_holds(self, handle, store, root, store_path):
        """One byte of one record is wrong; nothing else is lost by collecting."""
        (root / "garbage").write_bytes(os.urandom(50_000))
        handle.create(name="garbage")
        (root / "garbage").unlink()
        handle.delete("garbage")
        (pack_id,) = store.packs.sizes()
        record = store.packs.scan(pack_id)[0][0]
        with open(store.layout.pack(pack_id), "r+b") as file:
            file.seek(record.offset)
            file.write(b"X")

        result = handle.gc()

        assert result.postponed == "1 pack is damaged"
        assert os.path.exists(store.layout.pack(pack_id))
        problems = handle.verify(read_data=True).problems
        assert {problem.where for problem in problems if problem.paths} == {record.id.hex()}

    @pytest.mark.parametrize("is_covered", [True, False])
    @pytest.mark.parametrize("number", [0, 1, -1])
    def test_a_damaged_record_that_nothing_needs_goes_with_its_pack(
        self, handle, store, root, store_path, number, is_covered
    ):
        """The pack goes, and what is needed of it stays; also when it was never synced."""
        state = tree_state(root)
        for _ in range(3):
            add_garbage_to_pack(handle, root)
        (pack_id,) = store.packs.sizes()
        store.index.refresh()
        needed = {item.id for item in store.packs.scan(pack_id)[0][:4]}
        records = [item for item in store.packs.scan(pack_id)[0] if item.id not in needed]
        record = records[number]
        with open(store.layout.pack(pack_id), "r+b") as file:
            file.seek(record.offset)
            file.write(bytes(record.end - record.offset))
        if not is_covered:
            store.index.remove_parts(list(store.index.parts))

        result = handle.gc()

        assert (result.postponed, result.rewritten_packs) == (None, 1)
        assert not os.path.exists(store.layout.pack(pack_id))
        assert handle.verify(read_data=True).ok
        handle.restore("first")
        assert tree_state(root) == state

    def test_a_torn_pack_that_nothing_needs_goes(self, handle, store, root, store_path):
        before = pack_files(store_path)
        torn = store_path / "packs" / ("a" * 32)
        torn.write_bytes(bytes(1000))

        result = handle.gc()

        assert (result.postponed, result.removed_packs) == (None, 1)
        assert pack_files(store_path) == before

    def test_a_torn_pack_stays_while_something_needed_is_missing(
        self, handle, store, root, store_path
    ):
        (pack_id,) = store.packs.sizes()
        record = store.packs.scan(pack_id)[0][0]
        with open(store.layout.pack(pack_id), "r+b") as file:
            file.seek(record.offset)
            file.write(b"X")
        torn = store_path / "packs" / ("a" * 32)
        torn.write_bytes(bytes(1000))

        result = handle.gc()

        assert result.postponed == "2 packs are damaged"
        assert torn.exists()

    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_two_copies_the_right_one_stays(self, handle, store, root, is_first):
        """Whichever of the two packs is seen first."""
        state = tree_state(root)
        (pack_id,) = store.packs.sizes()
        twin = b"t" * 16
        with open(store.layout.pack(pack_id), "rb") as file:
            content = file.read()
        with open(store.layout.pack(twin), "wb") as file:
            file.write(content)
        entries = [entry._replace(pack_id=twin) for entry in store.index.entries_of(pack_id)]
        store.index.write_part(entries, {twin: len(content)})
        with open(store.layout.pack(list(store.packs.sizes())[not is_first]), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")

        handle.gc()

        handle.verify(repair=True)
        assert handle.verify(read_data=True).ok
        handle.restore("first")
        assert tree_state(root) == state


class TestWriters:
    """What collections and sessions do to each other; see treesnap.store.collector."""

    def test_a_pack_that_is_written_to_is_left_alone(self, handle, store, store_path):
        with Writer(store) as writer:
            writer.put(ObjectKind.CHUNK, b"not needed yet")
            writer.flush()

            result = handle.gc()

            assert result.postponed == "1 pack is being written to"
            assert result.removed_packs == 0

    def test_a_session_that_was_overtaken_does_not_publish(self, handle, store, root, store_path):
        add_garbage(handle, root, store_path)
        with Store.open(LocalFileSystem(), str(store_path)) as other, Writer(other) as writer:
            tree = writer.put(ObjectKind.TREE, b"tree")
            handle.gc()

            with pytest.raises(EpochChanged):
                writer.publish(tree_record(tree), ROOT_ID, 1)

    def test_a_create_that_was_overtaken_does_its_capture_again(
        self, make_handle, store, root, store_path
    ):
        """Two raises come between the capture and its publication, once."""

        class Overtaken(WrappedFileSystem):
            is_new = True

            def around(self, call: Call):
                result = call.proceed()
                if call.method == "rename" and "pending" in call.paths[1] and self.is_new:
                    self.is_new = False
                    state = read_state(store.fs, store.layout)
                    write_state(store.fs, store.layout, CollectorState(epoch=state.epoch + 2))
                return result

        (root / "one").write_bytes(b"changed")

        result = make_handle(fs=Overtaken()).create(name="second")

        assert make_handle().list()[0].id == result.id
        assert make_handle().verify(read_data=True).ok

    @pytest.mark.parametrize("raised", [1, 2])
    def test_a_condemned_pack_that_is_needed_again_is_spared(
        self, make_handle, store, root, store_path, raised
    ):
        """A session began before the collection, finds its objects in a condemned pack,
        and publishes before the first raise of the epoch, or between both."""
        handle = make_handle()
        use_new_pack(store_path)
        with Writer(store) as writer:
            wanted = writer.put(ObjectKind.TREE, EMPTY_TREE)
            writer.flush()
        with Store.open(LocalFileSystem(), str(store_path)) as other:
            session = Writer(other)
            session.__enter__()
            assert session.put(ObjectKind.TREE, EMPTY_TREE) == wanted
            assert session.objects_added == 0

            def publish() -> None:
                session.publish(tree_record(wanted), ROOT_ID, 1)

            collecting = make_handle(fs=Meanwhile(raised, publish))
            try:
                gc(collecting, dry_run=False)
            finally:
                session.__exit__(None, None, None)

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert again.has(wanted)
        assert handle.list() != ()

    def test_two_collections_at_once_take_turns(self, make_handle, handle, store, store_path):
        lock = held(
            LocalFileSystem(),
            store.layout.collector_lock,
            operation="gc",
            what="it",
            wait_s=0,
        )

        with lock, pytest.raises(Busy, match="gc"):
            handle.gc()


class TestLeftovers:
    def test_a_dead_collection_does_not_stop_the_next(
        self, handle, make_handle, store, root, store_path
    ):
        add_garbage(handle, root, store_path)
        fault = Fault(
            methods=frozenset({"unlink"}), errno=5, where=lambda call: "packs" in call.path
        )
        with pytest.raises(Exception, match="Input/output error"):
            make_handle(fs=FaultyFileSystem(fault)).gc()
        assert read_state(store.fs, store.layout).condemned

        handle.gc()

        assert read_state(store.fs, store.layout).condemned == frozenset()
        assert len(pack_files(store_path)) == 1

    def test_what_a_dead_collection_condemned_is_pardoned_when_it_is_needed(self, handle, store):
        condemned = frozenset(store.packs.sizes())
        write_state(store.fs, store.layout, CollectorState(epoch=3, condemned=condemned))

        handle.gc()

        assert read_state(store.fs, store.layout) == CollectorState(epoch=3)
        assert handle.doctor().unfinished == ()

    def test_a_snapshot_that_a_dead_writer_left_pending_goes(self, handle, store, store_path):
        with Writer(store) as writer:
            slot = writer._slot.name
        (store_path / "pending" / slot).write_bytes(b"half a snapshot")

        handle.gc()

        assert os.listdir(store_path / "pending") == []

    @pytest.mark.parametrize("is_readable", [True, False])
    def test_a_pending_snapshot_whose_slot_was_lost_goes(
        self, handle, store, store_path, is_readable
    ):
        """It needs nothing any more: what it alone refers to is given back."""
        use_new_pack(store_path)
        with Writer(store) as writer:
            tree = writer.put(ObjectKind.TREE, EMPTY_TREE)
            writer.flush()
        pending = store_path / "pending" / ("a" * 16)
        store.snapshots.write_pending(str(pending), tree_record(tree))
        if not is_readable:
            pending.write_bytes(b"half a snapshot")

        result = handle.gc()

        assert os.listdir(store_path / "pending") == []
        assert result.removed_packs == 1

    def test_a_pending_snapshot_of_a_writer_that_lives_stops_it_when_unreadable(
        self, handle, store, root, store_path
    ):
        add_garbage(handle, root, store_path)
        before = pack_files(store_path)
        with Writer(store) as writer:
            path = store_path / "pending" / writer._slot.name
            path.write_bytes(b"half a snapshot")

            with pytest.raises(Corrupt):
                handle.gc()

            assert path.exists()
        assert pack_files(store_path) == before

    def test_a_file_that_no_writer_left_pending_is_left_alone(self, handle, store, store_path):
        (store_path / "pending" / "README").write_bytes(b"of somebody else")

        handle.gc()

        assert os.listdir(store_path / "pending") == ["README"]
