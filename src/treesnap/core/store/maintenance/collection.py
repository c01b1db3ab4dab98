"""``gc``: give back the space of everything that no snapshot needs.

The order, and why it is safe beside any number of writers, is in
:mod:`treesnap.core.store.collector`. What a readable record or tree refers to is never deleted.
If one is damaged, every object whose id still stands in its bytes counts as needed, the result
names the snapshot, and the collection goes on; see ``docs/adr``. An automatic collection deletes
nothing then. A disk error is not damage: it stops the collection. What a record of a newer
version needs is not known: beside one, no collection deletes anything.

A damaged or torn pack is rewritten only if every object that snapshots need was found: then
nothing needed can be hidden in it. A pack whose needed content turns out to be damaged while it
is copied stays.

Packs are rewritten in as many rounds as the room on the disk demands, usually one. On a
full disk the first round deletes dead packs, which makes room for the next. Where there are none,
the dead blocks of the others become holes in their files first.

A dry run says what would go if nothing else happened. Beside writers a collection right after it
may take less: a writer continues a pack that was idle, or a snapshot needs again what was garbage
when its capture found it in the store. The result says so (``postponed``), and the next collection
takes what is garbage by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.codec.snapshot import RECORD_SIZE_MAX
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.durable import read_file, sweep_temporary
from treesnap.core.fs.os_errors import is_full
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.errors import Busy, Corrupt, NewerVersion, NotFound, TreesnapError
from treesnap.core.model.events import Monitor, Phase
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import GcResult
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.store.collector import lost_packs, write_collected_size
from treesnap.core.store.fence import CollectorHeld, Maintaining, maintain
from treesnap.core.store.maintenance.pack_usage import PackUsage, StoreUsage
from treesnap.core.store.maintenance.reachability import Reachability
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.core.store.writer_slot import is_slot_name, sweep_pending

_COPY_OVERHEAD_SIZE = 64 << 10
_ENTRY_OVERHEAD_SIZE = 128
"""What a copied object takes at most in the table and in the index."""
_TOLD_AFTER = 256
"""Objects after which the monitor is told that they were marked."""


def collect(
    store: Store,
    proof: CollectorHeld,
    *,
    monitor: Monitor,
    wait_s: float,
    dry_run: bool,
    is_automatic: bool,
) -> GcResult:
    """Collects garbage.

    An automatic collection deletes nothing when it meets damage, and returns why.
    """
    with maintain(store, proof, wait_s=wait_s) as maintaining:
        collection = _Collection(store, maintaining, monitor=monitor, is_automatic=is_automatic)
        return collection.run(dry_run=dry_run)


class _Collection:
    """One garbage collection. The caller holds the collector's lock."""

    def __init__(
        self,
        store: Store,
        maintaining: Maintaining,
        *,
        monitor: Monitor,
        is_automatic: bool,
    ) -> None:
        self._monitor = monitor
        self._fs = store.writing_fs
        self._store = store
        self._maintaining = maintaining
        self._reserve = maintaining.reserve
        self._reachable = Reachability(store, around_damage=True)
        self._is_automatic = is_automatic
        self._damaged: dict[SnapshotId, None] = {}
        self._newer: set[str] = set()
        """Records that are of a newer version, or need a tree that is, by path."""
        self._marked: set[str] = set()
        self._roots: set[str] = set()
        """The roots of snapshots that need something."""
        self._new: list[ObjectId] = []
        """Needed by snapshots that were published after the packs were read."""
        self._deleted: set[bytes] = set()
        self._copied_bytes = 0
        self._emptied_bytes = 0
        """Bytes freed in packs that could not be rewritten at first, for lack of room."""
        self._postponed: list[str] = []
        self._copying: PackUsage | None = None
        """The pack that is read at the moment, to be written into others."""
        self._spared: set[bytes] = set()
        """Packs that stay because new snapshots need something in them."""

    def run(self, *, dry_run: bool) -> GcResult:
        """Runs one whole collection."""
        store = self._store
        old_parts = list(store.index.parts) + list(store.index.damaged)
        sweep_pending(self._fs, store.layout)
        self._monitor.begin(Phase.MARK, None, None)
        # Before any pack is read: what a snapshot needs is there by then.
        for count, _ in enumerate(self._mark(), start=1):
            if count % _TOLD_AFTER == 0:
                self._monitor.advance(_TOLD_AFTER, 0)
        usage = StoreUsage(store, self._reachable.seen)
        kept = len(self._reachable.seen)
        if dry_run:
            going = [] if self._must_not_delete() else [*usage.dead, *usage.rewritten]
            self._copied_bytes = sum(pack.needed_bytes for pack in going)
        elif self._must_not_delete():
            going = []
            # The next automatic collection waits until the store has grown from here.
            write_collected_size(self._fs, store.layout, store.size_bytes())
        else:
            self._sweep(usage, old_parts)
            going = [pack for pack in usage.packs.values() if pack.id in self._deleted]
        if self._newer:
            written = count_text(len(self._newer), "snapshot was", "snapshots were")
            self._postponed.append(f"{written} written by a newer treesnap")
        elif not dry_run and self._must_not_delete():
            self._postponed.append(
                f"{count_text(len(self._damaged), 'snapshot is', 'snapshots are')} damaged"
            )
        if self._spared:
            packs = count_text(len(self._spared), "pack is", "packs are")
            self._postponed.append(f"{packs} needed by snapshots taken meanwhile")
        dead = sum(not pack.needed_count for pack in going)
        return GcResult(
            freed_bytes=max(
                0 if going else self._emptied_bytes,
                sum(pack.size_bytes for pack in going) - self._copied_bytes,
            ),
            removed_objects=sum(pack.object_count - pack.needed_count for pack in going),
            removed_packs=dead,
            rewritten_packs=len(going) - dead,
            kept_objects=kept,
            dry_run=dry_run,
            damaged=tuple(self._damaged),
            newer=len(self._newer),
            snapshots=len(self._marked | self._damaged.keys()),
            roots=len(self._roots),
            waste_bytes=sum(pack.waste_bytes for pack in usage.kept),
            postponed=" and ".join([*usage.postponed, *self._postponed]) or None,
        )

    def _mark(self) -> Iterator[ObjectId]:
        """Walks every snapshot that was not walked yet; pending ones first.

        Pending ones have writers, and cannot be skipped: an unreadable one stops the collection.
        Of a damaged published one, everything that its bytes still name is needed. Yields what
        they need and no earlier one needed.
        """
        log = self._store.snapshots
        layout = self._store.layout
        for name in self._fs.list_names(layout.pending):
            if not is_slot_name(name):
                continue  # it will not be published
            path = os.path.join(layout.pending, name)
            try:
                record = log.load_record(path, None)
            except NotFound:
                continue
            except NewerVersion:
                self._newer.add(path)
                continue
            for reference in self._reachable.add(record):
                yield reference.id
        for root_id, snapshot_name in list(log.all_names()):
            self._roots.add(root_id)
            if snapshot_name.id in self._marked:
                continue
            try:
                record = log.load_record(log.path(root_id, snapshot_name), snapshot_name.id)
            except NotFound:
                continue
            except NewerVersion:
                self._newer.add(log.path(root_id, snapshot_name))
                continue
            except Corrupt:
                self._damaged[snapshot_name.id] = None
                yield from self._remains(log.path(root_id, snapshot_name))
                continue
            damaged, newer = len(self._reachable.damaged), len(self._reachable.newer)
            for reference in self._reachable.add(record):
                yield reference.id
            self._marked.add(snapshot_name.id)
            if len(self._reachable.newer) > newer:
                self._newer.add(log.path(root_id, snapshot_name))
            if len(self._reachable.damaged) > damaged:
                self._damaged[snapshot_name.id] = None

    def _remains(self, path: str) -> list[ObjectId]:
        """Returns the objects that only the damaged file of a snapshot still names."""
        try:
            data = read_file(self._fs, path, RECORD_SIZE_MAX)
        except (FileNotFoundError, Corrupt):
            return []
        self._store.scan_uncovered()
        self._store.scan_everything()
        return [reference.id for reference in self._reachable.add_remains(data)]

    def _sweep(self, usage: StoreUsage, old_parts: list[str]) -> None:
        """Deletes what can go, in rounds, and leaves index, state and reserve in order."""
        dead, rewritten = usage.dead, usage.rewritten
        going = frozenset(pack.id for pack in [*dead, *rewritten])
        while dead or rewritten:
            fitting = self._fitting(rewritten)
            if not dead and not fitting:
                if self._emptied_bytes or not self._empty(rewritten):
                    break
                continue
            rewritten = [pack for pack in rewritten if pack not in fitting]
            try:
                self._copy(fitting, going)
            except Corrupt:
                if self._copying is None:
                    raise  # not of a pack, such as the collector's state
                self._copying.is_damaged = True
                rewritten = [pack for pack in [*fitting, *rewritten] if not pack.is_damaged]
                continue
            except OSError as error:
                if not is_full(error):
                    raise
                rewritten, fitting = [*fitting, *rewritten], []
                if not dead and (self._emptied_bytes or not self._empty(rewritten)):
                    break
            self._delete(frozenset(pack.id for pack in [*dead, *fitting]))
            dead = []
        if rewritten:
            self._postponed.append(
                f"there is no room to rewrite {count_text(len(rewritten), 'pack')}"
            )
        if self._deleted or self._emptied_bytes or usage.is_index_stale():
            try:
                self._reserve.retry_without_reserve(lambda: self._write_index(usage, old_parts))
            except OSError as error:
                if not is_full(error):
                    raise
                self._postponed.append("there is no room to write the index")
        self._maintaining.finish()
        sweep_temporary(self._fs, self._store.layout.temporary)
        with suppress(Busy):  # the next collection does it
            self._store.snapshots.finish_forgetting()
        self._reserve.fill()
        write_collected_size(self._fs, self._store.layout, self._store.size_bytes())

    def _write_index(self, usage: StoreUsage, old_parts: list[str]) -> None:
        """Writes the index anew, without packs that are lost.

        Captures trust no stat cache as long as the index names one: a directory that has not
        changed since may need what was in it. So the caches go first.
        """
        if lost_packs(self._store):
            try:
                for root in self._store.roots_with_files():
                    root.forget_cache("gc", self._store.wait_s)
            except TreesnapError as error:
                self._postponed.append(f"the index names lost packs: {error.message}")
                return
        self._store.begin_index()
        usage.rebuild_index(self._deleted, old_parts)

    def _must_not_delete(self) -> bool:
        """Returns whether nothing may go: an automatic collection does not decide about damage,
        and none about what is not known.
        """
        return bool(self._newer) or (self._is_automatic and bool(self._damaged))

    def _fitting(self, packs: list[PackUsage]) -> list[PackUsage]:
        """Returns the packs whose copies fit on the disk, the smallest copies first."""
        fd = self._fs.open(self._store.layout.packs, os.O_RDONLY | os.O_DIRECTORY)
        try:
            room = self._fs.free_bytes(fd) - _COPY_OVERHEAD_SIZE
        finally:
            self._fs.close(fd)
        fitting = []
        for pack in sorted(packs, key=lambda item: item.needed_bytes):
            room -= pack.needed_bytes + _ENTRY_OVERHEAD_SIZE * pack.needed_count
            if room < 0:
                break
            fitting.append(pack)
        return fitting

    def _copy(self, packs: list[PackUsage], going: frozenset[bytes]) -> None:
        """Copies what is needed of packs into others, verified and durable.

        Never into a pack that goes, in this round or a later one. Raises Corrupt when something
        needed of a pack is damaged, and OSError. Undoes the copy then.
        """
        if not packs:
            return
        self._copying = None
        object_count = sum(pack.needed_count for pack in packs)
        self._monitor.begin(Phase.REWRITE, object_count, None)
        with Writer(self._store) as writer:
            writer.copy(self._needed_of(packs), going)
            self._copied_bytes += writer.added_bytes

    def _needed_of(self, packs: list[PackUsage]) -> Iterator[IndexEntry]:
        for pack in packs:
            self._copying = pack
            yield from pack.needed
            self._monitor.advance(pack.needed_count, pack.needed_bytes)
        self._copying = None

    def _delete(self, condemned: frozenset[bytes]) -> None:
        """Deletes packs, except those that new snapshots need. Copies are durable before."""

        def settle() -> frozenset[bytes]:
            self._new += self._mark()
            if self._must_not_delete():
                return frozenset()
            spared = self._needed_again(condemned)
            self._spared |= spared
            return condemned - spared

        self._deleted |= self._maintaining.retire(condemned, settle)

    def _empty(self, packs: list[PackUsage]) -> bool:
        """Gives back the space of dead blocks of packs that there is no room to rewrite.

        Returns whether there was any. Then they may fit, and are rewritten after all.
        """
        dead: dict[bytes, list[Block]] = {}

        def settle() -> dict[bytes, list[Block]]:
            self._new += self._mark()
            if not self._must_not_delete():
                new = frozenset(self._new)
                dead.update((pack.id, pack.dead_blocks(new)) for pack in packs)
            return dead

        try:
            self._emptied_bytes = self._maintaining.empty(
                frozenset(pack.id for pack in packs), settle
            )
        except Unsupported:  # the file system has no holes
            pass
        except OSError as error:
            if not is_full(error):
                raise
        for pack in packs:
            pack.emptied = frozenset(block.offset for block in dead.get(pack.id, ()))
        self._reserve.fill()  # a rewriting that finds no inode must not take the last one
        return self._emptied_bytes > 0

    def _needed_again(self, condemned: frozenset[bytes]) -> frozenset[bytes]:
        """Returns the condemned packs that hold the only copy of something newly needed."""
        spared: set[bytes] = set()
        if self._new:
            self._store.index.refresh()  # writers that avoid the packs have stored it again
            self._store.scan_uncovered()
        for identity in self._new:
            places = {entry.pack_id for entry in self._store.index.find_all(identity)}
            if not places:
                return condemned
            if not self._store.has(identity, condemned):
                spared |= places & condemned
        return frozenset(spared)
