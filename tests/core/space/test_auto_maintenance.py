"""A store that keeps itself small: automatic pruning, quotas, full disks.

The trees and the disks are real, and a snapshot is counted as kept when its files come back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from random import Random

import pytest

import treesnap
from calling import Place
from changing import World
from mounting import mounting
from oracle import difference, record
from sampling import sized
from treesnap import CollectingMonitor, CreateOptions, ErrorCode, SnapshotKind, StorageFull
from treesnap.testing.doubles import Fault, FaultyFileSystem

pytestmark = pytest.mark.sampled(12)

DAY_NS = 86_400 * 10**9
OVER_QUOTA = 8


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class TestPolicy:
    def test_old_automatic_snapshots_go_without_being_asked(self, world):
        for _ in range(sized(64, 96)):
            world.change(100)
            world.now_ns += 60 * 10**9
            world.create()

        assert 50 <= len(world.ids()) < 64

    def test_steps_of_a_session_leave_a_bounded_store(self, world):
        handle = world.handle
        handle.create(session="s1", step=0, kind=SnapshotKind.MANUAL)
        handle.create(session="s1", step=1, name="named")
        for number in range(2, sized(130, 2000)):
            world.change(100)
            world.now_ns += 60 * 10**9
            handle.create(session="s1", step=number)

        found = handle.list()
        files = sum(len(names) for _, _, names in os.walk(world.store))
        assert (len(found) < 128, files < 200) == (True, True)
        assert {item.record.step for item in found} >= {0, 1}

    def test_what_was_made_by_hand_never_goes(self, world):
        by_hand = []
        for number in range(96):
            world.change(100)
            kind = SnapshotKind.RUN if number % 4 else SnapshotKind.MANUAL
            made = world.create(kind)
            if kind == SnapshotKind.MANUAL:
                by_hand.append(made)

        assert set(by_hand) <= set(world.ids())
        assert len(world.ids()) < 96

    def test_can_be_turned_off(self, world):
        world.handle.config("automatic", "false")
        for _ in range(64):
            world.change(100)
            world.create()

        assert len(world.ids()) == 64

    def test_that_is_set_for_the_root_holds_for_it_alone(self, world, tmp_path):
        other = treesnap.open(tmp_path / "other", world.store)
        (tmp_path / "other").mkdir()
        world.handle.config("keep.last", "5", for_root=True)
        for key in ("keep.hourly", "keep.daily", "keep.weekly"):
            world.handle.config(key, "0")
        for number in range(64):
            world.change(100)
            world.create()
            (tmp_path / "other/file").write_text(str(number))
            other.create(kind=SnapshotKind.RUN)

        assert len(world.ids()) == 5
        assert len(other.list()) == 50

    def test_restores_are_thinned_out_and_the_newest_can_be_undone(self, world):
        world.handle.config("keep.last", "3")
        for key in ("keep.hourly", "keep.daily", "keep.weekly"):
            world.handle.config(key, "0")
        target = world.create(SnapshotKind.MANUAL)
        for _ in range(40):
            world.change(100)
            before = record(world.root)
            world.handle.restore(target)

        assert len(world.ids()) < 20
        world.handle.undo()
        assert difference(before, record(world.root)) == []

    def test_the_snapshot_that_undo_goes_to_outlives_any_number_of_checkpoints(self, world):
        target = world.create(SnapshotKind.MANUAL)
        world.change(100)
        before = record(world.root)
        world.handle.restore(target)
        world.handle.config("keep.last", "1")
        for _ in range(64):
            world.now_ns += 40 * DAY_NS
            world.change(100, "other")
            world.create()
        (world.root / "other").unlink()

        world.handle.undo()

        assert difference(before, record(world.root)) == []

    def test_a_root_in_which_a_process_works_is_left_for_the_next_time(self, world):
        world.handle.config("keep.last", "1")
        for _ in range(31):
            world.change(100)
            world.create()
        monitor = CollectingMonitor()
        lock = world.store / "collector/lock"
        lock.touch()
        fd = os.open(lock, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            world.handle.context = world.handle.context._replace(monitor=monitor)
            world.change(100)
            world.create()
        finally:
            os.close(fd)

        assert monitor.warnings == []
        assert len(world.ids()) < 32

    def test_an_error_of_it_is_a_remark_and_fails_no_snapshot(self, world):
        for _ in range(31):
            world.create()
        fault = Fault(
            errno=errno.EIO,
            methods=frozenset({"unlink"}),
            where=lambda call: "/snapshots/" in call.path,
        )
        world.handle.config("keep.last", "1")
        world.handle.context = world.handle.context._replace(fs=FaultyFileSystem(fault))
        world.handle.context = world.handle.context._replace(monitor=CollectingMonitor())

        newest = world.create()

        assert world.handle.context.fs.hits_of(fault) == 1
        (said,) = world.handle.context.monitor.warnings
        assert said.startswith("The maintenance of the store failed: ")
        assert "Input/output error" in said
        assert newest == world.ids()[0]


class TestGrowth:
    @pytest.mark.parametrize(
        "count",
        [sized(120, 320), pytest.param(10_000, marks=pytest.mark.slow)],
        ids=["few", "many"],
    )
    def test_of_a_changing_tree_stays_within_the_cap(self, world, count):
        """Store size, number of files and the calls of a create do not grow with the number."""
        cap = 4 << 20
        world.handle.config("max-size", str(cap))
        for number in range(20):
            world.change(20_000, f"still-{number}")
        fs = world.recorded()
        calls = []
        sizes = []
        for number in range(count):
            world.now_ns += 60 * 10**9
            world.change(60_000)
            fs.clear()
            world.create()
            if number % 32 not in (31, 0):
                calls.append(len(fs.log))
            sizes.append(world.disk_bytes())

        assert max(sizes) <= 1.1 * cap
        assert world.files() < 60 + 2 * len(world.ids())
        assert sorted(calls[-50:])[25] <= 2 * sorted(calls[:50])[25]
        newest = record(world.root)
        shutil.rmtree(world.root)
        world.handle.restore("latest")
        assert difference(newest, record(world.root)) == []

    def test_garbage_is_collected_once_the_packs_have_grown(self, world, monkeypatch):
        monkeypatch.setattr("treesnap.core.ops.maintenance.space.GROWTH_BYTES_MIN", 1 << 20)
        world.handle.config("keep.last", "2")
        for key in ("keep.hourly", "keep.daily", "keep.weekly"):
            world.handle.config(key, "0")

        largest = 0
        for _ in range(sized(96, 256)):
            world.change(100_000)
            world.create()
            largest = max(largest, world.disk_bytes())

        assert largest < 8 << 20
        assert world.handle.verify(read_data=True).ok


class TestQuota:
    def test_a_snapshot_that_does_not_fit_is_refused_and_leaves_nothing(self, world):
        world.change(100_000)
        world.create(SnapshotKind.MANUAL)
        before = world.disk_bytes()
        world.change(900_000)

        with pytest.raises(StorageFull) as caught:
            world.create(SnapshotKind.MANUAL, options=CreateOptions(max_size_bytes=500_000))

        assert caught.value.code == ErrorCode.OVER_QUOTA
        assert len(world.ids()) == 1
        assert world.disk_bytes() <= before + 1000
        assert world.handle.verify(read_data=True).ok

    def test_old_automatic_snapshots_make_room(self, world):
        world.handle.config("max-size", "1M")
        by_hand = world.create(SnapshotKind.MANUAL)
        for _ in range(30):
            world.change(100_000)
            newest = world.create()
            assert world.disk_bytes() < 1.2 * (1 << 20)

        assert newest == world.ids()[0]
        assert by_hand == world.ids()[-1]
        assert 3 < len(world.ids()) < 12

    def test_those_of_other_roots_make_room_too(self, world, tmp_path):
        (tmp_path / "other").mkdir()
        other = treesnap.open(tmp_path / "other", world.store)
        for number in range(8):
            (tmp_path / "other/file").write_bytes(Random(100 + number).randbytes(100_000))
            other.create(kind=SnapshotKind.RUN)
        newest = record(tmp_path / "other")
        world.change(600_000)

        world.create(SnapshotKind.MANUAL, options=CreateOptions(max_size_bytes=None))
        world.handle.config("max-size", "1M")
        world.change(200_000, "second")
        world.create(SnapshotKind.MANUAL)

        assert 1 <= len(other.list()) < 8
        shutil.rmtree(tmp_path / "other")
        other.restore("latest")
        assert difference(newest, record(tmp_path / "other")) == []

    def test_nothing_makes_room_where_that_is_turned_off(self, world):
        world.handle.config("automatic", "false")
        world.handle.config("max-size", "500K")
        for _ in range(4):
            world.change(100_000)
            world.create()
        world.change(200_000)

        with pytest.raises(StorageFull):
            world.create()

        assert len(world.ids()) == 4

    def test_does_not_stand_in_the_way_of_a_restore(self, world):
        world.change(400_000)
        target = world.create(SnapshotKind.MANUAL)
        before = record(world.root)
        world.handle.config("max-size", "500K")
        world.change(400_000)

        world.handle.restore(target)

        assert difference(before, record(world.root)) == []

    def test_a_collection_that_is_busy_makes_no_room_and_says_so(self, world):
        world.handle.context = world.handle.context._replace(wait_s=0.0)
        world.create()
        monitor = CollectingMonitor()
        world.handle.context = world.handle.context._replace(monitor=monitor)
        world.change(100_000)

        with open(world.store / "collector/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(StorageFull) as caught:
                world.create(options=CreateOptions(max_size_bytes=1))

        assert caught.value.code == ErrorCode.OVER_QUOTA
        (said,) = monitor.warnings
        assert said.startswith("The maintenance of the store failed: ")
        assert len(world.ids()) == 1

    def test_is_said_on_the_command_line(self, tmp_path):
        place = Place(tmp_path / "root", tmp_path / "store")
        place.make("file")
        (place.root / "file").write_bytes(Random(1).randbytes(100_000))

        ended = place.snap("create", "--max-size", "10K")

        assert ended.code == OVER_QUOTA
        assert "may take 10K" in ended.err
        assert "snap config max-size" in ended.err
        assert place.snap("create", "--max-size", "1M").code == 0


class TestFullDisk:
    def test_without_room_for_a_store_there_is_nothing_to_tidy(self, world):
        fault = Fault(errno=errno.ENOSPC, methods=frozenset({"make_directory"}), lasting=True)
        world.handle.context = world.handle.context._replace(fs=FaultyFileSystem(fault))
        world.handle.context = world.handle.context._replace(monitor=CollectingMonitor())

        with pytest.raises(StorageFull, match="Could not take a snapshot"):
            world.create()

        assert world.handle.context.monitor.warnings == []
        assert not world.store.exists()

    def test_automatic_snapshots_make_room(self, tmp_path, monkeypatch):
        monkeypatch.setattr("treesnap.core.store.packs.PACK_SIZE_TARGET", 512 << 10)
        with mounting() as mount:
            mount.tmpfs(tmp_path / "disk", "3m")
            place = Place(tmp_path / "root", tmp_path / "disk/store")
            place.make("file")
            handle = treesnap.open(place.root, place.store)
            handle.config("keep.last", "2")
            for key in ("keep.hourly", "keep.daily", "keep.weekly"):
                handle.config(key, "0")
            for number in range(20):
                (place.root / "file").write_bytes(Random(number).randbytes(200_000))
                handle.create(kind=SnapshotKind.RUN)
            newest = record(place.root)

            assert 2 <= len(handle.list()) < 20
            shutil.rmtree(place.root)
            handle.restore("latest")
            assert difference(newest, record(place.root)) == []

    def test_without_room_the_snapshot_is_refused_and_leaves_nothing(self, tmp_path):
        with mounting() as mount:
            mount.tmpfs(tmp_path / "disk", "2m")
            place = Place(tmp_path / "root", tmp_path / "disk/store")
            place.make("file")
            place.done("create")
            free = os.statvfs(tmp_path / "disk").f_bavail
            (place.root / "file").write_bytes(Random(1).randbytes(3_000_000))

            ended = place.snap("create")

            assert ended.code == OVER_QUOTA
            assert "No space left on device" in ended.err
            assert os.statvfs(tmp_path / "disk").f_bavail >= free - 4
            (place.root / "file").write_bytes(b"small")
            place.done("create")
