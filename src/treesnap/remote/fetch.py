"""Bringing snapshots of a remote into a store, where they are as good as its own.

Their records come unchanged, so they keep their ids. A fetch that is killed leaves objects
that the next one finds, and that a collection removes if there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from treesnap.core.codec.pack import IndexEntry, OpenBlock
from treesnap.core.codec.reader import Reference, TreeReader
from treesnap.core.codec.snapshot import decode_snapshot, encode_snapshot, snapshot_id, state_hash
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.events import Phase
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotState
from treesnap.core.ops.context import Session
from treesnap.core.ops.maintenance.space import with_settings
from treesnap.core.ops.tree_state import narrowed
from treesnap.core.store.roots import history_at
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Added, Writer, retry_overtaken
from treesnap.remote.objects import RemoteObjects, Seen, complete_trees, needed_objects
from treesnap.remote.protocol import Remote, View


class Fetched(Record):
    """What a fetch brought."""

    ids: tuple[SnapshotId, ...]
    """The snapshots that were asked for, as they are in the store."""
    snapshots: int
    """How many of them are new there."""
    objects: int
    size_bytes: int
    """Bytes of the objects, uncompressed."""


class _NearestObjects:
    """Objects that were made here, those of the store where it has them, else of the remote."""

    def __init__(self, writer: Writer, store: Store, remote: RemoteObjects) -> None:
        self._writer = writer
        self._store = store
        self._remote = remote
        self._made: dict[ObjectId, bytes] = {}

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Stores an object that the remote need not have."""
        object_id = self._writer.put(kind, data)
        self._made[object_id] = data
        return object_id

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        if object_id in self._made:
            return self._made[object_id]
        if self._store.has(object_id):
            return self._store.get(kind, object_id)
        return self._remote.get(kind, object_id)

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        self._remote.prefetch(
            [item for item in objects if item not in self._made and not self._store.has(item)]
        )


def fetch(
    session: Session,
    remote: Remote,
    view: View,
    payloads: Sequence[bytes],
    paths: tuple[bytes, ...] = (),
    jobs: int = 1,
) -> Fetched:
    """Adds snapshots, given as payloads, to the session's root, oldest first.

    Those that the root has already are left out. With ``paths`` each becomes a snapshot of these
    paths alone, which has an id of its own, and nothing else is read. ``jobs`` parts of packs are
    received at the same time. The caller holds the root's lock. Each snapshot is published when
    all that it needs is durable. Raises NotFound for a path that a snapshot does not hold, Busy,
    Corrupt, RemoteFailed, StorageFull, and Missing, before anything is published.
    """
    attempt = _Attempt(session, remote, view, payloads, paths, jobs)
    return retry_overtaken("the fetch", attempt)


class _Attempt:
    """One try, with one view of the remote."""

    def __init__(
        self,
        session: Session,
        remote: Remote,
        view: View,
        payloads: Sequence[bytes],
        paths: tuple[bytes, ...],
        jobs: int,
    ) -> None:
        self._jobs = jobs
        self._session = session
        self._objects = RemoteObjects(remote.files, view)
        self._payloads = payloads
        self._paths = paths

    def __call__(self, earlier: Mapping[bytes, Added]) -> Fetched:
        store, root = self._session.store, self._session.root
        listing = store.snapshots.listing(root.id)
        sequence = listing.next_sequence
        objects = size_bytes = 0
        self._session.monitor.begin(Phase.FETCH, None, None)
        size_bytes_max = with_settings(self._session).max_size_bytes
        with Writer(store, size_bytes_max=size_bytes_max, earlier=earlier) as writer:
            nearest = _NearestObjects(writer, store, self._objects)
            payloads = [self._narrowed(payload, nearest) for payload in self._payloads]
            ids = tuple(map(snapshot_id, payloads))
            unknown = [item for item in payloads if snapshot_id(item) not in listing]
            missing = self._missing_references(writer, nearest, unknown)
            for count, size in self._store(writer, (item.id for item in missing)):
                objects += count
                size_bytes += size
                self._session.monitor.advance(count, size)
            if unknown and history_at(root.path) is None:
                root.note_from_elsewhere(sequence + len(unknown) - 1)
            for number, payload in enumerate(unknown):
                writer.publish_payload(payload, root.id, sequence + number)
        return Fetched(ids, len(unknown), objects, size_bytes)

    def _narrowed(self, payload: bytes, objects: _NearestObjects) -> bytes:
        """Returns the payload of a snapshot of the wanted paths alone."""
        if not self._paths:
            return payload
        record = decode_snapshot(payload)
        whole = Snapshot(snapshot_id(payload), 1, state_hash(record), record, SnapshotState())
        trees = TreeReader(objects.get)
        return encode_snapshot(narrowed(whole, self._paths, trees, objects.get, objects.put))

    def _store(self, writer: Writer, wanted: Iterable[ObjectId]) -> Iterator[tuple[int, int]]:
        """Stores objects; yields how many there were at a time, and their bytes.

        A block that is wanted whole is taken as it is.
        """
        tell_totals = partial(self._session.monitor.begin, Phase.FETCH)
        for block in self._objects.blocks(wanted, self._jobs, tell_totals):
            if block.whole is not None:
                writer.put_block(block.whole)
                yield len(block.ids), block.whole.table.block.raw_size - len(block.ids)
                continue
            for object_id in block.ids:
                _, entry = self._objects.place(object_id)
                kind = ObjectKind(entry.kind)
                data = self._object(kind, entry, block.opened)
                writer.put(kind, data)
                yield 1, len(data)

    def _object(self, kind: ObjectKind, entry: IndexEntry, opened: OpenBlock | None) -> bytes:
        """Returns an object of a block, or of another pack where it is damaged there."""
        if opened is not None:
            with suppress(Corrupt):
                return opened.find(entry)
        return self._objects.get(kind, entry.id)

    def _missing_references(
        self, writer: Writer, nearest: _NearestObjects, payloads: Sequence[bytes]
    ) -> Iterator[Reference]:
        """Yields what is missing, chunks that several files share more than once.

        To remember every chunk would take 100 MB for a million files.
        """
        complete = complete_trees(_local_parents(self._session, payloads), nearest.get, payloads)
        seen = Seen(complete)

        def is_known(reference: Reference) -> bool:
            return reference.kind is not ObjectKind.CHUNK and seen(reference)

        for reference in needed_objects(nearest, payloads, is_known):
            if not writer.has(reference.id):
                yield reference


def _local_parents(session: Session, payloads: Iterable[bytes]) -> list[bytes]:
    """Returns the parents of snapshots as far as the root has them."""
    log, root_id = session.store.snapshots, session.root.id
    names = {name.id: name for name in log.listing(root_id)}
    parents: dict[SnapshotId, bytes] = {}
    for payload in payloads:
        parent = decode_snapshot(payload).parent
        if parent in names and parent not in parents:
            parents[parent] = log.payload(root_id, names[parent])
    return list(parents.values())
