"""What is in the packs, what of it snapshots need, and which packs should go.

Memory is that of an index part for each pack, 45 bytes for each object, and for each needed
object the place that is kept, 8 bytes; and while a pack is read, 130 bytes for each object in it.
Entries come out of it one at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import groupby

from treesnap.core.codec.index import IndexPart, encode_unsorted
from treesnap.core.codec.pack import BLOCK_SIZE_TARGET, PACK_SIZE_TARGET, Block, IndexEntry
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.quantities import count_text
from treesnap.core.store.maintenance.reachability import SeenObjects
from treesnap.core.store.packs import Sound
from treesnap.core.store.store import Store
from treesnap.core.store.writer_slot import NO_PACK, slot_states

WASTE_SHARE_MIN = 0.2
"""A pack with at least this share of waste is rewritten."""
FRAGMENTS_MIN = 64
"""A pack with this many small blocks, in at least half of its bytes, is rewritten."""
_FRAGMENT_RAW_SIZE_MAX = BLOCK_SIZE_TARGET // 8
_FRAGMENT_SHARE_MAX = 2 / FRAGMENTS_MIN
"""A small block has at most this share of its pack. What was joined already has more, so the next
copy waits until the pack has doubled."""
MERGED_MIN = 8
"""This many packs of about the same size become one; see :func:`_tier`."""


class PackUsage:
    """One pack: its objects, and which of them are needed from it."""

    def __init__(self, pack_id: bytes, size_bytes: int, sound: Sound) -> None:
        self.id = pack_id
        self.size_bytes = size_bytes
        self.covered: int = sound.covered
        """How many of its bytes the index may cover."""
        self.is_busy = False
        """A writer has it open. It stays, and so do its entries in the index."""
        self.is_broken: bool = not sound.is_whole
        """Damage or a torn tail may hide objects."""
        self.is_damaged = False
        """It is broken, and may hide something needed. It stays, and so do its entries."""
        data = encode_unsorted(sound.entries, {pack_id: sound.covered})
        self._part = IndexPart(data, pack_id.hex())
        self.count: int = self._part.count
        blocks = [table.block for table in sound.tables]
        torn_bytes = sum(entry.size_bytes for entry in sound.torn)
        self.object_bytes: int = sum(block.size for block in blocks) - torn_bytes
        """Bytes of all objects; a pack's footer is neither needed nor waste."""
        raw_size_bytes = sum(block.raw_size for block in blocks)
        small_max_bytes = min(_FRAGMENT_RAW_SIZE_MAX, raw_size_bytes * _FRAGMENT_SHARE_MAX)
        small = [block.size for block in blocks if block.raw_size <= small_max_bytes]
        self.is_fragmented: bool = (
            len(small) >= FRAGMENTS_MIN and 2 * sum(small) >= self.object_bytes
        )
        """Small sessions left blocks that compress better when they are joined."""
        self.needed_bytes: int = 0
        self.needed_count: int = 0
        self._is_needed = bytearray(self.count)
        self.emptied: frozenset[int] = frozenset()
        """Where blocks began that were replaced by zeros."""

    def __iter__(self) -> Iterator[IndexEntry]:
        """Yields the places of all objects, in the order of their ids."""
        return iter(self._part)

    def __getitem__(self, number: int) -> IndexEntry:
        entry = self._part.at(number)
        assert entry is not None
        return entry

    @property
    def object_count(self) -> int:
        """How many objects it holds; one that lies there twice counts once."""
        return sum(1 for _ in groupby(entry.id for entry in self))

    @property
    def indexed(self) -> Iterator[IndexEntry]:
        """The places that the index may have, in the order of their ids."""
        covered, emptied = self.covered, self.emptied
        return (entry for entry in self if entry.offset < covered and entry.offset not in emptied)

    def dead_blocks(self, new: AbstractSet[ObjectId]) -> list[Block]:
        """Returns the blocks of which nothing is needed, from here or among the ``new``."""
        alive = {self[number].offset for number in range(self.count) if self._is_needed[number]}
        alive |= {entry.offset for entry in self if entry.id in new}
        blocks = {entry.offset: entry.block for entry in self if entry.offset not in alive}
        return [blocks[offset] for offset in sorted(blocks)]

    @property
    def is_untouchable(self) -> bool:
        """Whether it is left as it is."""
        return self.is_busy or self.is_damaged

    @property
    def waste_bytes(self) -> int:
        """Bytes of objects that are not needed from here; second copies count as the first ones."""
        if self.needed_count == self.count:
            return 0
        wasted = 0
        places = zip(self, self._is_needed, strict=True)
        for _, group in groupby(places, key=lambda place: place[0].id):
            copies = list(group)
            if not any(is_needed for _, is_needed in copies):
                wasted += sum(entry.size_bytes for entry, _ in copies)
        return wasted

    @property
    def is_wasteful(self) -> bool:
        """Whether so much of it is waste that it should be rewritten."""
        return self.needed_bytes < (1 - WASTE_SHARE_MIN) * self.object_bytes

    @property
    def needed(self) -> Iterator[IndexEntry]:
        """The places of those objects that are needed from this pack, as they lie in it."""
        numbers = (number for number in range(self.count) if self._is_needed[number])
        return map(self.__getitem__, array("L", sorted(numbers, key=self._place_of)))

    def _place_of(self, number: int) -> int:
        """Returns a number by which objects are sorted as they lie in the pack."""
        entry = self[number]
        return entry.offset << 32 | entry.start

    def need(self, number: int, entry: IndexEntry, *, is_needed: bool) -> None:
        """Sets whether an object, which is that of the entry, is needed from this pack."""
        sign = int(is_needed) - self._is_needed[number]
        self._is_needed[number] = is_needed
        self.needed_count += sign
        self.needed_bytes += sign * entry.size_bytes


