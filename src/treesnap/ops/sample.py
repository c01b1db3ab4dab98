"""Which part of a store's objects is read, so that several runs share the work."""

from __future__ import annotations

from typing import NamedTuple

from treesnap.model import ObjectId


class Sample(NamedTuple):
    """One of several equal parts of all objects, chosen by their ids."""

    part: int
    """From 1 to ``parts``."""
    parts: int

    def holds(self, identity: ObjectId) -> bool:
        """Returns whether an object belongs to this part; each belongs to one of them."""
        return int.from_bytes(identity[:4], "big") % self.parts == self.part - 1


ALL = Sample(1, 1)
