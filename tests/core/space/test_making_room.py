"""What goes when a store is full, and what stays: in several roots, with some of them damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import treesnap
from changing import World
from mounting import mounting
from oracle import difference, record
from treesnap import CollectingMonitor, CreateOptions, SnapshotKind, StorageFull
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.space import with_room
from treesnap.core.store.maintenance.prune import prune_store
from treesnap.core.store.store import Store
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    Killed,
    RecordingFileSystem,
    WrappedFileSystem,
)

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Other:
    """Another root in the store of a world, with automatic snapshots of 100 kB each."""

    def __init__(self, world: World, path: Path, count: int) -> None:
        path.mkdir()
        self.path = path
        self.handle = treesnap.open(path, world.store)
        for number in range(count):
            (path / "file").write_bytes(Random(100 + number).randbytes(100_000))
            self.handle.create(kind=SnapshotKind.RUN)

    def damage(self, world: World, name: str) -> None:
        """Spoils one of the root's files in the store."""
        (directory,) = (
            path.parent
            for path in world.store.glob("roots/*/root")
            if os.fsencode(self.path) in path.read_bytes()
        )
        (directory / name).write_bytes(b"nothing that anybody wrote")


class Interrupting(WrappedFileSystem):
    """Does something just before the n-th call that matches."""

    def __init__(self, number: int, where: Callable[[Call], bool], action: Callable[[], object]):
        super().__init__()
        self.left = number
        self._where = where
        self._action = action

    def around(self, call: Call) -> Any:
        if self._where(call):
            self.left -= 1
            if self.left == 0:
                self._action()
        return call.proceed()


def test_takes_nothing_from_a_root_that_lets_nothing_go(world, tmp_path):
    other = Other(world, tmp_path / "other", 8)
    other.handle.config("automatic", "false", for_root=True)
    world.handle.config("max-size", "1M")
    world.change(400_000)

    with pytest.raises(StorageFull):
        world.create(SnapshotKind.MANUAL)

    assert len(other.handle.list()) == 8


def test_removes_nothing_in_vain_where_pinned_ones_alone_take_too_much(world):
    for number in range(10):
        world.change(100_000)
        made = world.create()
        if number % 2:
            world.handle.pin(made)
    world.handle.config("max-size", "400K")
    world.change(1000)

    with pytest.raises(StorageFull):
        world.create()

    assert len(world.ids()) == 10


@pytest.mark.parametrize("name", ["journal", "history", "config.toml"])
def test_is_possible_although_a_file_of_another_root_is_damaged(world, tmp_path, name):
    other = Other(world, tmp_path / "other", 3)
    for _ in range(6):
        world.change(100_000)
        world.create()
    other.damage(world, name)
    world.handle.config("max-size", "950K")
    world.change(100_000)

    newest = world.create()

    assert world.ids()[0] == newest
    assert len(world.ids()) < 7
    assert len(list(world.store.glob("snapshots/*/*"))) == len(world.ids()) + 3


def test_leaves_a_tree_alone_whose_restore_was_interrupted(world, tmp_path):
    other = Other(world, tmp_path / "other", 3)
    dying = FaultyFileSystem(Fault(methods=frozenset({"exchange"})))
    with pytest.raises(Killed):
        treesnap.Handle(context_at(root=other.path, store_path=str(world.store), fs=dying)).restore(
            "latest~1"
        )
    before = record(other.path)
    for _ in range(4):
        world.change(100_000)
        world.create()
    world.handle.config("max-size", "600K")
    world.change(200_000)

    world.create()

    assert difference(before, record(other.path)) == []
    assert len(world.handle.doctor().unfinished) == 1
    assert len(world.ids()) < 5


def test_does_not_remove_what_was_pinned_meanwhile(world):
    """The pin arrives after the snapshots were looked at, before the root is locked."""
    ids = []
    for _ in range(12):
        world.change(100_000)
        ids.append(world.create())
    world.handle.config("max-size", "1.2M")
    world.change(100_000)
    fs = Interrupting(
        3,  # after those of the first attempt, and of the policy
        lambda call: (
            call.method == "open" and str(call.path).endswith("/lock") and "roots" in str(call.path)
        ),
        lambda: world.handle.pin(ids[0]),
    )

    treesnap.Handle(context_at(root=world.root, store_path=str(world.store), fs=fs)).create(
        kind=SnapshotKind.RUN
    )

    assert fs.left <= 0
    assert ids[0] in world.ids()
    assert ids[1] not in world.ids()


