"""The objects that a walk met, in a byte each where the index has them."""

from __future__ import annotations

from itertools import accumulate

from treesnap.core.codec.index import IndexPart
from treesnap.core.model.entities import ObjectId, ObjectKind
from treesnap.core.store.index import ObjectIndex


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
