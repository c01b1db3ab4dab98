"""Garbage collection, and what it must never take."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from garbage import add_garbage, pack_files, use_new_pack
from state import tree_state
from treesnap.core.codec.message import pack
from treesnap.core.codec.snapshot import SNAPSHOT
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Entry, EntryKind, ObjectKind, Totals
from treesnap.core.model.errors import Busy, Corrupt
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.ops.access import opened
from treesnap.core.ops.capture import usable_cache
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.space import gc
from treesnap.core.store.collector import CollectorState, read_state, write_state
from treesnap.core.store.index import PARTS_MAX
from treesnap.core.store.lock import held
from treesnap.core.store.store import Store
from treesnap.core.store.writer import EpochChanged, Writer
from treesnap.core.store.writer_slot import acquire
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    Killed,
    RecordingFileSystem,
    WrappedFileSystem,
)

ROOT_ID = "0" * 32
EMPTY_TREE = pack((1, Totals(), 0, ()))


@pytest.fixture
def store(handle, store_path):
    """The store after a first snapshot, open beside the handle."""
    handle.create(name="first")
    with Store.open(LocalFileSystem(), str(store_path)) as store:
        yield store


def tree_record(tree_id) -> SnapshotRecord:
    return SnapshotRecord(
        root=Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, tree_id, None),
        links=None,
        root_path=b"/elsewhere",
        created_at_ns=0,
        totals=Totals(),
    )


def _later_ns() -> int:
    """Returns a time at which no file is so young that captures read it again."""
    return time.time_ns() + 60 * 10**9


def _last(recording: RecordingFileSystem, method: str, path: str) -> int:
    """Returns the number of the last call of a method for a path that has this in it."""
    return max(
        number
        for number, call in enumerate(recording.log)
        if call.method == method and path in call.paths[-1]
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

    def test_small_blocks_of_many_sessions_become_large_ones_once(
        self, handle, store, root, store_path, tmp_path
    ):
        for number in range(40):
            (root / f"added-{number}").write_bytes(b"some words like others %d\n" % number * 9)
            handle.create(name=f"n{number}")
        size_bytes = sum(store.packs.sizes().values())
        state = tree_state(root)

        first, second = handle.gc(), handle.gc()

        assert (first.rewritten_packs, second.rewritten_packs) == (1, 0)
        assert first.removed_objects == 0
        assert sum(store.packs.sizes().values()) < size_bytes / 4
        handle.restore("n39", to=tmp_path / "out")
        assert tree_state(tmp_path / "out") == state

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

    def test_the_index_forgets_a_pack_that_another_process_removed(self, handle, store, store_path):
        store.index.write_part([], {b"p" * 16: 100})

        handle.gc()

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert not again.missing_packs()

    @pytest.mark.parametrize("is_automatic", [False, True])
    def test_a_capture_stores_again_what_was_in_a_lost_pack_that_the_index_forgot(
        self, make_handle, store, store_path, tmp_path, is_automatic
    ):
        """Its trees are in another pack: so no automatic collection meets damage."""
        flat = tmp_path / "flat"
        flat.mkdir()
        handle = make_handle(root=flat, clock_ns=_later_ns)
        use_new_pack(store_path)
        before = pack_files(store_path)
        (flat / "one").write_bytes(os.urandom(500))
        handle.create(name="one")
        (lost,) = pack_files(store_path) - before
        use_new_pack(store_path)
        (flat / "two").write_bytes(os.urandom(500))
        handle.create(name="two")
        handle.delete("one")
        (store_path / "packs" / lost).unlink()

        gc(handle.context, dry_run=False, is_automatic=is_automatic)
        made = handle.create()

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert not again.missing_packs()
        handle.restore(made.snapshot.id, to=tmp_path / "back")
        assert tree_state(tmp_path / "back") == tree_state(flat)

    def test_the_index_names_a_lost_pack_as_long_as_another_process_works_in_a_root(
        self, handle, make_handle, store, store_path
    ):
        """It may have read the stat cache, and writes another one when it ends."""
        os.unlink(store.layout.pack(*store.packs.sizes()))
        with store.root(os.fsencode(handle.root)).locked("create", 0.0):
            result = make_handle(wait_s=0.0).gc()

        assert "the index names lost packs: " in (result.postponed or "")
        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert again.missing_packs()

    def test_the_index_forgets_packs_that_are_gone_although_writers_merged_it_meanwhile(
        self, make_handle, handle, store, root, store_path, tmp_path
    ):
        """Else no capture would rely on a stat cache, until the next collection."""
        (tmp_path / "other").mkdir()
        other = make_handle(root=tmp_path / "other")
        add_garbage(handle, root, store_path)

        def others() -> None:
            for number in range(PARTS_MAX + 1):
                (tmp_path / "other" / "file").write_bytes(b"%d" % number * 200)
                other.create()

        assert make_handle(fs=Meanwhile(1, others)).gc().removed_packs

        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert not again.missing_packs()
            assert set(again.index.covered()) == set(again.packs.sizes())

    def test_pinned_or_not_every_snapshot_counts(self, handle, store, root, store_path):
        (root / "one").write_bytes(b"changed")
        handle.create(name="second")

        handle.gc()

        handle.restore("first")
        assert (root / "one").read_bytes() == b"one"

    def test_large_attributes_of_a_root_and_of_a_file_are_kept(
        self, handle, root, store_path, tmp_path
    ):
        values = {"": b"r" * 4040, "one": b"f" * 4040}
        try:
            for path, value in values.items():
                os.setxattr(root / path, "user.a", value[:60])
                os.setxattr(root / path, "user.b", value)
        except OSError as error:
            pytest.skip(f"no attributes here: {error}")
        handle.create(name="kept")
        (root / "garbage").write_bytes(os.urandom(50_000))
        handle.create(name="garbage")
        handle.delete("garbage")

        assert handle.gc().removed_objects > 0

        handle.restore("kept", to=tmp_path / "out")
        for path, value in values.items():
            assert os.getxattr(tmp_path / "out" / path, "user.b") == value


class TestWriters:
    """What collections and sessions do to each other; see treesnap.core.store.collector."""

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
            tree = writer.put(ObjectKind.TREE, pack((1, Totals(5), 0, ())))
            handle.gc()

            with pytest.raises(EpochChanged):
                writer.publish(tree_record(tree), ROOT_ID, 1)

    def test_a_session_publishes_nothing_when_an_older_state_was_put_back(
        self, handle, store, root, store_path
    ):
        """It relies on what the collection takes, and the epoch is lower than at its beginning."""
        handle.gc()
        old = store_path / "collector/state"
        before = old.read_bytes() if old.exists() else None
        for _ in range(3):
            add_garbage(handle, root, store_path)
            handle.gc()
        with Writer(store) as writer:
            tree = writer.put(ObjectKind.TREE, EMPTY_TREE)
            writer.flush()
        use_new_pack(store_path)
        with Store.open(LocalFileSystem(), str(store_path)) as other, Writer(other) as writer:
            assert writer.put(ObjectKind.TREE, EMPTY_TREE) == tree
            old.unlink() if before is None else old.write_bytes(before)

            assert handle.gc().removed_objects

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

    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("takes", ["nothing", "what was added"])
    def test_what_was_added_before_it_was_overtaken_is_counted(
        self, make_handle, store, root, store_path, tmp_path, takes, times
    ):
        class Overtaken(WrappedFileSystem):
            left = times

            def around(self, call: Call):
                result = call.proceed()
                if call.method == "rename" and "pending" in call.paths[1] and self.left:
                    self.left -= 1
                    state = read_state(store.fs, store.layout)
                    packs = [bytes.fromhex(name) for name in pack_files(store_path)]
                    condemned = frozenset(packs if takes == "what was added" else ())
                    write_state(
                        store.fs,
                        store.layout,
                        CollectorState(epoch=state.epoch + 2, condemned=condemned),
                    )
                return result

        make_handle().create()
        shutil.copytree(store_path, tmp_path / "same")
        (root / "one").write_bytes(os.urandom(100_000))
        (root / "two").write_bytes(os.urandom(100_000))
        alone = Handle(context_at(root=root, store_path=str(tmp_path / "same"))).create(name="x")

        result = make_handle(fs=Overtaken()).create(name="x")

        if takes == "nothing":
            assert result.stats.objects_added == alone.stats.objects_added
            assert result.stats.added_bytes == alone.stats.added_bytes
        else:  # all that the store has is written again, once
            assert result.stats.added_bytes < alone.stats.added_bytes + 20_000
        assert result.stats.added_bytes > 200_000
        assert make_handle().resolve("x").record.added_bytes == result.stats.added_bytes

    def test_a_pack_that_is_added_to_while_others_are_read_is_spared(
        self, make_handle, root, store_path, tmp_path
    ):
        """Nothing in the pack was needed until a whole capture came and went."""
        (tmp_path / "other").mkdir()
        other = make_handle(root=tmp_path / "other")
        make_handle().create()
        add_garbage(make_handle(), root, store_path)
        with Store.open(LocalFileSystem(), str(store_path)) as store:
            garbage = min(store.packs.sizes().items(), key=lambda item: -item[1])[0]
            slot = acquire(store.fs, store.layout)
            slot.write(0, garbage)
            slot.release()
        (tmp_path / "other/new").write_bytes(b"new" * 1000)

        class Between(WrappedFileSystem):
            """Takes the snapshot when the first pack was read."""

            is_new = True

            def around(self, call: Call):
                result = call.proceed()
                if call.method == "read_at" and call.path.endswith(garbage.hex()) and self.is_new:
                    self.is_new = False
                    other.create()
                return result

        fs = Between()
        gc(make_handle(fs=fs).context, dry_run=False)

        assert not fs.is_new
        assert other.verify(read_data=True).problems == ()

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
                gc(collecting.context, dry_run=False)
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
        fault = Fault(methods=frozenset({"unlink"}), where=lambda call: "packs" in call.path)
        with pytest.raises(Killed):
            make_handle(fs=FaultyFileSystem(fault)).gc()
        assert read_state(store.fs, store.layout).condemned

        handle.gc()

        assert read_state(store.fs, store.layout).condemned == frozenset()
        assert len(pack_files(store_path)) == 1

    def test_a_collection_at_work_is_not_told_to_be_interrupted(
        self, handle, make_handle, store, root, store_path
    ):
        add_garbage(handle, root, store_path)
        told = []
        meanwhile = Meanwhile(2, lambda: told.append(handle.doctor().unfinished))

        make_handle(fs=meanwhile).gc()

        assert told == [()]
        assert handle.doctor().unfinished == ()

    def test_after_a_dead_collection_no_capture_reads_every_file(
        self, handle, make_handle, store, root, store_path
    ):
        """It had removed packs, and not yet written the index, which names them."""
        add_garbage(handle, root, store_path)
        handle.create()
        fault = Fault(methods=frozenset({"rename"}), where=lambda call: "/index/" in call.paths[1])
        with pytest.raises(Killed):
            make_handle(fs=FaultyFileSystem(fault)).gc()
        with opened(handle.context, "look", recover=False) as session:
            assert session.store.missing_packs()
            assert usable_cache(session) is not None

            os.unlink(store.layout.pack(*store.packs.sizes()))
            assert usable_cache(session) is None

    def test_after_two_dead_collections_no_capture_reads_every_file(
        self, handle, make_handle, store, root, store_path
    ):
        """What the first one removed is not lost because the second one condemns something else."""
        fault = Fault(methods=frozenset({"rename"}), where=lambda call: "/index/" in call.paths[1])
        for _ in range(2):
            add_garbage(handle, root, store_path)
            handle.create()
            with pytest.raises(Killed):
                make_handle(fs=FaultyFileSystem(fault)).gc()

        with opened(handle.context, "look", recover=False) as session:
            assert len(session.store.missing_packs()) == 2
            assert usable_cache(session) is not None

    def test_no_power_cut_brings_back_an_index_part_that_names_what_was_removed(
        self, handle, make_handle, store, root, store_path
    ):
        """The directory is synced after the part went, and before that pack would count as lost."""
        add_garbage(handle, root, store_path)
        recording = RecordingFileSystem()

        make_handle(fs=recording).gc()

        removed = _last(recording, "unlink", "/index/")
        synced = _last(recording, "sync", "/index")
        pardoned = _last(recording, "rename", "collector/state")
        assert removed < synced < pardoned

    def test_a_failed_collection_pardons_what_it_condemned(
        self, handle, make_handle, store, root, store_path
    ):
        add_garbage(handle, root, store_path)
        fault = Fault(
            methods=frozenset({"unlink"}), errno=5, where=lambda call: "packs" in call.path
        )
        with pytest.raises(Exception, match="Input/output error"):
            make_handle(fs=FaultyFileSystem(fault)).gc()

        assert read_state(store.fs, store.layout).condemned == frozenset()
        assert len(pack_files(store_path)) == 2

    @pytest.mark.parametrize("is_free", [True, False])
    def test_after_a_failed_collection_no_capture_reads_every_file(
        self, handle, make_handle, root, store_path, is_free
    ):
        """Of two packs it removed one; the index forgets that, or it stays condemned."""
        handle.create(name="first")
        add_garbage(handle, root, store_path)
        add_garbage(handle, root, store_path)
        handle.create()
        fault = Fault(
            methods=frozenset({"unlink"}), errno=5, number=2, where=lambda it: "packs" in it.path
        )
        plain, failing = LocalFileSystem(), make_handle(fs=FaultyFileSystem(fault))
        with open(store_path / "index" / "lock", "wb") as lock:
            assert is_free or plain.lock(lock.fileno(), exclusive=True)
            with pytest.raises(Exception, match="Input/output error"):
                failing.gc()

        with opened(handle.context, "look", recover=False) as session:
            assert bool(session.store.missing_packs()) == (not is_free)
            assert usable_cache(session) is not None
        handle.gc()
        with Store.open(LocalFileSystem(), str(store_path)) as again:
            assert not again.missing_packs()
            assert read_state(again.fs, again.layout).condemned == frozenset()

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
        store.snapshots.write_pending(str(pending), SNAPSHOT.payload(tree_record(tree)))
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
        (store_path / "pending" / "README").write_bytes(b"of another program")

        handle.gc()

        assert os.listdir(store_path / "pending") == ["README"]
