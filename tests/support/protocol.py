"""The protocol of ``treesnap.core.store.collector`` in other words: a model of the disk, and of
the writers and collectors that share it.

Every process is a generator that stops after each thing that others can see. Each rule
can be broken on purpose.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

OBJECTS = 3
"""How many different objects there are."""

Needs = frozenset[int]
Steps = Generator[None, None, None]

BROKEN_RULES = {
    "publishes without looking at the epoch",
    "publishes at two epochs more",
    "looks at the epoch before it is pending",
    "begins before it reads the epoch",
    "begins after its helper",
    "relies on condemned packs",
    "resumes a condemned pack",
    "raises the epoch once",
    "does not look at pending snapshots",
    "looks at snapshots before pending ones",
    "does not look a second time",
    "reads packs before it marks",
    "goes on where a dead collector stopped",
    "deletes before it copies",
}


@dataclass(eq=False)
class Pack:
    """A file: it lives on for a process that has it open."""

    objects: list[int] = field(default_factory=list)
    is_linked: bool = True


@dataclass(eq=False)
class Slot:
    """A lock, and the pack that the last holder noted."""

    holder: Process | None = None
    pack: Pack | None = None
    pending: Needs | None = None


class World:
    """What is on disk."""

    def __init__(self, broken: str | None) -> None:
        self.broken = broken
        self.epoch = 0
        self.condemned: frozenset[Pack] = frozenset()
        self.packs: list[Pack] = []
        self.slots: list[Slot] = []
        self.snapshots: dict[int, Needs] = {}
        self.published = 0
        self.collector: Process | None = None

    @property
    def linked(self) -> list[Pack]:
        return [pack for pack in self.packs if pack.is_linked]

    def free_slot(self, *, is_full: bool = False) -> Slot:
        """Returns a slot that no writer holds; its pack is left alone when it is full."""
        for slot in self.slots:
            if slot.holder is None:
                slot.pack = None if is_full else slot.pack
                return slot
        self.slots.append(Slot())
        return self.slots[-1]


class Process:
    """Something that takes steps until it is done or killed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.steps = self.run()

    def run(self) -> Steps:
        raise NotImplementedError

    def breaks(self, rule_: str) -> bool:
        return self.world.broken == rule_

    def step(self) -> bool:
        """Takes a step; returns whether there are more."""
        return next(self.steps, self) is None

    def die(self) -> None:
        """The kernel takes the locks back; everything else stays as it is."""
        for slot in self.world.slots:
            if slot.holder is self:
                slot.holder = None
        if self.world.collector is self:
            self.world.collector = None

    def append(self, slot: Slot, pack: Pack | None, avoid: Iterable[Pack], item: int) -> Pack:
        """Adds an object to the session's pack: the slot's last one, or a new one."""
        if pack is None:
            pack = slot.pack
            is_usable = pack is not None and pack.is_linked
            if not is_usable or (pack in avoid and not self.breaks("resumes a condemned pack")):
                pack = Pack()
                self.world.packs.append(pack)
            slot.pack = pack
        assert pack is not None
        pack.objects.append(item)
        return pack


class Writer(Process):
    """Stores what it needs, where it is not there already, and publishes one snapshot.

    A helper may store a part of it, in a session of its own that begins later.
    """

    def __init__(
        self, world: World, needs: Needs, *, is_full: bool = True, is_helped: bool = False
    ) -> None:
        self.needs = needs
        self.is_full = is_full
        self.helped = frozenset({max(needs)} if is_helped else ())
        super().__init__(world)

    def run(self) -> Steps:
        world = self.world
        slot = world.free_slot(is_full=self.is_full)
        slot.holder = self
        yield
        slot.pending = None
        yield
        begun, avoid = world.epoch, world.condemned
        yield
        if self.helped:
            yield from self.help()
        if self.breaks("begins after its helper"):
            begun = world.epoch
            yield
        yield from self.store(self.needs - self.helped, slot, avoid)
        if self.breaks("begins before it reads the epoch"):
            begun = world.epoch
            yield
        seen = world.epoch
        if self.breaks("looks at the epoch before it is pending"):
            yield
        slot.pending = self.needs
        yield
        if not self.breaks("looks at the epoch before it is pending"):
            seen = world.epoch
        later = 2 if self.breaks("publishes at two epochs more") else 1
        yield
        if seen <= begun + later or self.breaks("publishes without looking at the epoch"):
            if slot.pending is not None:
                world.snapshots[world.published] = self.needs
                world.published += 1
                slot.pending = None
        else:
            slot.pending = None
        yield
        slot.holder = None

    def help(self) -> Steps:
        slot = self.world.free_slot(is_full=self.is_full)
        slot.holder = self
        yield
        avoid = self.world.condemned
        yield
        yield from self.store(self.helped, slot, avoid)
        slot.holder = None
        yield

    def store(self, needs: Needs, slot: Slot, avoid: frozenset[Pack]) -> Steps:
        world = self.world
        own: Pack | None = None
        opened: set[Pack] = set()
        for item in sorted(needs):
            places = opened.union(world.linked)
            if not self.breaks("relies on condemned packs"):
                places -= avoid
            holds = next((pack for pack in places if item in pack.objects), None)
            if holds is not None:
                opened.add(holds)
            yield
            if holds is None:
                own = self.append(slot, own, avoid, item)
                yield


