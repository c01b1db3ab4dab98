"""Bringing snapshots of a remote into a store, where they are as good as its own.

Their records come unchanged, so they keep their ids. A fetch that is killed leaves objects
that the next one finds, and that a collection removes if there is none.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from treesnap.core.codec.pack import BlockTable, IndexEntry, OpenBlock
from treesnap.core.codec.reader import Reference, TreeReader
from treesnap.core.codec.snapshot import decode_snapshot, encode_snapshot, snapshot_id, state_hash
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, RemoteFailed
from treesnap.core.model.events import Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotState
from treesnap.core.ops.context import Session
from treesnap.core.ops.maintenance.space import with_settings
from treesnap.core.ops.tree_state import narrowed
from treesnap.core.store.roots import history_at
from treesnap.core.store.snapshots import SnapshotName
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Added, Writer, retry_overtaken
from treesnap.remote.objects import RemoteObjects, complete_trees, needed_objects
from treesnap.remote.protocol import Missing, Remote, View


class LeftOut(Record):
    """A snapshot that needs something that is lost or damaged on the remote."""

    snapshot_id: SnapshotId
    message: str
    """What is wrong."""


class Fetched(Record):
    """What a fetch brought."""

    asked_id: SnapshotId
    """The snapshot that was asked for, as it is in the store."""
    ids: tuple[SnapshotId, ...]
    """All that were asked for and are in the store now, oldest first."""
    snapshots: int
    """How many of them are new there."""
    objects: int
    size_bytes: int
    """Bytes of the objects, uncompressed."""
    left_out: tuple[LeftOut, ...] = ()
    """Oldest first."""


_GAP_MAX = 1 << 16
"""So many numbers below a snapshot are looked at for those before it."""


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


class Wanted(NamedTuple):
    """What is to be fetched of a history."""

    payloads: Mapping[SnapshotId, bytes]
    """The whole history, oldest first."""
    asked: SnapshotId
    """The snapshot that comes first, or not at all."""
    with_others: bool = True
    """Whether the rest comes too, but for what needs something damaged."""
    others_follow: bool = False
    """Whether the rest is fetched later."""
    paths: tuple[bytes, ...] = ()
    """If there are some, a snapshot of these paths alone comes, which has an id of its own."""


def fetch(session: Session, remote: Remote, view: View, wanted: Wanted, jobs: int = 1) -> Fetched:
    """Adds snapshots of a history to the session's root: the one that is asked for first.

    What the root has already is not read again. ``jobs`` parts of packs are received at the same
    time. The caller holds the root's lock. Each snapshot is published when all that it needs is
    durable. Raises NotFound for a path that the snapshot does not hold, Busy, Corrupt,
    RemoteFailed, StorageFull, and Missing. Where only others than the one that is asked for meet a
    RemoteFailed, that one is published.
    """
    return retry_overtaken("the fetch", _Attempt(session, remote, view, wanted, jobs))


class _Attempt:
    """One try, with one view of the remote."""

    def __init__(
        self, session: Session, remote: Remote, view: View, wanted: Wanted, jobs: int
    ) -> None:
        self._jobs = jobs
        self._session = session
        self._objects = RemoteObjects(remote.files, view)
        self._absent = view.absent
        self._wanted = wanted
        self._complete: set[ObjectId] = set()
        """Directories and lists of chunks that came with all that is below them."""
        self._objects_brought = 0
        self._size_bytes = 0

    def __call__(self, earlier: Mapping[bytes, Added]) -> Fetched:
        store, root, wanted = self._session.store, self._session.root, self._wanted
        listing = store.snapshots.listing(root.id)
        self._objects_brought = self._size_bytes = 0
        self._complete = set()
        self._session.monitor.begin(Phase.FETCH, None, None)
        size_bytes_max = with_settings(self._session).max_size_bytes
        failure: RemoteFailed | None = None
        left_out: list[LeftOut] = []
        with Writer(store, size_bytes_max=size_bytes_max, earlier=earlier) as writer:
            nearest = _NearestObjects(writer, store, self._objects)
            asked = self._narrowed(wanted.payloads[wanted.asked], nearest)
            asked_id = snapshot_id(asked)
            whole = {asked_id: asked}
            if asked_id not in listing:
                self._bring(writer, nearest, [asked])
            if wanted.with_others and not wanted.paths:
                try:
                    left_out = self._bring_others(writer, nearest, listing, whole)
                except RemoteFailed as error:
                    failure = error
            history = list(wanted.payloads) if not wanted.paths else [asked_id]
            numbers = free_numbers(listing, history)
            unknown = [key for key in history if key in whole and key in numbers]
            if unknown and history_at(root.path) is None:
                root.note_from_elsewhere(max(numbers[key] for key in unknown))
            for key in unknown:
                writer.publish_payload(whole[key], root.id, numbers[key])
        if failure is not None:
            raise failure
        return Fetched(
            asked_id,
            tuple(key for key in history if key in whole),
            len(unknown),
            self._objects_brought,
            self._size_bytes,
            tuple(left_out),
        )

    def _bring_others(
        self,
        writer: Writer,
        nearest: _NearestObjects,
        listing: Container[SnapshotId],
        whole: dict[SnapshotId, bytes],
    ) -> list[LeftOut]:
        """Adds to ``whole`` what else comes of the history; returns what does not.

        All of it at once, which takes the fewest requests. Where something is damaged, each
        snapshot by itself.
        """
        history = self._wanted.payloads
        others = {key: payload for key, payload in history.items() if key not in whole}
        new = {key: payload for key, payload in others.items() if key not in listing}
        try:
            if new:
                self._bring(writer, nearest, list(new.values()))
        except (Corrupt, Missing) as error:
            self._require_damage(error)
        else:
            whole |= others
            return []
        whole |= {key: payload for key, payload in others.items() if key in listing}
        left_out = []
        for key, payload in new.items():
            try:
                self._bring(writer, nearest, [payload])
            except (Corrupt, Missing) as error:
                self._require_damage(error)
                left_out.append(LeftOut(key, str(error)))
            else:
                whole[key] = payload
        return left_out

    def _require_damage(self, error: Corrupt | Missing) -> None:
        """Raises what a collection may have removed: a newer view may know where it is now."""
        if isinstance(error, Missing) and not error.names <= self._absent:
            raise error

    def _bring(self, writer: Writer, nearest: _NearestObjects, payloads: Sequence[bytes]) -> None:
        """Stores what snapshots need and the store lacks."""
        brought: set[ObjectId] = set()
        missing = self._missing_references(writer, nearest, payloads, brought)
        for count, size in self._store(writer, (item.id for item in missing)):
            self._objects_brought += count
            self._size_bytes += size
            self._session.monitor.advance(count, size)
        self._complete |= brought

    def _narrowed(self, payload: bytes, objects: _NearestObjects) -> bytes:
        """Returns the payload of a snapshot of the wanted paths alone."""
        if not self._wanted.paths:
            return payload
        record = decode_snapshot(payload)
        whole = Snapshot(snapshot_id(payload), 1, state_hash(record), record, SnapshotState())
        trees = TreeReader(objects.get)
        return encode_snapshot(narrowed(whole, self._wanted.paths, trees, objects.get, objects.put))

    def _store(self, writer: Writer, asked_ids: Iterable[ObjectId]) -> Iterator[tuple[int, int]]:
        """Stores objects; yields how many there were at a time, and their bytes.

        A block that is wanted whole is taken as it is. Where the rest of the history comes next,
        so is one of which the store has nothing: it would be read and compressed twice.
        """
        tell_totals = partial(self._session.monitor.begin, Phase.FETCH)

        def takes_whole(table: BlockTable) -> bool:
            ids = map(ObjectId, table.ids)
            return self._wanted.others_follow and not any(map(writer.has, ids))

        for block in self._objects.blocks(asked_ids, self._jobs, tell_totals, takes_whole):
            if block.whole is not None:
                table = block.whole.table
                writer.put_block(block.whole)
                yield table.object_count, table.block.raw_size - table.object_count
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
        self,
        writer: Writer,
        nearest: _NearestObjects,
        payloads: Sequence[bytes],
        found: set[ObjectId],
    ) -> Iterator[Reference]:
        """Yields what is missing, chunks that several files share more than once.

        What else is ``found`` is noted there. To remember every chunk would take 100 MB for a
        million files.
        """
        complete = complete_trees(_local_parents(self._session, payloads), nearest.get, payloads)

        def is_known(reference: Reference) -> bool:
            identity = reference.id
            if reference.kind is ObjectKind.CHUNK:
                return False
            if identity in found or identity in complete or identity in self._complete:
                return True
            found.add(identity)
            return False

        for reference in needed_objects(nearest, payloads, is_known):
            if not writer.has(reference.id):
                yield reference


def free_numbers(
    listing: Iterable[SnapshotName], history: Sequence[SnapshotId]
) -> dict[SnapshotId, int]:
    """Returns the numbers of those snapshots of a history that are not in a listing.

    They are in the order of the history, also among those that are listed, as far as numbers are
    free there. So the newest stays the newest when older ones come after it.
    """
    listed = {name.id: name.sequence for name in listing}
    taken = set(listed.values())
    above = max(taken, default=0)
    numbers: dict[SnapshotId, int] = {}
    last = 0
    waiting: list[SnapshotId] = []
    for key in history:
        if key not in listed:
            waiting.append(key)
            continue
        below = range(max(last + 1, listed[key] - _GAP_MAX), listed[key])
        free = [number for number in below if number not in taken] if waiting else []
        if len(free) >= len(waiting):
            numbers |= zip(waiting, free[len(free) - len(waiting) :], strict=True)
            waiting = []
        last = max(last, listed[key])
    return numbers | {key: above + number for number, key in enumerate(waiting, start=1)}


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
