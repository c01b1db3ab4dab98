"""What a push stores, reads and asks for; how it goes on after a death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from threading import Barrier, Event, Lock

import pytest

from blob_doubles import BlobFault, BlobFaultKind, FaultyBlobs, MemoryBlobs, WrappedBlobs
from machine_doubles import MemoryMachine
from remote_world import Objects, new_snapshot
from treesnap.core.codec.pack import BLOCK_OBJECTS_MAX, PACK_SIZE_TARGET, ROW_SIZE
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import decode_snapshot, encode_snapshot, snapshot_id
from treesnap.core.codec.tree import decode_tree, put_tree
from treesnap.core.model.entries import Entry, ObjectId, ObjectKind, Totals
from treesnap.core.model.errors import Corrupt, RemoteFailed
from treesnap.core.model.snapshots import SnapshotId
from treesnap.remote import collector as collector_module
from treesnap.remote import objects as objects_module
from treesnap.remote import push as push_module
from treesnap.remote.blobs.base import BLOB_SIZE_MAX, Blobs
from treesnap.remote.collector import Collector
from treesnap.remote.copies import Doubled
from treesnap.remote.files import SealedFiles
from treesnap.remote.keys import MasterKeys
from treesnap.remote.objects import RemoteObjects, needed_objects
from treesnap.remote.protocol import Push, Remote
from treesnap.remote.push import push_snapshots
from treesnap.remote.records import (
    CATALOG,
    COMMIT,
    DELETION,
    REMOTE_INDEX,
    REMOTE_STATE,
    Deletion,
    Folder,
    HistoryName,
    RemoteState,
)
from treesnap.remote.sealing import Encrypted

MACHINE = MemoryMachine()
SEALER = Encrypted(MasterKeys.new(), b"r" * 16)
HISTORY = HistoryName.new(SEALER.signer(MACHINE.seed()).id, "garden@laptop")


def opened(blobs) -> Remote:
    return Remote(
        SealedFiles(Doubled(blobs), SEALER, machine=MACHINE), lambda count_read: count_read < 3
    )


@pytest.fixture
def blobs() -> MemoryBlobs:
    content = MemoryBlobs()
    assert opened(content).create_state(0, RemoteState())
    return content


class Counting(Objects):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[ObjectId] = []

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        self.read.append(object_id)
        return super().get(kind, object_id)


@pytest.fixture
def objects() -> Counting:
    return Counting()


def everything(blobs: MemoryBlobs, snapshots: Iterable[bytes]) -> dict[ObjectId, bytes]:
    """Returns what snapshots need, read from the remote."""
    objects, found = RemoteObjects(SealedFiles(Doubled(blobs), SEALER), opened(blobs).read()), {}

    def is_known(reference: Reference) -> bool:
        return reference.id in found

    for reference in needed_objects(objects, snapshots, is_known):
        found[reference.id] = objects.get(reference.kind, reference.id)
    return found


def changed(objects: Objects, snapshot: bytes, number: int) -> bytes:
    """Returns a snapshot in which one file of two directories has another content."""
    record = decode_snapshot(snapshot)
    (first, second) = decoded(objects, record.root.tree_id)
    (file, other) = decoded(objects, second.tree_id)
    data = b"new %d " % number * 40
    chunk = objects.put(ObjectKind.CHUNK, data)
    below = put_tree(
        [file._replace(size=len(data), content=(0, chunk, len(data))), other],
        Totals(),
        objects.put,
    )
    tree = put_tree([first, second._replace(content=below)], Totals(), objects.put)
    parent = SnapshotId(snapshot_id(snapshot))
    root = record.root._replace(content=tree)
    return encode_snapshot(record._replace(root=root, parent=parent, created_at_ns=number))


def decoded(objects: Objects, tree: ObjectId) -> tuple[Entry, ...]:
    return decode_tree(objects.by_id[tree]).entries


def test_everything_comes_back(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)

    stored = push_snapshots(opened(blobs), HISTORY, objects, [snapshot])

    assert everything(blobs, [snapshot]) == objects.by_id
    assert (stored.objects, stored.packs) == (len(objects.by_id), 1)
    (entry,) = opened(blobs).read().visible.values()
    assert (entry.history, entry.snapshots, entry.kept) == (HISTORY, (snapshot,), ())


def test_what_is_there_is_not_stored_again(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])

    again = push_snapshots(
        opened(blobs), HISTORY._replace(id=b"i" * 8 + HISTORY.id[8:]), objects, [snapshot]
    )

    assert again[:3] == (0, 0, 0)
    assert len(opened(blobs).read().visible) == 2


def test_only_what_changed_is_read_and_stored(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    later = changed(objects, snapshot, 2)
    (first, _) = decoded(objects, decode_snapshot(snapshot).root.tree_id)
    objects.read.clear()

    stored = push_snapshots(opened(blobs), HISTORY, objects, [later])

    assert stored.objects == 3  # a file, its directory, and the root
    assert first.tree_id not in objects.read
    assert everything(blobs, [later]).items() <= objects.by_id.items()


def test_nothing_is_read_when_nothing_changed(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    parent = SnapshotId(snapshot_id(snapshot))
    same = encode_snapshot(decode_snapshot(snapshot)._replace(parent=parent, created_at_ns=9))
    objects.read.clear()

    assert push_snapshots(opened(blobs), HISTORY, objects, [same]).objects == 0
    assert objects.read == []


def test_an_object_that_is_damaged_here_is_not_stored(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    objects.by_id.pop(decode_snapshot(snapshot).root.tree_id)
    objects.get = lambda kind, object_id: missing(object_id)

    with pytest.raises(Corrupt, match="missing"):
        push_snapshots(opened(blobs), HISTORY, objects, [snapshot])
    assert not opened(blobs).read().visible


def missing(object_id: ObjectId) -> bytes:
    raise Corrupt(f"Object {object_id.hex()} is missing")


@pytest.fixture
def small_packs(monkeypatch):
    """Each object is a pack of its own."""
    monkeypatch.setattr(push_module, "PACK_SIZE_TARGET", 1)
    monkeypatch.setattr(push_module, "_BATCH_SIZE", 1)


def failing_at_pack(number: int) -> BlobFault:
    return BlobFault(
        kind=BlobFaultKind.FAIL_BEFORE,
        number=number,
        methods=frozenset({"put"}),
        names=lambda name: name.startswith("packs/"),
    )


@pytest.mark.usefixtures("small_packs")
def test_a_push_that_is_cut_off_goes_on_where_it_had_committed(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    count = len(objects.by_id)
    cut_off = failing_at_pack(count - 1)
    with pytest.raises(RemoteFailed):
        push_snapshots(
            opened(FaultyBlobs(blobs, cut_off)), HISTORY, objects, [snapshot], packs_per_commit=1
        )
    partial = opened(blobs).read().visible.values()
    assert {len(entry.kept) for entry in partial} == {1}
    assert not any(entry.snapshots for entry in partial)

    stored = push_snapshots(opened(blobs), HISTORY, objects, [snapshot])

    assert stored.objects == 2
    assert everything(blobs, [snapshot]) == objects.by_id


@pytest.mark.usefixtures("small_packs")
def test_a_commit_lists_no_more_objects_than_fit_into_it(blobs, objects, monkeypatch):
    monkeypatch.setattr(push_module, "OBJECTS_PER_COMMIT", 2)
    snapshot = new_snapshot(objects, Random(1), 1)

    push_snapshots(opened(blobs), HISTORY, objects, [snapshot])

    listed = [packs.rows.count for _, packs in opened(blobs).read().commits.values()]
    assert sum(listed) == len(objects.by_id) + 1  # and what says which snapshots they are of
    assert max(listed) == 2
    assert everything(blobs, [snapshot]) == objects.by_id


@pytest.mark.usefixtures("small_packs")
@pytest.mark.parametrize("packs_per_commit", [2, 64])
def test_packs_are_sent_at_the_same_time(blobs, objects, packs_per_commit):
    snapshot = new_snapshot(objects, Random(1), 1)
    told: list[tuple[int, int]] = []
    meeting = Meeting(blobs, min(3, packs_per_commit))

    stored = push_snapshots(
        opened(meeting),
        HISTORY,
        objects,
        [snapshot],
        packs_per_commit,
        jobs=3,
        advance=lambda *amounts: told.append(amounts),
    )

    assert everything(blobs, [snapshot]) == objects.by_id
    assert stored.objects == len(objects.by_id)
    assert tuple(map(sum, zip(*told, strict=True))) == (stored.objects, stored.size_bytes)


class Meeting(WrappedBlobs):
    """The first packs wait for each other."""

    def __init__(self, inner: Blobs, count: int) -> None:
        super().__init__(inner)
        self._count = count
        self._lock = Lock()
        self._barrier = Barrier(count)

    def around(self, method, proceed, arguments):
        if method == "put" and arguments[0].startswith("packs/"):
            with self._lock:
                self._count -= 1
                is_first = self._count >= 0
            if is_first:
                self._barrier.wait(timeout=60)
        return proceed()


@pytest.mark.usefixtures("small_packs")
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_pack_that_fails_beside_others_ends_the_push_and_the_next_one_goes_on(
    blobs, objects, number
):
    snapshot = new_snapshot(objects, Random(1), 1)

    with pytest.raises(RemoteFailed):
        push_snapshots(
            opened(FaultyBlobs(blobs, failing_at_pack(number))),
            HISTORY,
            objects,
            [snapshot],
            jobs=3,
        )

    assert not any(entry.snapshots for entry in opened(blobs).read().visible.values())
    push_snapshots(opened(blobs), HISTORY, objects, [snapshot], jobs=3)
    assert everything(blobs, [snapshot]) == objects.by_id


@pytest.mark.parametrize("format_", [REMOTE_STATE, COMMIT, DELETION, CATALOG, REMOTE_INDEX])
def test_the_largest_file_that_is_written_is_read(format_):
    sealed = SEALER.sealed_size("index/" + "0" * 32, format_.size_max)

    assert sealed <= BLOB_SIZE_MAX


def test_the_smallest_objects_of_a_commit_and_a_pack_fit_into_a_commit():
    objects = push_module.OBJECTS_PER_COMMIT + PACK_SIZE_TARGET // ROW_SIZE

    assert objects * 45 + objects // BLOCK_OBJECTS_MAX * 16 < COMMIT.size_max


@pytest.mark.usefixtures("small_packs")
def test_partial_commits_are_given_up_at_the_fifth_collection(blobs, objects):
    snapshot = new_snapshot(objects, Random(1), 1)
    cut_off = failing_at_pack(4)
    with pytest.raises(RemoteFailed):
        push_snapshots(
            opened(FaultyBlobs(blobs, cut_off)), HISTORY, objects, [snapshot], packs_per_commit=1
        )
    kept = len(opened(blobs).read().sizes)
    assert kept == 3

    for _ in range(4):
        assert Collector(opened(blobs)).collect() is not None
        assert len(opened(blobs).read().sizes) == kept

    assert Collector(opened(blobs)).collect() is not None
    assert not opened(blobs).read().sizes
    assert not list(blobs.list("packs/"))


def test_a_collection_gives_back_what_a_deleted_snapshot_needed(blobs, objects):
    first = new_snapshot(objects, Random(1), 1)
    second = changed(objects, first, 2)
    push_snapshots(opened(blobs), HISTORY, objects, [first, second])
    view = opened(blobs).read()
    (entry,) = view.visible.values()
    deletion = Deletion(entry.name, (bytes.fromhex(snapshot_id(second)),))
    opened(blobs).files.put(Folder.DELETIONS, view.state.epoch, DELETION.seal(deletion))

    collected = Collector(opened(blobs)).collect()

    assert collected is not None
    (entry,) = opened(blobs).read().visible.values()
    assert entry.snapshots == (first,)
    assert not list(blobs.list("commits/")) + list(blobs.list("deletions/"))
    assert everything(blobs, [first]).keys() <= objects.by_id.keys()


class CountingRanges(WrappedBlobs):
    """Counts what is read of each pack."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.reads = Counter[str]()

    def around(self, method, proceed, arguments):
        if method == "get_ranges":
            self.reads[arguments[0]] += 1
        return proceed()


