"""One writing session: objects go in, one snapshot comes out, or nothing does.

Objects are hashed by the caller's thread and compressed in batches of about
4 MiB by two more, which work without the GIL. Blocks are appended in the order
in which the batches began. Small captures never start a thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from treesnap.core.codec.compress import LEVEL_CAPTURE, LEVEL_REWRITE, OBJECT_SIZE_MAX
from treesnap.core.codec.pack import BlockTable, Encoded, IndexEntry, encode_objects, entries_of
from treesnap.core.codec.reader import CheckedBlock, check_object
from treesnap.core.codec.snapshot import SNAPSHOT
from treesnap.core.fs.durable import sweep_temporary, unlink_if_present
from treesnap.core.fs.os_errors import is_full
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Busy, Corrupt, ErrorCode, InvalidArgument, StorageFull
from treesnap.core.model.ids import object_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import format_size, size_text
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotRecord
from treesnap.core.model.type_names import TYPE_CHECKING, Self, TypeVar
from treesnap.core.store.collector import read_state
from treesnap.core.store.packs import PackAppender, cut_back
from treesnap.core.store.reserve import Reserve
from treesnap.core.store.snapshots import SnapshotName
from treesnap.core.store.store import Store
from treesnap.core.store.writer_slot import Slot, acquire, sweep_pending

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

BATCH_SIZE = 4 << 20
BATCH_OBJECTS_MAX = 4096
_BATCHES_IN_FLIGHT_MAX = 4
ATTEMPTS = 5
"""How often a snapshot is tried when collections keep overtaking it."""
_ENTRIES_MAX = 1 << 17
"""New objects kept in memory before an index part is written for them."""
_SECOND_SHARE = 0.02
"""How much of what a session appends its second copies may take."""
_SECOND_SIZE_MIN = 64 << 10
"""In a pack that a session begins they may take this much, or an eighth of it if that is less."""
_SECOND_PENDING_MAX = 4 << 20
"""Bytes of blocks that wait for their second copy."""

_Result = TypeVar("_Result")


class Added(NamedTuple):
    """What a session added to a pack."""

    objects: int
    size_bytes: int


Finished = list[tuple[bytes, int, int]]
"""What a session added: pack, objects and bytes of each."""


class EpochChanged(Exception):
    """Collections overtook this session; the capture must be done again.

    ``added`` is what the session added to which pack. The next attempt finds it in the store,
    and counts it as its own.
    """

    def __init__(self, added: Mapping[bytes, Added] | None = None) -> None:
        super().__init__()
        self.added: Mapping[bytes, Added] = added or {}


def retry_overtaken(what: str, attempt: Callable[[Mapping[bytes, Added]], _Result]) -> _Result:
    """Returns the outcome of an attempt, and tries again when collections overtake it.

    An attempt is called with what the earlier ones added, for its :class:`Writer`. Raises Busy
    when collections overtook :data:`ATTEMPTS` of them; ``what`` is what they overtook.
    """
    earlier: Mapping[bytes, Added] = {}
    for _ in range(ATTEMPTS):
        try:
            return attempt(earlier)
        except EpochChanged as overtaken:
            earlier = overtaken.added
    raise Busy(f"Garbage collections kept overtaking {what}")


class Writer:
    """Adds objects and publishes one snapshot. Use as a context manager.

    Leaving the block without :meth:`publish` abandons the session: what was
    appended stays as garbage for the next collection.

    With ``size_bytes_max`` the store may not become larger than that: before each batch, and
    before publishing, the store is measured with what all sessions wrote, and StorageFull is
    raised when it would. Sessions that measure at the same moment do not see what the others
    are about to write: the store may be larger by one batch of each other session, until they
    fail. Nothing is published then.

    Trees and chunk lists are small, and one damaged byte in a block of them could cost every
    snapshot. Where it is cheap, their blocks are appended once more behind everything else. Readers
    and collections know an object in two places anyway, and repairs too: see
    ``docs/adr/0053-trees-are-stored-twice.md``.

    ``earlier`` is what attempts at the same snapshot added that were overtaken.
    """

    def __init__(
        self,
        store: Store,
        *,
        size_bytes_max: int | None = None,
        earlier: Mapping[bytes, Added] | None = None,
    ) -> None:
        self._store = store
        self._size_bytes_max = size_bytes_max
        self._fs = store.writing_fs
        self._pool: ThreadPoolExecutor | None = None
        self._batch: list[tuple[ObjectKind, ObjectId, bytes]] = []
        self._batch_size = 0
        self._level = LEVEL_CAPTURE
        self._in_flight: deque[Future[Encoded]] = deque()
        self._added: dict[ObjectId, BlockTable | None] = {}
        """Each object with the table of its block, or None where it is not appended yet, or is in
        the index. Tables take a fifth of the memory of entries."""
        self._unindexed: list[BlockTable] = []
        self._covered: dict[bytes, int] = {}
        self._begins: dict[bytes, int] = {}
        """Where the session began in each of its packs."""
        self._slot: Slot | None = None
        self._pack: PackAppender | None = None
        self.objects_added: int = 0
        self.added_bytes: int = 0
        self._second: list[Encoded] = []
        """Blocks of trees and chunk lists that may be appended once more."""
        self._second_tables: list[BlockTable] = []
        self._second_bytes = 0
        self._second_allowance = 0
        self._appended_bytes = 0
        """What this session appended, without second copies."""
        self._added_to: dict[bytes, Added] = dict(earlier or {})
        self._earlier_bytes = 0
        self._helped_bytes = 0

    def __enter__(self) -> Self:
        sweep_temporary(self._fs, self._store.layout.temporary)
        sweep_pending(self._fs, self._store.layout)
        self._begin()
        return self

    def _begin(self) -> None:
        """Takes a slot, and notes the epoch in it."""
        slot = acquire(self._fs, self._store.layout)
        try:
            unlink_if_present(self._fs, slot.pending_path)
            state = read_state(self._fs, self._store.layout)
            self._epoch = state.epoch
            self._avoid = state.condemned
            self._count_earlier()
            self._store.packs.close()  # open files would hide that packs were deleted
            _, self._last_pack_id = slot.read()
            slot.write(self._epoch, self._last_pack_id)
        except BaseException:
            slot.release()
            raise
        self._slot = slot

    def _count_earlier(self) -> None:
        """Counts what earlier attempts added, except to packs that go: that is added again."""
        self._added_to = {
            pack_id: added
            for pack_id, added in self._added_to.items()
            if pack_id not in self._avoid and os.path.lexists(self._store.layout.pack(pack_id))
        }
        self._earlier_bytes = sum(added.size_bytes for added in self._added_to.values())
        self.objects_added += sum(added.objects for added in self._added_to.values())
        self.added_bytes += self._earlier_bytes

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        assert self._slot is not None
        try:
            if self._pack is not None:
                self._pack.discard_if_empty()
                self._pack.close()
            unlink_if_present(self._fs, self._slot.pending_path)
        finally:
            self._slot.release()

    @property
    def needed_bytes(self) -> int:
        """How many bytes the session has needed in the store so far, at least.

        What helpers added does not count: alone, the session might have needed less.
        """
        alone_bytes = self.added_bytes - self._earlier_bytes - self._helped_bytes
        alone_bytes -= self._second_bytes
        return alone_bytes + self._store.index.written_bytes

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Stores an object unless the store has it, and returns its id.

        Raises InvalidArgument for one that a reader would not accept.
        A hit in the index counts only when the pack really has the object.
        """
        identity = object_id(kind, data)
        if self.has(identity):
            return identity
        if len(data) > OBJECT_SIZE_MAX:
            raise InvalidArgument(f"An object of {len(data)} bytes is too large to store")
        check_object(kind, data)
        if self._add(kind, identity, data):
            self._submit()
        return identity

    def put_block(self, block: CheckedBlock) -> None:
        """Stores a block of another store as it is, which spares compressing it again.

        An object that the store already has is then stored twice.
        """
        self._append(Encoded.of_block(*block))

    def _add(self, kind: ObjectKind, identity: ObjectId, data: bytes) -> bool:
        """Adds an object to the current batch; returns whether the batch is full."""
        self._added[identity] = None
        self._batch.append((kind, identity, data))
        self._batch_size += len(data)
        return self._batch_size >= BATCH_SIZE or len(self._batch) >= BATCH_OBJECTS_MAX

    def has(self, identity: ObjectId) -> bool:
        """Returns whether a snapshot of this session may rely on an object."""
        return identity in self._added or self._store.has(identity, self._avoid)

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        """Returns an object of the store or of this session."""
        if identity in self._added:
            self._drain()
            table = self._added.get(identity)
            if table is not None:
                return self._store.packs.read(table.entry(identity))
        return self._store.get(kind, identity)

    def _submit(self) -> None:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # small captures never come here

            self._pool = ThreadPoolExecutor(2, thread_name_prefix="treesnap-compress")
        self._in_flight.append(self._pool.submit(encode_objects, self._taken_batch(), self._level))
        while self._in_flight and (
            len(self._in_flight) > _BATCHES_IN_FLIGHT_MAX or self._in_flight[0].done()
        ):
            self._append(self._in_flight.popleft().result())

    def _drain(self) -> None:
        """Appends everything that was put so far."""
        while self._in_flight:
            self._append(self._in_flight.popleft().result())
        if self._batch:
            self._append(encode_objects(self._taken_batch(), self._level))

    def _taken_batch(self) -> list[tuple[ObjectKind, ObjectId, bytes]]:
        batch, self._batch, self._batch_size = self._batch, [], 0
        return batch

    def _append(self, encoded: Encoded) -> None:
        pack = self._current_pack()
        count, size_bytes = encoded.object_count, len(encoded.data)
        self.objects_added += count
        self.added_bytes += size_bytes
        self._appended_bytes += size_bytes
        self._refuse_beyond_limit(size_bytes)
        self._take_tables(pack.append(encoded))
        self._second += encoded.without_content
        self._note_appended(pack, Added(count, size_bytes))
        if sum(len(block.data) for block in self._second) > _SECOND_PENDING_MAX:
            self._append_second()
        if len(self._added) >= _ENTRIES_MAX:
            self._flush_index()

    def _take_tables(self, tables: Iterable[BlockTable]) -> None:
        """Finds what blocks hold that were appended, and indexes it with the next part."""
        for table in tables:
            self._added.update(dict.fromkeys(map(ObjectId, table.ids), table))
            self._unindexed.append(table)

    def _append_second(self) -> None:
        """Appends second copies as far as they are cheap, those nearest to the root first.

        In a collection they count as waste, so a pack may never consist of them to a large part.
        A session that adds little to a pack of others has none, and a full disk or store gets none.
        """
        blocks, self._second = self._second, []
        for block in reversed(blocks):
            size_bytes = len(block.data)
            share = max(_SECOND_SHARE * self._appended_bytes, self._second_allowance)
            limit = min(share, self._appended_bytes / 8)
            if self._second_bytes + size_bytes > limit:
                continue
            pack = self._current_pack()
            try:
                self._refuse_beyond_limit(size_bytes)
                self._second_tables += pack.append(block)
            except StorageFull:
                return
            except OSError as error:
                if not is_full(error):
                    raise
                return
            self._second_bytes += size_bytes
            self.added_bytes += size_bytes
            self._note_appended(pack, Added(0, size_bytes))

    def _note_appended(self, pack: PackAppender, more: Added) -> None:
        before = self._added_to.get(pack.pack_id, Added(0, 0))
        self._added_to[pack.pack_id] = Added(
            before.objects + more.objects, before.size_bytes + more.size_bytes
        )
        self._covered[pack.pack_id] = pack.end
        if pack.is_full:
            self._seal(pack)

    def _refuse_beyond_limit(self, size_bytes: int = 0) -> None:
        """Raises StorageFull when the store is larger than it may be, or some bytes make it so."""
        limit = self._size_bytes_max
        if limit is None or (taken_bytes := self._store.size_bytes()) + size_bytes <= limit:
            return
        error = StorageFull(
            f"The store may take {format_size(limit)} and takes {size_text(taken_bytes)}, and the "
            "snapshot needs more",
            code=ErrorCode.OVER_QUOTA,
            path=self._store.path,
        )
        error.needed_bytes = self.needed_bytes
        error.limit_bytes = limit
        raise error

    def _current_pack(self) -> PackAppender:
        if self._pack is None:
            self._pack = self._resumed_pack()
            if self._pack is None:
                self._pack = PackAppender.create(self._fs, self._store.layout)
                self._second_allowance = _SECOND_SIZE_MIN
            assert self._slot is not None
            self._slot.write(self._epoch, self._pack.pack_id)
            self._begins[self._pack.pack_id] = self._pack.end
        return self._pack

    def _resumed_pack(self) -> PackAppender | None:
        pack_id = self._last_pack_id
        if not any(pack_id) or pack_id in self._avoid:
            return None
        covered = self._store.index.covered().get(pack_id, 0)
        resumed = PackAppender.resume(self._fs, self._store.layout, pack_id, covered)
        if resumed is None:
            return None
        pack, tables = resumed
        try:
            for table in tables:
                for entry in table.entries:
                    self._store.packs.read(entry)
        except Corrupt:
            pack.close()
            return None
        except BaseException:
            pack.close()
            raise
        self._take_tables(tables)
        self._covered[pack_id] = pack.end
        return pack

    def _seal(self, pack: PackAppender) -> None:
        pack.seal()
        pack.sync()
        pack.close()
        self._covered[pack.pack_id] = pack.end
        self._pack = None
        self._last_pack_id = bytes(16)

    def _flush_index(self) -> None:
        """Syncs what was appended and publishes an index part for it."""
        if self._pack is not None:
            self._pack.sync()
        tables = self._unindexed + self._second_tables
        if tables:
            self._store.begin_index()
            self._store.index.write_part(entries_of(tables), self._covered)
        self._added = {key: table for key, table in self._added.items() if table is None}
        self._unindexed, self._second_tables = [], []
        self._covered = {}

    def flush(self) -> None:
        """Makes everything that was put durable, and findable by others."""
        self._drain()
        self._append_second()
        self._flush_index()

    def pause(self) -> None:
        """Appends everything that was put so far and ends the threads; more may be put then.

        The process can be forked then: a lock that a thread holds stays locked in the child.
        """
        self._drain()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def of_helper(self) -> Writer:
        """Returns a session for this process, which was forked from that of the present one.

        It has a slot and a pack of its own, and publishes nothing. It may not have a limit: what
        several sessions store twice would count.
        """
        writer = Writer(self._store)
        writer._begin()  # without a sweep, which could take a file that another has not locked yet
        return writer

    def _forget_removed(self) -> None:
        """Takes packs out of the index that a collection removed while the session had them."""
        layout = self._store.layout
        gone = {pack_id for pack_id in self._added_to if not os.path.lexists(layout.pack(pack_id))}
        with suppress(Busy):
            self._store.index.forget(gone, self._store.wait_s)

    def finish(self) -> Finished:
        """Makes everything durable and findable; returns what :meth:`take` needs of it."""
        self.flush()
        return [(pack_id, *added) for pack_id, added in self._added_to.items()]

    def take(self, finished: Finished) -> None:
        """Counts what the session of a helper added, and finds it from now on.

        It began later than this session. So if no more than one collection condemned packs since
        this one began, the same holds for it.
        """
        for pack_id, objects, size_bytes in finished:
            before = self._added_to.get(pack_id, Added(0, 0))
            after = Added(before.objects + objects, before.size_bytes + size_bytes)
            self._added_to[pack_id] = after
            self.objects_added += objects
            self.added_bytes += size_bytes
            self._helped_bytes += size_bytes
        self._store.index.refresh()

    def copy(self, entries: Iterable[IndexEntry], avoid: frozenset[bytes]) -> None:
        """Appends objects of other packs, verified, and makes them durable; for the collector.

        The session's own pack is never one of those to ``avoid``. The index knows the new
        places afterwards. What was appended is undone when it raises: a copy that
        finds no room leaves the disk no fuller. The session is over then.
        """
        self._avoid |= avoid
        self._level = LEVEL_REWRITE
        try:
            for entry in entries:
                data = self._store.packs.read(entry)
                if self._add(ObjectKind(entry.kind), entry.id, data):
                    self._drain()
            self.flush()
        except (OSError, Corrupt):
            self._undo_copy()
            raise

    def _undo_copy(self) -> None:
        """Truncates packs to where the session began in them, unless the index covers more.

        No other process can rely on what no index part covers.
        """
        with suppress(OSError):
            self._store.index.refresh()
            covered = self._store.index.covered()
            for pack_id, begin in self._begins.items():
                end = max(begin, covered.get(pack_id, 0))
                cut_back(self._fs, self._store.layout, pack_id, end)

    def publish(
        self,
        record: SnapshotRecord,
        root_id: str,
        sequence: int,
        sources: Iterable[Snapshot] = (),
    ) -> tuple[SnapshotId, SnapshotName]:
        """Makes all objects durable, then the snapshot, and returns its id.

        The record says how much was added to the packs. ``sources`` are the snapshots from which
        it has objects that the session neither stored nor looked for.
        After return the snapshot survives a power cut. Raises EpochChanged when
        collections overtook the session, and NotFound when a source is gone; nothing is published
        then.
        """
        self.flush()
        record = record._replace(added_bytes=self.added_bytes)
        return self.publish_payload(SNAPSHOT.payload(record), root_id, sequence, sources)

    def publish_payload(
        self, payload: bytes, root_id: str, sequence: int, sources: Iterable[Snapshot] = ()
    ) -> tuple[SnapshotId, SnapshotName]:
        """Does what :meth:`publish` does, for a record that was encoded elsewhere.

        It keeps its id. Raises Corrupt for one that no reader would accept.
        """
        assert self._slot is not None
        self.flush()
        if self.objects_added:
            self._refuse_beyond_limit()
        log = self._store.snapshots
        identity = log.write_pending(self._slot.pending_path, payload)
        if read_state(self._fs, self._store.layout).epoch > self._epoch + 1:
            self._forget_removed()
            raise EpochChanged(self._added_to)
        for source in sources:  # behind the pending record, which collections see from now on
            log.require(source)
        name = SnapshotName(sequence, identity)
        log.promote(self._slot.pending_path, root_id, name)
        with suppress(OSError):  # the snapshot is published; tidying can wait
            self._store.index.merge_if_many()
            self._store.index.drop_damaged()
        Reserve(self._fs, self._store.layout).fill()
        return identity, name