class Collector(Process):
    """One whole collection."""

    def run(self) -> Steps:
        world = self.world
        if world.collector is not None:
            return
        world.collector = self
        self.needed: set[int] = set()
        self.marked: set[int] = set()
        self.content: dict[Pack, list[int]] = {}
        yield
        if self.breaks("goes on where a dead collector stopped"):
            for pack in world.condemned:
                pack.is_linked = False
            yield
        for slot in list(world.slots):
            if slot.holder is None:
                slot.pending = None
            yield
        early = self.breaks("reads packs before it marks")
        for part in (self.read_packs, self.mark) if early else (self.mark, self.read_packs):
            yield from part()
        condemned = self.judged()
        yield from self.copy_and_delete(condemned)
        world.condemned = frozenset()
        yield
        world.collector = None

    def copy_and_delete(self, condemned: frozenset[Pack]) -> Steps:
        world = self.world
        content = self.content
        wanted = self.needed & {item for pack in condemned for item in content[pack]}
        wanted -= {item for pack in content if pack not in condemned for item in content[pack]}
        if not self.breaks("deletes before it copies"):
            yield from self.copy(wanted, condemned)
        if condemned:
            world.epoch, world.condemned = world.epoch + 1, condemned
            yield
            if not self.breaks("raises the epoch once"):
                world.epoch += 1
                yield
            known = set(self.needed)
            if not self.breaks("does not look a second time"):
                yield from self.mark()
            new = self.needed - known
            for pack in condemned:
                elsewhere = {
                    item
                    for other in world.linked
                    for item in other.objects
                    if other not in condemned
                }
                if not new & set(pack.objects) - elsewhere:
                    pack.is_linked = False
                yield
        if self.breaks("deletes before it copies"):
            yield from self.copy(wanted, condemned)

    def mark(self) -> Steps:
        parts = [self.mark_pending, self.mark_snapshots]
        if self.breaks("looks at snapshots before pending ones"):
            parts.reverse()
        for part in parts:
            yield from part()

    def mark_pending(self) -> Steps:
        if self.breaks("does not look at pending snapshots"):
            return
        listed = [slot for slot in self.world.slots if slot.pending is not None]
        yield
        for slot in listed:
            self.needed |= slot.pending or set()
            yield

    def mark_snapshots(self) -> Steps:
        listed = set(self.world.snapshots) - self.marked
        yield
        for number in listed:
            self.needed |= self.world.snapshots.get(number, frozenset())
            self.marked.add(number)
            yield

    def read_packs(self) -> Steps:
        busy = {slot.pack for slot in self.world.slots if slot.holder is not None}
        yield
        self.busy = busy
        for pack in self.world.linked:
            self.content[pack] = list(pack.objects)
            yield

    def judged(self) -> frozenset[Pack]:
        """Returns the packs that hold waste: something that no snapshot needs, or a second copy."""
        claimed: set[int] = set()
        condemned = set()
        for pack in sorted(self.content, key=lambda item: item not in self.busy):
            objects = self.content[pack]
            mine = self.needed & set(objects) - claimed
            claimed |= mine
            if pack not in self.busy and len(mine) < max(1, len(objects)):
                condemned.add(pack)
        return frozenset(condemned)

    def copy(self, wanted: set[int], condemned: frozenset[Pack]) -> Steps:
        """Copies as a writer does, with a slot of its own."""
        slot = self.world.free_slot()
        slot.holder = self
        slot.pending = None
        yield
        own: Pack | None = None
        for item in sorted(wanted):
            own = self.append(slot, own, condemned | self.world.condemned, item)
            yield
        slot.holder = None
        yield
