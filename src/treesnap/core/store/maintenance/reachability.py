"""Everything that snapshots need: the walk behind ``gc``, ``verify`` and ``stats``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from treesnap.core.codec.index import IndexPart
from treesnap.core.codec.reader import Reference, TreeCache, TreeReader, root_references
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, NewerVersion
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.store.index import ObjectIndex
from treesnap.core.store.store import Store

_ID = re.compile(rb"(?=\xc4\x20(.{32}))", re.DOTALL)
"""An id as msgpack stores it, wherever it stands."""


class SeenObjects:
    """The objects that were met, each with its kind and a number.

    Memory is a byte for each entry that the index had when this was made, which is then looked
    up in place, and an id for each object that was met and is not there. So a store of a million
    objects takes a megabyte, where a dictionary of ids would take 150. A lookup costs a bisection
    of an index part, and one more for each larger part that lacks the object.
    """

    def __init__(self, index: ObjectIndex) -> None:
        parts = sorted(index.parts.values(), key=lambda part: -part.count)
        starts = accumulate((part.count for part in parts), initial=0)
        self._parts: list[tuple[IndexPart, int]] = list(zip(parts, starts, strict=False))
        self._kinds = bytearray(sum(part.count for part in parts))
        self._others: dict[ObjectId, int] = {}
        """Numbers of the rest, from the number of index entries on."""
        self._count = 0

    def __len__(self) -> int:
        """How many objects were met."""
        return self._count

    @property
    def number_end(self) -> int:
        """All numbers are below this one."""
        return len(self._kinds)

    def number_of(self, identity: ObjectId) -> int | None:
        """Returns the number of an object, or None for one without, which was not met."""
        for part, start in self._parts:
            position = part.position(identity)
            if position is not None:
                return start + position
        return self._others.get(identity)

    def kind_of(self, number: int) -> int | None:
        """Returns the kind of the object with a number, or None when it was not met."""
        return self._kinds[number] or None

    def add(self, identity: ObjectId, kind: ObjectKind) -> bool:
        """Notes an object; returns whether it was not met before."""
        number = self.number_of(identity)
        if number is None:
            self._others[identity] = number = len(self._kinds)
            self._kinds.append(0)
        elif self._kinds[number]:
            return False
        self._kinds[number] = kind
        self._count += 1
        return True


class Reachability:
    """Walks snapshots and yields every object once; equal directories are walked once.

    Memory is that of :class:`SeenObjects`. Raises Corrupt when a tree or a list is missing or
    damaged, unless ``around_damage``: then the walk goes on, notes what is damaged, and
    counts every id that stands in its bytes as needed. OSError is not damage.
    """

    def __init__(self, store: Store, *, around_damage: bool = False) -> None:
        self._store = store
        self._around_damage = around_damage
        self._searched: set[ObjectId] = set()
        self.damaged: set[ObjectId] = set()
        """Trees and lists that were missing or damaged."""
        self.newer: set[ObjectId] = set()
        """Trees of a newer version, of which it is not known what they need."""
        self._trees = TreeReader(store.get, TreeCache(2))  # a directory and its page, read once
        self.seen: SeenObjects = SeenObjects(store.index)

    def add(self, record: SnapshotRecord) -> Iterator[Reference]:
        """Yields the objects that a snapshot needs and no earlier one needed."""
        pending: list[Reference] = []
        yield from self._only_new(root_references(record.root, record.links), pending)
        yield from self._walk(pending)

    def add_remains(self, data: bytes) -> Iterator[Reference]:
        """Yields the objects that a damaged record may need: those with an id in its bytes.

        The caller makes sure that the index lacks nothing.
        """
        pending: list[Reference] = []
        yield from self._search(data, pending)
        yield from self._walk(pending)

    def _walk(self, pending: list[Reference]) -> Iterator[Reference]:
        """Yields the new ones among pending trees and lists, and everything new below them."""
        while pending:
            reference = pending.pop()
            if self._is_new(reference):
                yield reference
                yield from self._below(reference, pending)

    def _below(self, reference: Reference, pending: list[Reference]) -> Iterator[Reference]:
        """Yields what is new in a tree or list; the trees and lists in it become pending."""
        try:
            yield from self._only_new(self._trees.references(reference), pending)
        except Corrupt as error:
            if not self._around_damage:
                raise
            (self.newer if isinstance(error, NewerVersion) else self.damaged).add(reference.id)
            for place in self._store.index.find_all(reference.id):
                yield from self._search(self._store.packs.read_unchecked(place), pending)

    def _only_new(
        self, references: Iterator[Reference], pending: list[Reference]
    ) -> Iterator[Reference]:
        chunk = ObjectKind.CHUNK
        for reference in references:
            if reference.kind is chunk or reference.is_page:
                if self._is_new(reference):
                    yield reference
            else:
                pending.append(reference)

    def _search(self, data: bytes, pending: list[Reference]) -> Iterator[Reference]:
        """Yields the objects whose ids stand in bytes of which nothing else can be relied on.

        Trees and lists among them are read as far as they can be, even if they were met before:
        the walk may have stopped in them.
        """
        for match in _ID.finditer(data):
            identity = ObjectId(match[1])
            place = next(self._store.index.find_all(identity), None)
            if place is None or identity in self._searched:
                continue
            self._searched.add(identity)
            reference = Reference(ObjectKind(place.kind), identity)
            if self._is_new(reference):
                yield reference
            yield from self._below(reference, pending)

    def _is_new(self, reference: Reference) -> bool:
        """Notes an object; returns whether that changed anything, for it and all below it."""
        return self.seen.add(reference.id, reference.kind)
