"""The epoch that keeps writers and garbage collections out of each other's way.

Rules (no clock is used, and no process waits for another):

1. The state holds an epoch number and the set of *condemned* packs. Only the
   collector changes it, by replacing the file, under the collector's lock.
2. A writer remembers the epoch at which it began, and treats objects that lie in
   packs condemned by then as absent: it stores them again.
3. A writer publishes in two steps: it writes its snapshot to ``pending``, then
   reads the epoch again. If the epoch is at most one higher than at its
   beginning, it renames the snapshot into place. Otherwise it withdraws, and the
   capture is done again at the new epoch.
4. The collector marks what snapshots need, and only then reads what is in which
   pack; raises the epoch and condemns packs that nothing needs; raises the epoch
   again; then looks at ``pending`` first and ``snapshots`` second, spares every
   condemned pack that something new needs, and only then deletes.
5. A record may have objects of a snapshot that its writer neither stored nor looked for, such
   as those of the other side of a merge. When the record is pending, its writer looks whether
   that snapshot is still there, and withdraws if not.

Why it holds: a writer that began before the condemnation, at epoch s, finds the
epoch at s + 1 or below only before the second raise; so its snapshot was in
``pending`` before the collector looked, and what it needs was spared. A writer
that began later never relied on a condemned pack. What the first look found lies
in packs as they are read after it: objects are there before the snapshot is. Read
before it, a pack may look empty of what a snapshot needs that was published
meanwhile, and no later look would ask again. A collection that marks before the snapshot of
rule 5 is deleted needs its objects for that, and one that marks later sees the record. The
design is that of fenced commits; see docs/explanation/garbage-collection.md.

What of it is synced, and why no more: the epoch orders processes that live at the
same time, all of which see a replaced file at once, and none of which survives a
power cut. So the state's name need not be durable; its content has to be, because
a torn state stops every writer. An older state that comes back costs nothing but
packs that writers avoid until the next collection, which starts from scratch.

When the state is lost, the epoch is put back. A writer may publish while the epoch is at most
one higher than at its beginning. So an epoch far beyond that of any writer is safe: a writer at
work does its capture again, and one that begins later relies on nothing that a collection may
have condemned before.
"""

from __future__ import annotations

from contextlib import suppress

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.fields import BYTES, SIZE, Table, array, parsed, single, where
from treesnap.core.codec.pack import PACK_ID_SIZE
from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.model.errors import Busy, Corrupt, NewerVersion
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.layout import Layout
from treesnap.core.store.quarantine import Quarantine
from treesnap.core.store.records import read_record, write_record
from treesnap.core.store.store import Store
from treesnap.core.store.writer_slot import acquire, slot_states

_EPOCH_MAX = (1 << 63) - 1


class CollectorState(NamedTuple):
    """The epoch, and the packs that are about to be deleted."""

    epoch: int = 0
    condemned: frozenset[bytes] = frozenset()


def read_state(fs: ReadingFileSystem, layout: Layout) -> CollectorState:
    """Returns the current state; a store that never collected is at epoch 0."""
    return read_record(fs, layout.collector_state, COLLECTION) or CollectorState()


def lost_packs(store: Store) -> set[bytes]:
    """Returns the packs that are gone or cut off, and that no collection removed.

    Condemned ones may be gone: a collection that was killed had no time to write the index.
    """
    missing = store.missing_packs()
    if missing:
        with suppress(Corrupt):
            missing -= read_state(store.fs, store.layout).condemned
    return missing


_PACK_ID = where(BYTES, lambda identity: len(identity) == PACK_ID_SIZE, "is not the id of a pack")
_STATE = Table(
    CollectorState,
    "collector state",
    version=None,
    epoch=where(SIZE, lambda epoch: epoch <= _EPOCH_MAX, "is not possible"),
    condemned=parsed(array(_PACK_ID), frozenset, lambda ids: tuple(sorted(ids))),
)
COLLECTION: Format[CollectorState] = Format.of(FileKind.COLLECTION, _STATE)
COLLECTED_SIZE = Format(
    FileKind.COLLECTED_SIZE, *single("size", version=None, size_bytes=SIZE), 1 << 10
)


def write_state(fs: FileSystem, layout: Layout, state: CollectorState) -> None:
    """Replaces the state, atomically. The caller holds the collector's lock. Costs one sync."""
    write_record(fs, layout, layout.collector_state, COLLECTION, state, durable_name=False)


def read_collected_size(fs: ReadingFileSystem, layout: Layout) -> int:
    """Returns the bytes of packs and index after the last collection, or 0 if unknown."""
    try:
        return read_record(fs, layout.collected_size, COLLECTED_SIZE) or 0
    except (OSError, Corrupt):
        return 0


def write_collected_size(fs: FileSystem, layout: Layout, size_bytes: int) -> None:
    """Writes the size that a collection left: a hint, not synced, and left out on a full disk."""
    if read_collected_size(fs, layout) == size_bytes:
        return
    with suppress(OSError):
        write_record(fs, layout, layout.collected_size, COLLECTED_SIZE, size_bytes, durable=False)


LEAP = 1 << 32
"""More than all collections can raise the epoch before a slot is written again."""
_LEAP_MAX = 1 << 62


def oldest_epoch_possible(fs: ReadingFileSystem, layout: Layout) -> int:
    """Returns the highest epoch that a writer at work has seen; the present one is not lower."""
    return max((slot.epoch for slot in slot_states(fs, layout) if slot.is_busy), default=0)


def rebuild_state(store: Store) -> str | None:
    """Writes a new state beyond any epoch that a writer can know. Costs two syncs.

    The caller holds the collector's lock, so that nothing is condemned meanwhile. Raises
    Busy while a writer is at work whose slot does not say when it began. The highest epoch is
    written to a slot as well, for the next time.
    """
    fs, layout = store.writing_fs, store.layout
    needed = 0
    for state_of_slot in slot_states(fs, layout):
        if state_of_slot.is_busy and not state_of_slot.epoch:
            raise Busy("A writer is at work; repair the collector state when it has ended")
        needed = max(needed, state_of_slot.epoch)
    try:
        state = read_state(fs, layout)
        if state.epoch >= oldest_epoch_possible(fs, layout):
            return None
        needed = max(needed, state.epoch)
    except NewerVersion:
        return None
    except Corrupt:
        pass
    epoch = min(needed + LEAP, _LEAP_MAX)
    kept = Quarantine(fs, layout).keep_copy(layout.collector_state)
    write_state(fs, layout, CollectorState(epoch=epoch))
    slot = acquire(fs, layout)
    try:
        slot.write(epoch, slot.read()[1])
    finally:
        slot.release()
    return "Wrote a new collector state" + (f"; the damaged one is {kept}" if kept else "")
