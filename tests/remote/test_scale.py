"""What commands of remotes cost where very much is stored there: counted, not timed.

The objects are rows and nothing else.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from blob_doubles import MemoryBlobs, WrappedBlobs
from machine_doubles import MemoryMachine
from remote_world import Client, Objects, Server
from sampling import sized
from synthetic import push, snapshot_of
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.remote import collector as collector_module
from treesnap.remote.collector import Collector
from treesnap.remote.copies import Doubled
from treesnap.remote.files import SealedFiles
from treesnap.remote.keys import MasterKeys
from treesnap.remote.protocol import Remote, View
from treesnap.remote.push import push_snapshots
from treesnap.remote.records import (
    DELETION,
    REMOTE_INDEX,
    Deletion,
    Folder,
    HistoryName,
    RemoteState,
)
from treesnap.remote.sealing import STEP_MIN, Encrypted

ROW_BYTES = 50
"""Of an object in an index."""
SMALL_FILE_BYTES_MAX = 3 * STEP_MIN + 300
"""Of a file whose content is below one step of padding: two numbers below a step are added."""
MEMORY_BYTES = {"read": 80, "fold": 145, "collect": 225, "collect of waste": 225}
"""For each object. What the server has, which is in memory here, takes 50 of them but for a read;
with an id of each needed object it was 370 for a collection."""


class Scene:
    """A server without faults, and machines that use it."""

    def __init__(self) -> None:
        self.random = Random(7)
        self.server = Server(self.random, page_size=1000)
        self.server.is_faulty = False
        assert self.remote().create_state(0, RemoteState())

    def remote(self) -> Remote:
        return Remote(Client(self.server), lambda count_read: count_read < 3)

    def push(self, count: int, packs: int) -> bytes:
        remote = self.remote()
        history = HistoryName.new(remote.files.id, "garden@laptop")
        return push(remote, history, self.random, count, packs, self.random.getrandbits(32))

    def delete(self, payload: bytes) -> None:
        remote = self.remote()
        (name,) = (
            entry.name for entry in remote.read().visible.values() if payload in entry.snapshots
        )
        deletion = Deletion(name, (bytes.fromhex(snapshot_id(payload)),))
        remote.files.put(Folder.DELETIONS, 1, DELETION.seal(deletion))

    def parts(self, folder: Folder) -> dict[str, bytes]:
        """Returns the files of a folder, with what is in them."""
        return {
            name: file.content
            for name, file in self.server.files.items()
            if name.startswith(f"{folder}/")
        }


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_index_has_as_many_parts_as_its_objects_take(scene, monkeypatch):
    """One file of an index ended at 240 MiB, and every collection with it: at 5.5 million objects.

    The limits are 500 times smaller here.
    """
    objects_max = sized(collector_module.PART_OBJECTS_MAX // 500, 1 << 14)
    index = REMOTE_INDEX._replace(size_max=sized(REMOTE_INDEX.size_max // 500, 1 << 20))
    monkeypatch.setattr(collector_module, "PART_OBJECTS_MAX", objects_max)
    monkeypatch.setattr(collector_module, "REMOTE_INDEX", index)
    monkeypatch.setattr(collector_module, "SMALL_PACKS_MIN", 1 << 30)  # these are not to be joined
    first = scene.push(objects_max * 5, packs=40)
    total = objects_max * 5
    while total * 45 < index.size_max:
        scene.push(objects_max * 5, packs=40)
        total += objects_max * 5

    assert Collector(scene.remote()).fold()
    before = scene.parts(Folder.INDEX)
    assert all(len(content) < objects_max * 60 for content in before.values())
    assert len(before) < 2 + total / (objects_max // 2)
    assert sum(part.rows.count for part in scene.remote().read().index) >= total

    scene.push(10, packs=1)
    assert Collector(scene.remote()).collect() is not None
    after = scene.parts(Folder.INDEX)
    written = sum(len(content) for name, content in after.items() if name not in before)
    assert written < objects_max * 60  # what is full stays as it is
    scene.delete(first)
    collected = Collector(scene.remote()).collect()
    assert collected.packs >= 40
    view = scene.remote().read()
    assert sum(part.rows.count for part in view.index) < total
    assert scene.parts(Folder.PACKS).keys() == set(map(str, view.sizes))


def peak_of(act: Callable[[], object]) -> int:
    """Returns the most memory that something takes beside what was there before."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("command", MEMORY_BYTES)