def test_keeps_the_newest_where_others_delete_the_newer_ones_meanwhile(world):
    """They go after the snapshots were looked at, before the root is locked."""
    ids = []
    for _ in range(12):
        world.change(100_000)
        ids.append(world.create())
    store = Store.open(LocalFileSystem(), str(world.store))
    root = store.root(os.fsencode(world.root))
    fs = Interrupting(
        1,
        lambda call: call.method == "open" and call.path.endswith(f"{root.id}/lock"),
        lambda: world.handle.delete(*ids[1:]),
    )
    store = Store.open(fs, str(world.store))

    prune_store(store, [store.root(os.fsencode(world.root))], 0, 1 << 40)

    assert fs.left <= 0
    assert world.ids() == ids[:1]


def test_says_of_which_root_nothing_could_be_removed_and_goes_on(world, tmp_path):
    other = Other(world, tmp_path / "other", 8)
    for _ in range(4):
        world.change(100_000)
        world.create()
    root_id = Store.open(LocalFileSystem(), str(world.store)).root(os.fsencode(other.path)).id
    fault = Fault(
        errno=errno.EROFS,
        methods=frozenset({"unlink"}),
        where=lambda call: f"/snapshots/{root_id}/" in call.path,
        lasting=True,
    )
    world.handle.config("max-size", "1M")
    world.change(400_000)
    monitor = CollectingMonitor()
    context = context_at(
        root=world.root, store_path=str(world.store), fs=FaultyFileSystem(fault), monitor=monitor
    )

    with contextlib.suppress(StorageFull):
        treesnap.Handle(context).create(kind=SnapshotKind.RUN)

    assert len(other.handle.list()) == 8
    assert any(str(other.path) in said and "Read-only" in said for said in monitor.warnings)
    assert len(world.ids()) < 5


def test_counts_a_collection_by_hand_as_the_last_one(world, monkeypatch):
    monkeypatch.setattr("treesnap.core.ops.maintenance.space.GROWTH_BYTES_MIN", 1 << 20)
    for key in ("keep.hourly", "keep.daily", "keep.weekly"):
        world.handle.config(key, "0")
    world.handle.config("keep.last", "1")
    by_hand = []
    for _ in range(32):
        world.change(200_000)
        by_hand.append(world.create(SnapshotKind.MANUAL))
    world.handle.delete(*by_hand)
    world.handle.gc()

    for _ in range(33):
        world.change(100_000)
        world.create()

    assert world.disk_bytes() < 2 << 20


WRITER = """
import sys, treesnap
from random import Random
root, store, seed = sys.argv[1:]
handle = treesnap.open(root, store)
for number in range(16):
    with open(root + "/file", "wb") as file:
        file.write(Random(f"{seed} {number}").randbytes(100_000))
    handle.create(kind=treesnap.SnapshotKind.AUTOMATIC)
"""


def test_is_done_for_several_writers_at_once(world, tmp_path):
    """Room for 60 snapshots: five processes that each make 16 have to share it."""
    world.handle.config("max-size", "6M")
    processes = []
    for number in range(5):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        words = [sys.executable, "-c", WRITER, str(root), str(world.store), str(number)]
        processes.append(subprocess.Popen(words))

    assert [process.wait(60) for process in processes] == [0] * 5
    for number in range(5):
        root = tmp_path / f"root-{number}"
        before = record(root)
        shutil.rmtree(root)
        treesnap.open(root, world.store).restore("latest")
        assert difference(before, record(root)) == []


