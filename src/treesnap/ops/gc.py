"""``gc``: give back the space of everything that no snapshot needs.

The order, and why it is safe beside any number of writers, is in
:mod:`treesnap.store.collector`. Nothing is deleted unless every snapshot could be
walked to its last object: what cannot be read cannot be known to be garbage.

A pack that is damaged or torn goes too, with what is needed of it copied, when every
object that snapshots need was found: then nothing needed can be hidden in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treesnap.codec.index import IndexEntry
from treesnap.codec.pack import RECORD_HEADER_SIZE
from treesnap.errors import NotFound
from treesnap.events import Phase
from treesnap.fs.durable import sweep_temporary, unlink_if_present
from treesnap.model import ObjectId
from treesnap.ops.access import opened
from treesnap.ops.reachable import Reachability
from treesnap.results import GcResult
from treesnap.store.collector import CollectorState, read_state, write_state
from treesnap.store.lock import held
from treesnap.store.slot import NO_PACK, Slot, is_slot_name, sweep_pending, try_acquire
from treesnap.store.store import Store
from treesnap.store.writer import Writer

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

WASTE_SHARE_MIN = 0.2
"""A pack with at least this share of waste is rewritten."""
DRAIN_WAIT_S = 2.0
"""How long to let older writers finish at most, to spare them doing their capture again."""


@dataclass(slots=True)
class Survey:
    """What is in the packs, and what of it is needed."""

    sizes: dict[bytes, int] = field(default_factory=dict)
    covered: dict[bytes, int] = field(default_factory=dict)
    """By pack: how many of its bytes the index may cover."""
    records: dict[bytes, list[IndexEntry]] = field(default_factory=dict)
    busy: set[bytes] = field(default_factory=set)
    """Packs that a writer has open. They stay, and so does what the index knows of them."""
    broken: set[bytes] = field(default_factory=set)
    """Packs of which perhaps not every record was found, for damage or a torn tail."""
    damaged: set[bytes] = field(default_factory=set)
    """Those of them in which something needed may be hidden. They stay in the same way."""
    needed: dict[bytes, list[IndexEntry]] = field(default_factory=dict)
    """By pack: the entries that are needed from it; each object is needed from one pack."""
    dead: list[bytes] = field(default_factory=list)
    wasteful: list[bytes] = field(default_factory=list)

    @property
    def untouchable(self) -> set[bytes]:
        """Packs that are left as they are."""
        return self.busy | self.damaged

    @property
    def postponed(self) -> str | None:
        """Why packs are left as they are, or None."""
        reasons = [
            f"{len(packs)} {'pack is' if len(packs) == 1 else 'packs are'} {why}"
            for packs, why in ((self.busy, "being written to"), (self.damaged, "damaged"))
            if packs
        ]
        return " and ".join(reasons) or None

    @property
    def condemned(self) -> list[bytes]:
        """Packs that can go once what is needed of them was copied."""
        return self.dead + self.wasteful


def gc(handle: Handle, *, dry_run: bool) -> GcResult:
    """Collects garbage; see :meth:`treesnap.Handle.gc`."""
    with (
        opened(handle, "collect garbage", writing=True) as pair,
        held(
            handle.fs,
            pair.store.layout.collector_lock,
            operation="gc",
            what="The garbage collector",
            wait_s=handle.wait_s,
        ),
    ):
        return _Collection(handle, pair.store).collect(dry_run=dry_run)


class _Collection:
    def __init__(self, handle: Handle, store: Store) -> None:
        self._handle = handle
        self._fs = handle.fs
        self._store = store
        self._reachable = Reachability(store)
        self._marked: set[str] = set()

    def collect(self, *, dry_run: bool) -> GcResult:
        """Does one whole collection."""
        store = self._store
        old_parts = list(store.index.parts) + list(store.index.damaged)
        sweep_pending(self._fs, store.layout)
        self._handle.monitor.begin(Phase.MARK, None, None)
        self._mark()  # before any pack is read: what a snapshot needs is there by then
        survey = self._survey_packs()
        self._judge(survey)
        kept = len(self._reachable.seen)
        removed = sum(
            len(survey.records[pack_id]) - len(survey.needed.get(pack_id, ()))
            for pack_id in survey.condemned
        )
        freed = sum(survey.sizes[pack_id] for pack_id in survey.condemned) - sum(
            _bytes_of(survey.needed.get(pack_id, ())) for pack_id in survey.wasteful
        )
        if not dry_run and survey.condemned:
            spared = self._sweep(survey, old_parts)
            freed -= sum(survey.sizes[pack_id] for pack_id in spared)
            removed -= sum(len(survey.records[pack_id]) for pack_id in spared)
        elif not dry_run:
            self._tidy(survey, old_parts)
        if not dry_run:
            sweep_temporary(self._fs, store.layout.temporary)
        return GcResult(
            freed_bytes=max(0, freed),
            removed_objects=max(0, removed),
            removed_packs=len(survey.dead),
            rewritten_packs=len(survey.wasteful),
            kept_objects=kept,
            dry_run=dry_run,
            postponed=survey.postponed,
        )

    def _survey_packs(self) -> Survey:
        """Reads the record headers of all packs, except those that a writer has open."""
        survey = Survey()
        for name in self._fs.list_names(self._store.layout.slots):
            slot = try_acquire(self._fs, self._store.layout, name)
            if slot is None:
                survey.busy.add(self._pack_of_busy_slot(name))
            else:
                slot.release()
        survey.busy.discard(NO_PACK)
        for pack_id, size in self._store.packs.sizes().items():
            try:
                sound = self._store.sound(pack_id)
            except FileNotFoundError:
                continue
            survey.records[pack_id] = sound.entries
            survey.covered[pack_id] = sound.covered
            survey.sizes[pack_id] = size
            if not sound.is_whole:
                survey.broken.add(pack_id)
        return survey

    def _pack_of_busy_slot(self, name: str) -> bytes:
        fd = self._fs.open(os.path.join(self._store.layout.slots, name), os.O_RDONLY)
        try:
            return Slot(self._fs, self._store.layout, name, fd).read()[1]
        finally:
            self._fs.close(fd)

    def _mark(self) -> list[ObjectId]:
        """Walks every snapshot that was not walked yet; pending ones first.

        Those that are pending have writers, and cannot be given up: one that cannot be read
        stops the collection, as a published one does. Returns what they need that no
        earlier one did.
        """
        log = self._store.snapshots
        layout = self._store.layout
        new: list[ObjectId] = []
        for name in self._fs.list_names(layout.pending):
            if not is_slot_name(name):
                continue  # nobody publishes it
            path = os.path.join(layout.pending, name)
            try:
                record = log.load_record(path, None)
            except NotFound:
                continue
            new += [identity for _, identity in self._reachable.add(record)]
        for root_id, snapshot_name in list(log.all_names()):
            if snapshot_name.id in self._marked:
                continue
            try:
                record = log.load_record(log.path(root_id, snapshot_name), snapshot_name.id)
            except NotFound:
                continue
            new += [identity for _, identity in self._reachable.add(record)]
            self._marked.add(snapshot_name.id)
        return new

    def _judge(self, survey: Survey) -> None:
        """Chooses for each needed object one pack, and the packs that can go."""
        claimed = self._claimed(survey)
        survey.needed = {pack_id: [] for pack_id in survey.records}
        for entry in claimed.values():
            survey.needed[entry.pack_id].append(entry)
        is_lost = len(claimed) < len(self._reachable.seen)
        survey.damaged = {
            pack_id
            for pack_id in survey.broken - survey.busy
            if is_lost or not all(map(self._store.is_right, survey.needed[pack_id]))
        }
        for pack_id, needed in survey.needed.items():
            if pack_id in survey.untouchable:
                continue
            if not needed:
                survey.dead.append(pack_id)
            elif pack_id in survey.broken or _is_wasteful(needed, survey.records[pack_id]):
                survey.wasteful.append(pack_id)

    def _claimed(self, survey: Survey) -> dict[ObjectId, IndexEntry]:
        """Returns for each needed object the place that is kept: a right one, if there is one.

        Where there are several, the first is one that stays anyway, and no broken pack
        comes before a whole one.
        """
        claimed: dict[ObjectId, IndexEntry] = {}
        kinds = self._reachable.seen
        is_right = self._store.is_right
        for pack_id in sorted(
            survey.records, key=lambda item: (item not in survey.busy, item in survey.broken)
        ):
            for entry in survey.records[pack_id]:
                if kinds.get(entry.id) != entry.kind:
                    continue
                other = claimed.setdefault(entry.id, entry)
                if other is not entry and not is_right(other) and is_right(entry):
                    claimed[entry.id] = entry
        return claimed

    def _sweep(self, survey: Survey, old_parts: list[str]) -> set[bytes]:
        """Copies, condemns, looks again, deletes; returns the packs that were spared.

        What is deleted was copied durably first. The deletion itself is not synced: a pack
        that a power cut brings back is collected again.
        """
        store, layout = self._store, self._store.layout
        copied = self._copy(survey)
        state = read_state(self._fs, layout)
        condemned = frozenset(survey.condemned)
        write_state(self._fs, layout, CollectorState(epoch=state.epoch + 1, condemned=condemned))
        self._let_writers_finish(state.epoch + 1)
        write_state(self._fs, layout, CollectorState(epoch=state.epoch + 2, condemned=condemned))
        store.index.refresh()
        spared = self._spared(self._mark(), survey, copied)
        for pack_id in condemned - spared:
            unlink_if_present(self._fs, layout.pack(pack_id))
        self._rebuild_index(survey, condemned - spared, old_parts)
        write_state(self._fs, layout, CollectorState(epoch=state.epoch + 2))
        return set(spared)

    def _copy(self, survey: Survey) -> list[IndexEntry]:
        """Copies what is needed of wasteful packs into new ones, verified and durable."""
        wanted = [entry for pack_id in survey.wasteful for entry in survey.needed[pack_id]]
        if not wanted:
            return []
        self._handle.monitor.begin(Phase.REWRITE, len(wanted), None)
        with Writer(self._store) as writer:
            return writer.copy(wanted, frozenset(survey.condemned))

    def _let_writers_finish(self, epoch: int) -> None:
        """Waits a little for writers of an older epoch; correctness does not need it."""
        deadline = time.monotonic() + min(DRAIN_WAIT_S, self._handle.wait_s)
        while self._has_older_writer(epoch) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _has_older_writer(self, epoch: int) -> bool:
        layout = self._store.layout
        for name in self._fs.list_names(layout.slots):
            slot = try_acquire(self._fs, layout, name)
            if slot is not None:
                slot.release()
                continue
            fd = self._fs.open(os.path.join(layout.slots, name), os.O_RDONLY)
            try:
                if Slot(self._fs, layout, name, fd).read()[0] < epoch:
                    return True
            finally:
                self._fs.close(fd)
        return False

    def _spared(
        self, new: list[ObjectId], survey: Survey, copied: list[IndexEntry]
    ) -> frozenset[bytes]:
        """Returns the condemned packs that hold the only copy of something newly needed."""
        condemned = frozenset(survey.condemned)
        here = {entry.id for entry in copied}
        spared: set[bytes] = set()
        self._store.scan_uncovered()
        for identity in new:
            places = {entry.pack_id for entry in self._store.index.find_all(identity)}
            if not places:
                return condemned
            if identity not in here and not self._store.has(identity, condemned):
                spared |= places & condemned
        return frozenset(spared)

    def _tidy(self, survey: Survey, old_parts: list[str]) -> None:
        """Finishes what a killed collection or a power cut left, when there is no garbage."""
        if self._has_stale_index(survey):
            self._rebuild_index(survey, frozenset(), old_parts)
        state = read_state(self._fs, self._store.layout)
        if state.condemned:
            write_state(self._fs, self._store.layout, CollectorState(epoch=state.epoch))

    def _has_stale_index(self, survey: Survey) -> bool:
        """Returns whether the index lacks what it could know, or knows packs that are gone."""
        covered = self._store.index.covered()
        return (
            bool(self._store.index.damaged)
            or not covered.keys() <= survey.sizes.keys()
            or any(
                size > covered.get(pack_id, 0)
                for pack_id, size in survey.covered.items()
                if pack_id not in survey.untouchable
            )
        )

    def _rebuild_index(
        self,
        survey: Survey,
        deleted: frozenset[bytes],
        old_parts: list[str],
    ) -> None:
        """Writes one part for all packs that were surveyed and remain; drops the old parts.

        Synced, although the index is a hint: it is all that the index knows. Without it
        every command would scan all packs, and writers would store again what they hold.
        """
        remaining = survey.sizes.keys() - deleted
        covered = {
            pack_id: survey.covered[pack_id]
            for pack_id in remaining
            if pack_id not in survey.untouchable
        }
        entries = [
            entry
            for pack_id, size in covered.items()
            for entry in survey.records[pack_id]
            if entry.offset < size
        ]
        for name in old_parts:
            part = self._store.index.parts.get(name)
            if part is None:
                continue
            for pack_id in survey.untouchable & set(part.covered):
                covered[pack_id] = max(part.covered[pack_id], covered.get(pack_id, 0))
                entries += [entry for entry in part if entry.pack_id == pack_id]
        self._store.sync_names_of(covered)
        self._store.index.write_part(set(entries), covered, durable=True)
        self._store.index.remove_parts(old_parts)


def _is_wasteful(needed: list[IndexEntry], records: list[IndexEntry]) -> bool:
    return _bytes_of(needed) < (1 - WASTE_SHARE_MIN) * _bytes_of(records)


def _bytes_of(entries: Iterable[IndexEntry]) -> int:
    """Returns the bytes of records; a pack's footer is neither needed nor waste."""
    return sum(entry.stored_size + RECORD_HEADER_SIZE for entry in entries)