def test_memory_is_what_the_rows_take(command, monkeypatch):
    """Parts are 1,000 times smaller here, as what it takes to write one does not grow."""
    monkeypatch.setattr(collector_module, "PART_OBJECTS_MAX", 180)
    monkeypatch.setattr(collector_module, "SMALL_PACKS_MIN", 1 << 30)  # these cannot be joined

    def measured(count: int) -> int:
        scene = Scene()
        gone = scene.push(count, packs=count // 50)
        scene.push(count, packs=count // 50)
        if command == "read":
            assert Collector(scene.remote()).fold()
            views: list[View] = []
            return peak_of(lambda: views.append(scene.remote().read()))
        if command == "fold":
            return peak_of(lambda: Collector(scene.remote()).fold())
        if command == "collect of waste":
            scene.delete(gone)
        return peak_of(lambda: Collector(scene.remote()).collect())

    few, many = sized((400, 1_200), (20_000, 60_000))
    measured(100)
    slope = (measured(many) - measured(few)) / (2 * (many - few))
    assert slope < MEMORY_BYTES[command]


class Counted(WrappedBlobs):
    """Counts requests, and bytes up and down."""

    def __init__(self, inner: MemoryBlobs) -> None:
        super().__init__(inner)
        self.requests = self.up = self.down = 0

    def around(self, method: str, proceed: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        found = proceed()
        self.requests += 1
        if method in {"put", "create"}:
            self.up += len(arguments[1])
        elif method == "get":
            self.down += len(found)
        elif method == "get_ranges":
            self.down += sum(map(len, found))
        return found


class Costs(NamedTuple):
    requests: int
    up: int
    down: int


class Machines:
    """An encrypted remote in memory, and machines that each stored a snapshot of so many objects,
    all of which were folded.
    """

    def __init__(self, count: int, objects: int) -> None:
        self.blobs = MemoryBlobs()
        self.sealer = Encrypted(MasterKeys.new(), bytes(16))
        self.random = Random(count)
        everyone = [MemoryMachine(self.random.randbytes(32)) for _ in range(count)]
        assert self.opened(everyone[0])[0].create_state(0, RemoteState())
        for machine in everyone:
            remote, _ = self.opened(machine)
            own_id = self.sealer.signer(machine.seed()).id
            self.history = HistoryName.new(own_id, "garden@laptop")
            self.machine = machine
            push(remote, self.history, self.random, objects, 1, 1)
        assert Collector(self.opened(everyone[0])[0]).fold()

    def opened(self, machine: MemoryMachine) -> tuple[Remote, Counted]:
        counted = Counted(self.blobs)
        files = SealedFiles(Doubled(counted), self.sealer, machine=machine)
        return Remote(files, lambda count_read: count_read < 3), counted

    def small_push(self, remote: Remote, counted: Counted) -> Costs:
        """Returns what a push of one more object costs; the view is read with it."""
        counted.requests = counted.up = counted.down = 0
        objects = Objects()
        payload = snapshot_of(objects, [], self.random.getrandbits(32))
        push_snapshots(remote, self.history, objects, [payload])
        return Costs(counted.requests, counted.up, counted.down)


@pytest.mark.parametrize("machines", sized([1, 10], [1, 10, 100]))
def test_what_a_push_costs_beside_other_machines(machines):
    """What was read before is not read again; to read all of it once takes what the rows take."""
    objects = sized(100, 20_000)
    scene = Machines(machines, objects)
    remote, counted = scene.opened(scene.machine)

    first, second = scene.small_push(remote, counted), scene.small_push(remote, counted)

    rows = machines * objects
    parts = -(-rows // (collector_module.PART_OBJECTS_MAX // 2)) + 8
    assert first.requests <= 10 + parts
    assert first.down <= 1.1 * (ROW_BYTES * rows + 500 * machines) + 40_000
    assert second.requests == 6
    assert second.down <= SMALL_FILE_BYTES_MAX  # its own last commit, which a store keeps
    assert second.up <= 2 * SMALL_FILE_BYTES_MAX  # a pack and a commit