@pytest.mark.parametrize(
    ("needed_bytes", "wait_s", "tries"), [(1000, 600.0, 8), (1000, 0.0, 3), (2_000_000, 600.0, 1)]
)
def test_goes_on_while_others_take_what_was_made(world, needed_bytes, wait_s, tries):
    """Eight times the room is gone before it can be used; what cannot fit is tried once."""
    world.create()
    world.handle.config("max-size", "1M")
    patient = treesnap.open(world.root, world.store, wait_s=wait_s)
    tried = []

    def attempt() -> str:
        tried.append(needed_bytes)
        if len(tried) < 8:
            error = StorageFull("others were faster")
            error.needed_bytes = needed_bytes
            error.limit_bytes = 1 << 20
            raise error
        return "published"

    if tries == 8:
        assert with_room(patient.context, attempt) == "published"
    else:
        with pytest.raises(StorageFull):
            with_room(patient.context, attempt)
    assert len(tried) == tries


class TestWhatDoesNotFitNow:
    """Is tried again where another process came and went between two looks at the writers."""

    def attempt_meeting(self, world: World, fs: WrappedFileSystem) -> int:
        """Returns how often an attempt was made that needs all the room, and finds it the
        second time."""
        tried = []

        def attempt() -> None:
            tried.append(None)
            if len(tried) == 1:
                error = StorageFull("others were faster")
                error.needed_bytes = error.limit_bytes = 1 << 20
                raise error

        with_room(context_at(root=world.root, store_path=str(world.store), fs=fs), attempt)
        return len(tried)

    def test_because_a_writer_took_room(self, world, tmp_path):
        other = Other(world, tmp_path / "other", 1)
        world.handle.config("max-size", "1M")
        (other.path / "file").write_bytes(b"changed")
        fs = Interrupting(1, is_collection, lambda: other.handle.create(kind=SnapshotKind.RUN))

        assert self.attempt_meeting(world, fs) == 2
        assert len(other.handle.list()) == 2

    def test_because_a_root_was_in_use(self, world, tmp_path):
        Other(world, tmp_path / "other", 1)
        world.handle.config("max-size", "1M")
        local = LocalFileSystem()
        locks = [
            local.open(str(path), os.O_RDWR | os.O_CREAT)
            for path in sorted(world.store.glob("roots/*/lock"))
        ]
        assert [local.lock(fd, exclusive=True) for fd in locks] == [True] * len(locks)
        fs = Interrupting(1, is_collection, lambda: [local.close(fd) for fd in locks])

        assert self.attempt_meeting(world, fs) == 2
        assert fs.left <= 0


def is_collection(call: Call) -> bool:
    """Returns whether a call is the first one of a collection of garbage."""
    return call.method == "open" and str(call.path).endswith("/collector/lock")


class TestWhatCannotFit:
    """Is written once: not again and again, and not for as long as a command may wait."""

    def reads(self, fs: RecordingFileSystem) -> int:
        """Returns how often the root's file was opened."""
        return sum(call.method == "open" and call.path.endswith("/file") for call in fs.log)

    @pytest.mark.parametrize("configured", [None, "10M", "500K"])
    def test_into_the_limit_of_one_command(self, world, configured):
        world.create()
        if configured is not None:
            world.handle.config("max-size", configured)
        world.change(300_000)
        fs = world.recorded()

        with pytest.raises(StorageFull) as caught:
            world.create(options=CreateOptions(max_size_bytes=100_000))

        assert (caught.value.limit_bytes, self.reads(fs)) == (100_000, 1)

    def test_into_the_limit_of_the_store(self, world):
        world.create()
        world.handle.config("max-size", "1M")
        world.change(3_000_000)
        fs = world.recorded()

        with pytest.raises(StorageFull):
            world.create()

        assert self.reads(fs) == 1

    def test_onto_the_disk(self, tmp_path):
        with mounting() as mount:
            world = World(mount.tmpfs(tmp_path / "disk", "6m"))
            world.create()
            world.change(3_500_000)
            fs = world.recorded()

            with pytest.raises(StorageFull, match="No space left on device"):
                world.create()

            assert self.reads(fs) == 1
            world.change(1_000_000)
            world.create()

    def test_costs_no_snapshot(self, world):
        for _ in range(8):
            world.change(100_000)
            world.create()
        world.handle.config("max-size", "1M")
        world.handle.config("keep.last", "1")
        for key in ("keep.hourly", "keep.daily", "keep.weekly"):
            world.handle.config(key, "0")
        before = world.ids()
        world.change(3_000_000)

        with pytest.raises(StorageFull):
            world.create()

        assert world.ids() == before