class StoreUsage:
    """All packs, read once, and what becomes of each.

    Make it after walking the snapshots: what they need is in the packs by then. Each needed
    object is needed from one pack.
    """

    def __init__(self, store: Store, needed: SeenObjects) -> None:
        self._store = store
        self._needed = needed
        """What snapshots need."""
        self.packs: dict[bytes, PackUsage] = {}
        self.dead: list[PackUsage] = []
        """Packs of which nothing is needed."""
        self.rewritten: list[PackUsage] = []
        """Packs that can go once what is needed of them was copied."""
        self._read()
        self._judge()

    @property
    def kept(self) -> list[PackUsage]:
        """The packs that stay because most of each is needed."""
        going = {pack.id for pack in [*self.dead, *self.rewritten]}
        packs = self.packs.values()
        return [pack for pack in packs if not pack.is_untouchable and pack.id not in going]

    @property
    def postponed(self) -> list[str]:
        """Why packs are left as they are."""
        packs = self.packs.values()
        busy = sum(pack.is_busy for pack in packs)
        damaged = sum(pack.is_damaged for pack in packs)
        return [
            f"{count_text(count, 'pack is', 'packs are')} {why}"
            for count, why in ((busy, "being written to"), (damaged, "damaged"))
            if count
        ]

    def _read(self) -> None:
        """Reads the tables of all packs.

        Looks at the slots again afterwards: a writer that began in between may truncate what was
        read of its pack.
        """
        busy = self._busy_packs()
        for pack_id, size in self._store.packs.sizes().items():
            try:
                self.packs[pack_id] = PackUsage(pack_id, size, self._store.sound(pack_id))
            except FileNotFoundError:
                continue
        busy |= self._busy_packs()
        sizes = self._store.packs.sizes()
        for pack in self.packs.values():
            was_cut = not pack.is_broken and sizes.get(pack.id, 0) < pack.covered
            pack.is_busy = pack.id in busy or was_cut

    def _busy_packs(self) -> set[bytes]:
        """Returns the packs that writers have open."""
        states = slot_states(self._store.fs, self._store.layout)
        return {state.pack_id for state in states if state.is_busy} - {NO_PACK}

    def _judge(self) -> None:
        """Chooses for each needed object one pack, and the packs that can go."""
        claimed = self._claim()
        is_lost = claimed < len(self._needed)
        for pack in self.packs.values():
            pack.is_damaged = (
                pack.is_broken
                and not pack.is_busy
                and (is_lost or not all(map(self._store.packs.is_right, pack.needed)))
            )
        idle = [pack for pack in self.packs.values() if not pack.is_untouchable]
        self.dead = [pack for pack in idle if not pack.needed_count]
        self.rewritten = [
            pack
            for pack in idle
            if pack.needed_count and (pack.is_broken or pack.is_wasteful or pack.is_fragmented)
        ]
        copied_bytes = sum(pack.needed_bytes for pack in self.rewritten)
        going = {pack.id for pack in [*self.dead, *self.rewritten]}
        others = [pack for pack in idle if pack.id not in going]
        self.rewritten += _mergeable(others, copied_bytes)

    def _claim(self) -> int:
        """Chooses for each needed object the place that is kept; returns how many have one.

        It is an intact one, if there is any. Of several, places in packs that stay anyway come
        first, and those in broken packs last.
        """
        packs = sorted(self.packs.values(), key=lambda item: (not item.is_busy, item.is_broken))
        starts: list[int] = []
        places = array("q", [-1]) * self._needed.number_end
        claimed = 0
        is_right = self._store.packs.is_right
        start = 0
        for pack in packs:
            starts.append(start)
            for number, entry in enumerate(pack):
                needed = self._needed.number_of(entry.id)
                if needed is None or self._needed.kind_of(needed) != entry.kind:
                    continue
                place = places[needed]
                if place >= 0:
                    which = bisect_right(starts, place) - 1
                    other, position = packs[which], place - starts[which]
                    kept = other[position]
                    if is_right(kept) or not is_right(entry):
                        continue
                    other.need(position, kept, is_needed=False)
                    claimed -= 1
                pack.need(number, entry, is_needed=True)
                places[needed] = start + number
                claimed += 1
            start += pack.count
        return claimed

    def is_index_stale(self) -> bool:
        """Returns whether the index lacks entries, or has entries of packs that are gone."""
        covered = self._store.index.covered()
        return (
            bool(self._store.index.damaged)
            or not covered.keys() <= self.packs.keys()
            or any(
                pack.covered > covered.get(pack.id, 0)
                for pack in self.packs.values()
                if not pack.is_untouchable
            )
        )

    def rebuild_index(self, deleted: set[bytes], old_parts: list[str]) -> None:
        """Writes one part for all packs that were read and remain; drops the old parts.

        Synced, although the index is a hint: this part is the whole index. Without it every
        command would scan all packs, and writers would store their objects again.
        """
        covered: dict[bytes, int] = {}
        sources: list[Iterable[IndexEntry]] = []
        untouchable: set[bytes] = set()
        for pack in self.packs.values():
            if pack.is_untouchable:
                untouchable.add(pack.id)
            elif pack.id not in deleted:
                covered[pack.id] = pack.covered
                sources.append(pack.indexed)
        for name in old_parts:
            part = self._store.index.parts.get(name)
            kept = untouchable & part.covered.keys() if part is not None else ()
            if part is not None and kept:
                for pack_id in kept:
                    covered[pack_id] = max(part.covered[pack_id], covered.get(pack_id, 0))
                sources.append(entry for entry in part if entry.pack_id in untouchable)
        self._store.replace_index(sources, covered, old_parts)


def _mergeable(packs: Iterable[PackUsage], copied_bytes: int) -> list[PackUsage]:
    """Returns the packs that lie in a tier with enough others.

    Together they are in a higher tier, or nearly, and count there as one, with what is
    copied anyway. So a byte is copied a logarithmic number of times, whatever is added
    between collections, and the next collection has nothing more to merge.
    """
    tiers: dict[int, list[PackUsage]] = {}
    for pack in packs:
        if pack.size_bytes < PACK_SIZE_TARGET // 2:
            tiers.setdefault(_tier(pack.size_bytes), []).append(pack)
    merged: list[PackUsage] = []
    for tier in sorted(tiers):
        is_joined = copied_bytes > 0 and _tier(copied_bytes) == tier
        if len(tiers[tier]) + is_joined >= MERGED_MIN:
            merged += tiers[tier]
            copied_bytes += sum(pack.needed_bytes for pack in tiers[tier])
    return merged


def _tier(size_bytes: int) -> int:
    """Returns a number that is one higher for packs of MERGED_MIN times the size."""
    return (size_bytes.bit_length() - 1) // (MERGED_MIN.bit_length() - 1)
