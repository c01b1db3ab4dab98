"""What a checkpoint costs when there are many already: what it cost when there were few.

Counted in calls of the file system and in bytes, at one snapshot and thousands of snapshots
later. `benchmarks/many_checkpoints.py` measures the time of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import pytest

from oracle import difference, record
from sampling import sized
from treesnap import Refused, SnapshotKind
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.snapshot import encode_snapshot, snapshot_id
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ObjectKind
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.space import EVERY, period
from treesnap.core.store.index import VERIFIED_SIZE_MAX
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.testing.doubles import RecordingFileSystem, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(12)

LATER_NS = 3_600_000_000_000
MEASURED = sized(1, 2) * EVERY
"""How many checkpoints are measured: the maintenance of the store is among them."""
FLAT = 1.3
BACK = 20
"""How many checkpoints are gone back in the end; the default policy keeps the last 50."""
FEW = 120
"""After so many the index has parts that are too large to be checked whenever it is opened."""


class Cost(NamedTuple):
    """What a checkpoint costs; of several, calls on average, and bytes of the one in the middle.

    So merges of index parts, which come once in a while, count as calls. That each entry is
    merged a logarithmic number of times is tested with the index.
    """

    calls: float
    read_bytes: float
    """Without parts of the index in which something is only looked up."""
    written_bytes: float
    listings: float
    """How often the history was listed."""


class Checkpoints:
    """A small tree that changes by a file at a time, and its checkpoints."""

    def __init__(self, directory: Path, kind: SnapshotKind, *, named: bool = False) -> None:
        self.root, self.store = directory / "root", directory / "store"
        for number in range(20):
            path = self.root / f"directory-{number % 4}" / f"file-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % number)
        self._paths = sorted(path for path in self.root.rglob("file-*"))
        self._kind = kind
        self._named = named
        self._number = 0
        self.handle = Handle(
            context_at(
                root=self.root,
                store_path=str(self.store),
                fs=UnsyncedFileSystem(),
                clock_ns=lambda: time.time_ns() + LATER_NS,
            )
        )

    def take(self, until: int) -> None:
        """Takes checkpoints until there were so many."""
        while self._number < until:
            self._number += 1
            self._paths[self._number % len(self._paths)].write_bytes(b"%d" % self._number)
            name = f"checkpoint {self._number}" if self._named else None
            self.handle.create(kind=self._kind, name=name)

    def files(self) -> int:
        """How many files there are in the store that are no snapshots."""
        files = sum(1 for path in self.store.rglob("*") if path.is_file())
        return files - sum(1 for _ in self.store.glob("snapshots/*/*"))

    def add_history(self, until: int) -> None:
        """Puts snapshots into the store that differ in nothing but their numbers and times."""
        newest = self.handle.list()[0]
        (directory,) = (self.store / "snapshots").iterdir()
        for number in range(newest.sequence + 1, until + 1):
            name = f"history {number}" if self._named else None
            record = newest.record._replace(created_at_ns=number, name=name)
            payload = encode_snapshot(record)
            path = directory / f"{number:016x}-{snapshot_id(payload)}"
            path.write_bytes(seal(FileKind.SNAPSHOT, payload))

    def add_objects(self, count: int) -> None:
        """Puts objects into the store as earlier snapshots would have left them."""
        with Store.open(LocalFileSystem(), str(self.store)) as store, Writer(store) as writer:
            for number in range(count):
                writer.put(ObjectKind.CHUNK, b"of another snapshot %d" % number)
            writer.flush()

    def _cost_of(self, recording: RecordingFileSystem) -> Cost:
        parts = recording.calls("map", below=str(self.store / "index"))
        unread_bytes = sum(item.size_bytes for item in parts if item.size_bytes > VERIFIED_SIZE_MAX)
        return Cost(
            calls=len(recording.log),
            read_bytes=recording.read_bytes() - unread_bytes,
            written_bytes=recording.written_bytes(),
            listings=len(recording.calls("list_names", below=str(self.store / "snapshots"))),
        )

    def cost(self, count: int) -> Cost:
        """Takes some checkpoints, and returns what each cost."""
        quiet = self.handle.context.fs
        recording = RecordingFileSystem(UnsyncedFileSystem())
        self.handle.context = self.handle.context._replace(fs=recording)
        costs = []
        for _ in range(count):
            recording.clear()
            self.take(self._number + 1)
            costs.append(self._cost_of(recording))
        self.handle.context = self.handle.context._replace(fs=quiet)
        return Cost(
            calls=mean(item.calls for item in costs),
            read_bytes=median(item.read_bytes for item in costs),
            written_bytes=median(item.written_bytes for item in costs),
            listings=mean(item.listings for item in costs),
        )


@pytest.fixture
def checkpoints(tmp_path):
    return lambda kind, **options: Checkpoints(tmp_path, kind, **options)


def assert_flat(few: Cost, many: Cost) -> None:
    """Fails when anything became dearer, and when something that is free was counted."""
    assert all(few)
    dearer = {
        name: (before, after)
        for name, before, after in zip(Cost._fields, few, many, strict=True)
        if after > FLAT * before
    }
    assert dearer == {}


def test_a_checkpoint_costs_the_same_after_two_thousand_that_stay(checkpoints):
    world = checkpoints(SnapshotKind.MANUAL)
    world.take(FEW)
    few = world.cost(MEASURED)

    world.add_objects(8000)
    world.add_history(2048)

    assert_flat(few, world.cost(MEASURED))
    assert few.listings <= 1.1
    assert world.handle.list()[0].sequence > 2048


def test_a_checkpoint_with_a_name_costs_as_many_calls_after_two_thousand(checkpoints):
    world = checkpoints(SnapshotKind.MANUAL, named=True)
    world.take(FEW)
    few = world.cost(MEASURED)

    world.add_history(2048)
    world.take(FEW + MEASURED + 1)  # reads the names once

    many = world.cost(MEASURED)
    assert many.calls <= FLAT * few.calls
    assert many.written_bytes <= FLAT * few.written_bytes
    with pytest.raises(Refused):
        world.handle.create(name="history 1000")


def test_a_checkpoint_costs_the_same_when_old_ones_go(checkpoints):
    world = checkpoints(SnapshotKind.RUN)
    world.take(FEW)
    few = world.cost(MEASURED)

    world.add_objects(8000)
    world.take(sized(200, 300))

    assert_flat(few, world.cost(MEASURED))
    assert len(world.handle.list()) < 128


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SnapshotKind.MANUAL, SnapshotKind.RUN])
def test_a_checkpoint_costs_the_same_after_ten_thousand(checkpoints, kind):
    world = checkpoints(kind)
    world.take(FEW)
    few = world.cost(MEASURED)
    files = world.files()

    world.take(10_000 + EVERY)

    assert_flat(few, world.cost(MEASURED))
    assert world.files() <= files + 10
    before = record(world.root)
    world.take(10_000 + 3 * EVERY + BACK)
    world.handle.restore(f"latest~{BACK}")
    assert difference(before, record(world.root)) == []


@pytest.mark.parametrize("count", [0, 1, 100, 159, 160, 1000, 10_000, 1_000_000])
def test_looks_at_long_histories_are_as_rare_as_they_are_dear(count):
    between = period(count)

    assert between % EVERY == 0
    assert count <= 5 * between
    assert between == EVERY or between <= 2 * count / 5