@pytest.mark.usefixtures("small_packs")
def test_a_collection_reads_each_block_that_it_copies_once(blobs, objects, monkeypatch):
    """However much it copies, and however little of it fits into memory."""
    for number in range(8):
        push_snapshots(opened(blobs), HISTORY, objects, [new_snapshot(objects, Random(number), 1)])
    monkeypatch.setattr(objects_module, "_OPEN_BLOCKS_SIZE_MAX", 500)
    counting = CountingRanges(blobs)
    view = opened(counting).read()
    collector = Collector(opened(counting))
    needed = collector._needed(view.visible.values(), view)
    usage = collector_module._usage(view, needed, view.visible.values(), frozenset())
    counting.reads.clear()

    collector._copy(view, usage.copied)

    assert len(usage.copied) > 16
    assert set(counting.reads.values()) == {1}


class Waiting(WrappedBlobs):
    """Fails one of two writes, while the other one waits for a server until it is given up."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self._is_waiting = Event()
        self.is_given_up = Event()
        self._is_second = iter([False])

    def around(self, method, proceed, arguments):
        if method != "put":
            return proceed()
        if next(self._is_second, True):
            self._is_waiting.wait(20)
            raise RemoteFailed("the server does not answer")
        self._is_waiting.set()
        assert self.is_given_up.wait(20)
        raise RemoteFailed("given up")

    def give_up(self) -> None:
        self.is_given_up.set()


def test_a_push_that_fails_waits_for_no_server_in_its_other_threads(blobs):
    waiting = Waiting(blobs)
    objects = Objects()
    chunks = [objects.put(ObjectKind.CHUNK, b"leaf %d" % number) for number in range(2)]

    def fail() -> None:
        with Push(opened(waiting), HISTORY, jobs=2) as push:
            push.begin()
            for chunk in chunks:
                push.add_pack(objects.encoded([Reference(ObjectKind.CHUNK, chunk)]))
            raise RemoteFailed("as when a person ends it")

    with pytest.raises(RemoteFailed, match="as when"):
        fail()

    assert waiting.is_given_up.is_set()
